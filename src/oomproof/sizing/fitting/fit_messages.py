"""What fit_batch says: one line when it has chosen, one for each note, one when it starts over; and the sentence on an error it passes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from oomproof.causes import cause_of
from oomproof.printable import printable
from oomproof.sizing.fitting.fitted_batch import Batch

TIGHT = (
    "it fits only since PyTorch gives cached memory back at every step, which takes time: "
    "PYTORCH_ALLOC_CONF=expandable_segments:True needs less of it (PYTORCH_CUDA_ALLOC_CONF before PyTorch 2.11)"
)
EVALUATES_FIRST = (
    "the evaluation before the first optimizer step is run for every batch that is measured: "
    "`if not batch.probing:` before it saves that time"
)
SMALLER_MODEL = "gradient checkpointing, bf16, a smaller model or shorter sequences make it fit"
Tell = Callable[[str], None]
_CHANGES = {
    "eval": "the evaluation needs a smaller batch of its own, torch.no_grad(), and outputs that are moved to the CPU",
    "generate": "generation needs a smaller batch of its own, or fewer new tokens",
    "save": "save from copies on the CPU, or fewer tensors at once",
    "load": "the model itself does not fit: a smaller type, or layers on the CPU",
}
_SMALLER = "resume from the last checkpoint with a smaller batch: fit_batch(…, most={smaller})"


def to_stderr(text: str) -> None:
    print(f"oomproof: {printable(text)}", file=sys.stderr, flush=True)


def silent(text: str) -> None:
    return None


def chosen(batch: Batch, measured: Sequence[int]) -> str:
    at = f", measured at {' and '.join(map(str, measured))}" if measured else ""
    return f"{batch}{at}"


def starts_over(cause: str, failed: int, smaller: int) -> str:
    return f"{cause_of(cause).title} at batch {failed}: starting over with {smaller}"


def passed_on(cause: str, phase: str, steps: int, batch: int, why: str = "") -> str:
    """``steps``: good optimizer steps before it."""
    where = f" in {phase}" if phase else ""
    after = f" after {steps:,} optimizer steps" if steps else ""
    reason = why or (f"not started over: {steps:,} steps would be lost" if steps else "not started over")
    change = _CHANGES.get(phase) or _SMALLER.format(smaller=max(1, batch // 2))
    return f"oomproof: {cause_of(cause).title}{where}{after} at batch {batch}; {reason}; {change}"


def smallest_failed(cause: str, phase: str, batch: int) -> str:
    where = f" in {phase}" if phase else ""
    return f"oomproof: {cause_of(cause).title}{where} at batch {batch}, the smallest allowed: {SMALLER_MODEL}"
