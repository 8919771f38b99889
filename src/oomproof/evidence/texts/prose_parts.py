"""What a person wrote in a text and what a program did: the title, the sentences, the program's lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oomproof.records import dataclass

Lines = Sequence[tuple[int, str]]

_FENCE = re.compile(r"^\s*(?:```|~~~)")
_PROGRAM = re.compile(
    r"^\s*(?:File \"|Traceback|\d{4}-\d\d-\d\d|\[|>|\$|#!|at |\w+Error\b|\w+ *=|import |from \w+ import|\d+%\||Epoch|WARNING|INFO|ERROR"
    r"|==|--|[IWEF](?:\d{4})? .{0,80}\.(?:cc|cpp|cu|py):\d+\]|\S+:\d+:|(?:srun|sbatch|slurmstepd[\w-]*|wandb|kernel|make|pip|bash)(?:\[\d+\])?: |\w{3} +\d+ \d\d:|\|)|\[\d+\]:|^\s{4,}\S|[{};]\s*$"
)
# Above each comment of a thread, as pages and search engines write it: no word of the person's
_AUTHOR_LINE = re.compile(
    r"^.{1,60} · [\w ]+ · \d{4}-\d\d-\d\d.*$|^\S+ (?:commented|reviewed|opened)\b.{0,40}$|^\[turn \d+ by [^\]\n]{1,80}\]$"
)
_ADDRESS = re.compile(r"https?://\S+")
_SENTENCES = re.compile(r"(?<=[.!?。])\s+")
_LETTER = re.compile(r"[a-z一-鿿]")
_WORD = re.compile(r"[a-z]+(?:['’][a-z]+)?")
_CHINESE = re.compile(r"[一-鿿]")
_PERSON = re.compile(r"\b(?:I|I['’](?:m|ve)|[Mm]y)\b|我|请问")  # programs, too, say "you" and "we"
# What sentences are held together by; a program's messages have few of them
_SMALL_WORDS = frozenset(
    [
        "i",
        "my",
        "me",
        "we",
        "our",
        "you",
        "your",
        "the",
        "a",
        "an",
        "to",
        "of",
        "and",
        "is",
        "it",
        "its",
        "when",
        "but",
        "with",
        "on",
        "in",
        "for",
        "this",
        "that",
        "these",
        "have",
        "has",
        "had",
        "not",
        "no",
        "how",
        "what",
        "why",
        "are",
        "was",
        "were",
        "be",
        "been",
        "if",
        "so",
        "as",
        "at",
        "or",
        "from",
        "can",
        "could",
        "would",
        "should",
        "do",
        "does",
        "did",
        "i'm",
        "i've",
        "don't",
        "can't",
        "doesn't",
        "it's",
        "there",
        "after",
        "while",
        "than",
        "then",
        "they",
        "he",
        "any",
        "some",
    ]
)
_LINE = 1000  # characters
_TITLE = 300
_SHARE = 0.15  # of the lines; less is a log with a word beside it


@dataclass(frozen=True, slots=True)
class ProseParts:
    title: tuple[int, str]  # its line and itself; empty where a program's line comes first
    sentences: tuple[tuple[int, str], ...]
    program: tuple[str, ...]
    lines: int  # that are not empty
    post: bool  # it begins with a heading, as issues do
    headings: int = 0
    bullets: int = 0

    @property
    def is_prose(self) -> bool:
        """A person speaks here: below a title, or in some sentences about themselves."""
        if self.post:
            return bool(self.title[1])
        spoken = [(number, text) for number, text in (self.title, *self.sentences) if is_spoken(text)]
        share = len({number for number, _ in spoken}) / max(1, self.lines)
        return len(spoken) > 1 and share >= _SHARE and any(_PERSON.search(text) for _, text in spoken)


def is_spoken(sentence: str) -> bool:
    words = _WORD.findall(sentence.lower())
    small = [word for word in words if word.replace("’", "'") in _SMALL_WORDS]
    if len(words) >= 5 and len(set(small)) >= 2 and len(small) * 5 >= len(words):
        return True
    return len(_CHINESE.findall(sentence)) >= 6


def parts_of(lines: Lines) -> ProseParts:
    title = (0, "")
    sentences: list[tuple[int, str]] = []
    program: list[str] = []
    headings = bullets = told = 0
    fenced = post = False
    for number, raw in lines:
        line = _ADDRESS.sub(" urlx ", raw[:_LINE])
        if not line.strip():
            continue
        post = post or (not told and line.startswith("# "))
        told += 1
        if _FENCE.match(line):
            fenced = not fenced
        elif _AUTHOR_LINE.match(line):
            continue
        elif fenced or _PROGRAM.search(line):
            program.append(line)
        else:
            headings += line.startswith("#")
            bullets += line.lstrip().startswith(("- ", "* "))
            if not title[1] and not sentences:
                title = (number, line.lstrip("# ")[:_TITLE])
            else:
                sentences += [
                    (number, sentence) for sentence in _SENTENCES.split(line) if _LETTER.search(sentence)
                ]
    return ProseParts(title, tuple(sentences), tuple(program), told, post, headings, bullets)
