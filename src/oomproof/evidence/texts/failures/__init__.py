"""What the words of a failure mean: tables of sentences (``*_sentences.py``), one for each kind of program that prints them.

A new sentence is one ``Row`` in the rule that has its meaning, in the table of the program that prints it. ``rules.py`` describes the
arguments; ``tests/unit/evidence/test_text_tables.py`` runs every row's example. A row needs a program of this field that prints it. Give
the shortest anchor and pattern that only this sentence fits, so that the row also reads the sentence's next wording.

The first rule that fits wins, so the order of ``RULES`` is part of the meaning:

1. Schedulers and engines: their lines quote the words of the others.
2. DataLoader workers and shared memory, before a full disk: both say "No space left on device".
3. The GPU's faults and memory, before XLA: a plain driver error belongs to no library. cuBLAS and cuDNN after both.
4. The host's memory. Any other words for a lack of memory only after the known sentences.
5. Other ranks, after memory: their complaints often quote the GPU's.
6. Everyday ends. What only an exception's type says comes last in them.
7. Signals and exit codes: "exit code" stands in many lines that say more. Failed trials last.
"""

from __future__ import annotations

from oomproof.evidence.texts.failures.crash_sentences import CRASH_REPORTS, SIGNALS
from oomproof.evidence.texts.failures.everyday_sentences import EVERYDAY, NOT_A_NUMBER
from oomproof.evidence.texts.failures.gpu_sentences import GPU_FAULTS, GPU_LIBRARIES, GPU_MEMORY
from oomproof.evidence.texts.failures.memory_sentences import ANY_MEMORY, HOST_MEMORY
from oomproof.evidence.texts.failures.rank_sentences import LOADER, RANKS
from oomproof.evidence.texts.failures.rules import CodeRule, FailureText, Hit, Rule
from oomproof.evidence.texts.failures.scheduler_sentences import RUNNERS, SCHEDULERS, TRIALS
from oomproof.evidence.texts.failures.xla_sentences import XLA

__all__ = ["RULES", "FailureText", "Hit", "recognise"]

RULES: tuple[Rule | CodeRule, ...] = (
    *SCHEDULERS, *LOADER, *GPU_FAULTS, *GPU_MEMORY, *XLA, *GPU_LIBRARIES, *HOST_MEMORY, *ANY_MEMORY, *RANKS,
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
