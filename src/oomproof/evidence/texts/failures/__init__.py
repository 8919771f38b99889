"""What the words of a failure mean: tables of sentences (``*_sentences.py``) and a few recognisers in code; the first answer wins."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.accelerators import ACCELERATORS
from oomproof.evidence.texts.failures.any_memory import ANY_MEMORY
from oomproof.evidence.texts.failures.crash_sentences import CRASH_REPORTS
from oomproof.evidence.texts.failures.everyday_sentences import EVERYDAY, NOT_A_NUMBER
from oomproof.evidence.texts.failures.gpu_sentences import GPU_FAULTS, GPU_LIBRARIES, GPU_MEMORY
from oomproof.evidence.texts.failures.host_sentences import HOST_MEMORY
from oomproof.evidence.texts.failures.loader_sentences import LOADER
from oomproof.evidence.texts.failures.program_memory import PROGRAM_MEMORY
from oomproof.evidence.texts.failures.rank_sentences import RANKS
from oomproof.evidence.texts.failures.recogniser import FailureText, Hit
from oomproof.evidence.texts.failures.rules import CodeRule, Rule
from oomproof.evidence.texts.failures.runner_sentences import RUNNERS
from oomproof.evidence.texts.failures.scheduler_sentences import SCHEDULERS, TRIALS
from oomproof.evidence.texts.failures.signals import SIGNALS
from oomproof.records import replace

__all__ = ["RULES", "FailureText", "Hit", "recognise"]

# The order is part of the meaning. Engines first: their lines quote other families' words. The GPU's
# memory before XLA's: a plain driver error is nobody's in particular. Any other words for a lack of
# memory only after the known sentences. Signals late: "exit code" is in
# many a line that says more. What an exception's type alone says comes last, in the everyday ends.
RULES: tuple[Rule | CodeRule, ...] = (
    *SCHEDULERS, *LOADER, *GPU_FAULTS, *GPU_MEMORY, *ACCELERATORS, *GPU_LIBRARIES, *HOST_MEMORY, *PROGRAM_MEMORY, *ANY_MEMORY, *RANKS,
    *NOT_A_NUMBER, *CRASH_REPORTS, *RUNNERS, *EVERYDAY, *SIGNALS, *TRIALS,
)  # fmt: skip


_BY_ANCHOR: dict[str, list[int]] = {}
for _index, _rule in enumerate(RULES):
    for _anchor in _rule.anchors:
        _BY_ANCHOR.setdefault(_anchor, []).append(_index)
_EVERY = tuple(_BY_ANCHOR.items())
_ASCII = tuple(pair for pair in _EVERY if pair[0].isascii())


# What may stand before a program's words, beside what is taken off every line: the number of a row that was not printed any
# more, who is told to have failed; where the level says that it is an error, any program's or logger's name
_LEAD = re.compile(
    r"\d{1,4}\s{1,8}(?=\D)|(?:[Cc]aused by|[Rr]eason|[Dd]etails?|[Mm]essage|[Ee]xception|[Cc]ause): {0,4}(?=\S)"
    r"|(?:\w[\w.-]{0,40}: )?(?:[Ff]atal )?(?:[Ee]rror|ERROR|FATAL): {0,4}(?=\S)"
)
_NAME = re.compile(r"[A-Za-z][\w.-]{1,40}: {1,4}(?=\S)")
_BLANKS = re.compile(r"(?<=\S) {2,}(?=\S)")
_LOUD = ("ERROR", "FATAL", "CRITICAL")


def recognise(said: FailureText) -> Hit | None:
    hit = _recognise(said)
    if hit is not None:
        return hit
    text = said.text
    plain = _BLANKS.sub(" ", text) if "  " in text else text
    if not said.raised:
        lead = _LEAD.match(plain) or (_NAME.match(plain) if said.level in _LOUD else None)
        plain = plain[lead.end() :] if lead else plain
    return _recognise(replace(said, text=plain)) if plain != text else None


def _recognise(said: FailureText) -> Hit | None:
    text = said.text
    anchors = _ASCII if text.isascii() else _EVERY
    for index in sorted({index for anchor, indexes in anchors if anchor in text for index in indexes}):
        if (hit := RULES[index].read(said)) is not None:
            return hit
    return None
