"""Words of a person's text as features of a learned reader: stems, pairs of them, and who does what near a word of trouble."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from oomproof.evidence.texts.prose_parts import ProseParts

Features = dict[str, float]

_WORD = re.compile(r"[a-z]+(?:['’][a-z]+)?|[一-鿿]|\d+|[?!]")
_LETTERS = re.compile(r"[^a-zA-Z ]+")
_ENDINGS = ("ing", "ed", "es", "s")
_PROGRAM_LINES = 60
_PROGRAM_LINE = 200
_WORDS = 1000


def _classes(table: dict[str, str]) -> dict[str, str]:
    return {word: name for name, words in table.items() for word in words.split()}


TROUBLE = _classes({
    "kill": "kill sigkill killer", "crash": "crash", "oom": "oom outofmemory oomkill", "seg": "segfault segmentation sigsegv core dump",
    "mem": "memory ram vram exhaust swap", "nan": "nan inf", "err": "error exception", "die": "die dead di", "fail": "fail",
    "hang": "freeze hang stuck", "stop": "stop exit terminat abort quit", "restart": "restart", "disk": "disk space", "leak": "leak",
})  # fmt: skip
SPEECH = _classes({
    "I": "i my we our me im", "you": "you your", "modal": "may might could would should can will", "cond": "if unless whether case",
    "when": "when while during after once whenever as every", "neg": "NOT no never without nothing cannot",
    "get": "get got gett encounter meet met hit face see saw receiv run ran have had keep",
    "want": "want like need request propos feature add support allow improve implement",
    "fix": "fix prevent avoid handle reduce solv resolv address mitigat", "ask": "how what why is are does do anyone possible ? way",
    "past": "was were had did been", "cause": "cause lead result due because", "try": "try tri attempt",
    "train": "train epoch batch step iteration model", "fine": "work fine success solved ok",
})  # fmt: skip
_COUNTED = ("I", "you", "modal", "want", "fix", "get", "past", "when", "neg")


def stem(word: str) -> str:
    word = word.replace("’", "'")
    if word.endswith("n't"):
        return "NOT"
    if word.isdigit():
        return "0"
    for ending in _ENDINGS:
        if len(word) - len(ending) >= 3 and word.endswith(ending) and not word.endswith("ss"):
            word = word[: -len(ending)]
            if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "sl":
                word = word[:-1]
            break
    return word


def stems(text: str) -> list[str]:
    return [stem(word) for word in _WORD.findall(text.lower())]


def _pairs(words: list[str]) -> Iterator[str]:
    yield from words
    for first, second in itertools.pairwise(words):
        yield f"{first} {second}"


def _near_trouble(words: list[str]) -> Iterator[str]:
    """Each kind of trouble in a sentence with each kind of word around it."""
    found = {TROUBLE[word] for word in words if word in TROUBLE}
    if not found:
        return
    around = speech(words)
    for trouble in found:
        yield f"{trouble}&*"
        for kind in around:
            yield f"{trouble}&{kind}"


def speech(words: list[str]) -> set[str]:
    kinds = {SPEECH[word] for word in words if word in SPEECH}
    return kinds if "I" in kinds else kinds | {"noI"}


def words_of_text(parts: ProseParts) -> set[str]:
    """What is there or is not: stems and pairs of the title and the sentences, stems of the program's last lines."""
    title = stems(parts.title[1])
    found = {f"{place}:{pair}" for pair in _pairs(title) for place in "tp"}
    found |= {f"T:{pair}" for pair in _near_trouble(title)}
    found |= {f"^{start}" for start in (title[:1] and title[0], " ".join(title[:2])) if start}
    for _, sentence in parts.sentences:
        words = stems(sentence)
        found |= {f"p:{pair}" for pair in _pairs(words)}
        found |= {f"P:{pair}" for pair in _near_trouble(words)}
    for line in parts.program[-_PROGRAM_LINES:]:
        found |= {f"c:{word}" for word in stems(_LETTERS.sub(" ", line)[:_PROGRAM_LINE])}
    return found


def shape_of_text(parts: ProseParts) -> Features:
    """How it is written: how often who is spoken of, how much of it is a program's."""
    words = [word for _, sentence in parts.sentences for word in stems(sentence)][:_WORDS]
    size = len(words) + 5
    kinds = [SPEECH[word] for word in words if word in SPEECH]
    shape = {f"#{kind}": min(1.0, 15 * kinds.count(kind) / size) for kind in _COUNTED}
    shape["#program"] = min(1.0, len(parts.program) / 15)
    shape["#no program"] = float(not parts.program)
    shape["#long"] = min(1.0, size / 400)
    shape["#headings"] = min(1.0, parts.headings / 6)
    shape["#bullets"] = min(1.0, parts.bullets / 8)
    return shape
