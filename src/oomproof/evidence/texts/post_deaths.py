"""What a person tells of a death, in a title or in a sentence, where no program's own words do."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from oomproof.evidence.texts.line_cleaner import clean, unquoted
from oomproof.evidence.texts.quoted_source import only_mentions

Lines = Sequence[tuple[int, str]] | deque[tuple[int, str]]


class ToldName(NamedTuple):
    """How people name a failure. ``example`` is a sentence of a post that must be understood."""

    cause: str
    says: str
    pattern: re.Pattern[str]
    example: str
    of_gpu: bool = False  # only where the text is about a GPU: "OOM" alone may be the host's


NAMES = (
    ToldName("cuda-oom", "the post tells of a GPU out of memory", re.compile(
        r"(?i)\b(?:CUDA|GPU|HIP|NPU|XPU|VRAM)s?\b[^.!?\n]{0,24}\b(?:out[ -]of[ -](?:the )?memory|OOM)\b|\bout of (?:GPU|CUDA|video|graphics|device|v) ?(?:memory|RAM)\b"
        r"|显存(?:不足|溢出|不够|爆)|爆显存"),
        "When the loop comes to epoch 2, loss.backward() shows CUDA out of memory on my card."),
    ToldName("cuda-oom", "the post tells of an out of memory on a GPU machine", re.compile(
        r"(?i)(?<![a-z])OOM(?![a-z]|[- ]?kill| score)|\bout[ -]of[ -]memory\b"),
        "I get an OOM in loss.backward() on my V100.", of_gpu=True),
    ToldName("segfault", "the post tells of a segmentation fault", re.compile(
        r"(?i)\bsegmentation fault\b|\bsegfault(?:s|ed|ing)?\b|\bSIGSEGV\b|段错误"),
        "I have met a 'Segmentation fault' when I ran the script."),
    ToldName("illegal-access", "the post tells of an illegal memory access on a GPU", re.compile(r"(?i)\billegal memory access\b"),
        "I keep getting an illegal memory access after some steps."),
    ToldName("nccl", "the post tells of a collective that timed out", re.compile(r"\bNCCL (?:timed? ?out|timeouts?|errors?)\b|\bcollective operation timeout\b"),
        "We get an NCCL timeout after the first epoch."),
    ToldName("nan", "the post tells of a loss that is no number", re.compile(
        r"(?i)\bloss(?:es)?\b[^.!?\n]{0,30}?(?<![a-z])(?:nan|inf)(?![a-z])|(?<![a-z])nan(?![a-z])[^.!?\n]{0,20}\bloss(?:es)?\b|(?:\bget(?:ting)?|\bgot|\bencounter\w*) (?:an? |the |weird )*nan\b|^nan (?:encounter|occur|appear|value)"),
        "The loss becomes NaN in the second epoch and I cannot go on with my training."),
    ToldName("dataloader-killed", "the post tells of a DataLoader worker that was killed", re.compile(
        r"(?i)\bdata ?loader\b[^.!?\n]{0,20} (?:(?:is|are|was|were|gets?|got|being|been) )?killed\b(?! by signal)"),
        "When I run it, the data loader worker is always killed after a while."),
    ToldName("other-error", "the post tells of an exception", re.compile(
        r"(?i)\b(?:key|value|type|index|attribute|runtime|assertion|name|import) ?error\b"),
        "I run the train script and then a keyerror of loss happens."),
    ToldName("killed-unknown", "the post tells of a process that was killed", re.compile(
        r"(?i)\b(?:gets?|got|was|were|been|being|is|are|be|appears?) (?:\w+ )?killed\b(?! by signal)|\bsystem (?:has )?killed (?:the|my|it)\b|^why (?:is it |was it )?killed\b"
        r"|\bexit(?:ed|s)?(?: with)?(?: the)?(?: status| code){0,2} 137\b|\b137 exit code\b|被(?:系统)?(?:杀死|杀掉|kill)"),
        "Loading checkpoint shards gets killed at 0%, and I have enough memory on my GPU."),
)  # fmt: skip

_HAPPENS = re.compile(
    r"(?i)\b(?:get|gets|got|getting|met|meets?|meeting|encounter\w*|fac(?:e|es|ed|ing)|hits?|sees?|saw|shows?|showed|display\w*|appear\w*|reports?|reported|rais(?:e|es|ed)|throws?|threw|gives?|gave"
    r"|says?|said|occurr?(?:ed|s|ing)?|occour|happen\w*|crash\w*|dies|died|fails?|failed|failing|quits?|stops|stopped|run(?:s|ning)? (?:out|into)|ran (?:out|into)|exits?|exited|ends?|ended|killed"
    r"|becomes?|became|turns?|turned|goes|went|there (?:is|was)|keeps?|have|had)\b|发生|出现|报错|提示|遇到|被杀|被kill|显示"
)
# an if, a rule, advice, a wish, what was mended
_SUPPOSED = re.compile(
    r"(?i)\b(?:if|unless|whether|in case|to avoid|avoid\w*|prevent\w*|may|might|could|would|should|can (?:cause|lead|result|happen)|will (?:cause|lead|help)|when you|you (?:get|run|see|may|can)|try|please (?:reduce|set|use)"
    r"|no longer|fixed|fixes|resolved|solved|without|instead|handle[ds]?|detect\w*|so that|not be|never|does(?:n't| not)|did(?:n't| not)|isn't|wasn't|no OOM|not OOM|yesterday|last (?:week|month|year|night)|earlier|back then|so (?:we|I) (?:use|set|had|have|switched))\b"
)
_PERSON = re.compile(
    r"\bI\b|\b(?:[Mm]y|[Ww]e|[Oo]ur)\b|(?i:\bhelp\b|\bthanks?\b|thank you|any ideas?|describe the bug|to reproduce\b|expected behaviou?r|how (?:to|can|do|could) (?:i |we )?(?:solve|fix|resolve)|^\W{0,3}why (?:did|does|is|was|killed))|🐛|请问|我|您好|你好"
)
# titles of requests, changes and manuals
_ASKS = re.compile(
    r"(?i)\b(?:how (?:to|can|do|much|many)|feat\w*|fix(?:e[sd])?\b|docs?\b|FAQ|missing|enable|disable|add(?:s|ed)?\b|support\w*|reduc\w*|improv\w*|avoid\w*|prevent\w*|handl\w*|request|guide|troubleshoot\w*|minimal|question|"
    r"how|allow|option|hints?|interpret|better|show|reading|understand\w*|policy|limit of|test(?:s|ing)? (?:for|of))\b|:\s*$"
)
_GPU = re.compile(
    r"(?i)\bGPUs?\b|\bcuda\b|\b(?:[AVHTPL]\d{2,3}|A6000|[GR]TX ?\d{3,4}|[1-5]0[5-9]0(?: ?ti)?|titan|tesla|4090|3090)\b|显存|loss\.backward|\bVRAM\b"
)
_TRACE = re.compile(r'^\s*File "[^"\n]{1,400}", line \d|^[│|> ]{1,6}❱', re.MULTILINE)
_SENTENCES = re.compile(r"(?<=[.!?])\s+|[。！？；]\s*")
_LINE = 800  # characters of a paragraph
_PROSE = re.compile(
    r"^(?:[A-Za-z一-鿿#*>`'\"“(✗-]|\d+[.)] )"
)  # no frame, table, stamp or code block's indent


def sentences(lines: Lines) -> Iterator[tuple[int, str, bool]]:
    """(line, sentence, whether it is the title) of what people wrote, in order."""
    title = True
    for at, (number, raw) in enumerate(lines):
        line = unquoted(raw)
        if not line.strip():
            continue
        text = clean(line[:_LINE]).text
        # "# OOM at validation", or the first line, alone in its paragraph
        if title and (line.startswith("# ") or (at + 1 < len(lines) and not lines[at + 1][1].strip())):
            yield number, text.strip(), True
        elif _PROSE.match(text):
            for sentence in _SENTENCES.split(text.strip()):
                if not only_mentions(sentence):
                    yield number, sentence, False
        title = False


def told_death(lines: Lines) -> tuple[int, str, ToldName] | None:
    """(line, sentence, what it names): the first report in a post. None where nobody reports anything."""
    if sum(bool(raw.strip()) for _, raw in lines) < 2:
        return None  # one sentence is no post
    whole = "\n".join(raw[:_LINE] for _, raw in lines)
    person, of_gpu = _PERSON.search(whole) is not None, _GPU.search(whole) is not None
    for number, sentence, title in sentences(lines):
        if title and (_ASKS.search(sentence) or not (person or _TRACE.search(whole))):
            continue
        if not title and (not person or _SUPPOSED.search(sentence) or not _HAPPENS.search(sentence)):
            continue
        for name in NAMES:
            if (of_gpu or not name.of_gpu) and name.pattern.search(sentence):
                return number, sentence, name
    return None
