"""Which lines of a training log are looked at for failures: those that hold one of a few strings."""

from __future__ import annotations

from oomproof.evidence.texts.anchor_strings import shortest
from oomproof.evidence.texts.failures import RULES
from oomproof.evidence.texts.failures.crash_sentences import TRANSLATED

# Pieces of words that stand in nearly every line that tells of a failure. Few and short on purpose: each costs one pass over
# a block of lines (measured: 27 substrings in a line of 115 characters take 3.6 µs, one alternation of them 12 µs). A row
# whose example holds none of them adds its anchor.
_STEMS = (
    "rror", "xception", "illed", "SIG", "ignal", "emory", "raceback", 'File "', "ault", "nterrupt", "bort", "nan", "NaN",
    "CANCEL", "ailed", "NCCL", "OOM", "space left", "erminat", "exit", "died", "crash", "Ctrl", "^C", "code = ", "Killing sub",
    "non-zero", "Exit", "EXIT", "corrupt", "not found", "open file", "panic", "sconnected", "Assert", "Crashed", "RUNNING AT ",
    "TERMINATION", "_STATUS_", "ABORT", "bad_alloc", "llegal instr", "(): ", "xhausted", "EXHAUSTED", "Speicher", "Erreur",
)  # fmt: skip
GATE = shortest(
    [
        *_STEMS,
        *(
            row.anchor
            for rule in RULES
            for row in rule.rows
            if not any(stem in row.example for stem in _STEMS)
        ),
    ]
)
GATE_BEYOND_ASCII = (*GATE, *TRANSLATED, "❱")  # rich's mark of the line that failed
# Worth a look only where something has failed already
AFTER_A_FAILURE = (
    "kipping batch", "kipping the batch", "kipping this batch", "Root Cause", "FAILED", "raining ", "fit`", "train_runtime", "ompleted", "inished",
    "] received", "] succeeded in ", "celery@", ' HTTP/1.',
)  # fmt: skip
