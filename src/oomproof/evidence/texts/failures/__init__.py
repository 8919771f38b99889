"""What the words of a failure mean: tables of sentences (``*_sentences.py``) and a few recognisers in code; the first answer wins."""

from __future__ import annotations

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


def recognise(said: FailureText) -> Hit | None:
    text = said.text
    anchors = _ASCII if text.isascii() else _EVERY
    for index in sorted({index for anchor, indexes in anchors if anchor in text for index in indexes}):
        if (hit := RULES[index].read(said)) is not None:
            return hit
    return None
