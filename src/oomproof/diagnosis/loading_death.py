"""A death while the job was still loading: no batch had been asked for yet, and a smaller one takes nothing off it. Pure."""

from __future__ import annotations

from oomproof.diagnosis.verdict import Change, Remedy
from oomproof.evidence.case_file import CaseFile

LOAD_LESS = "load less at a time: stream or map the data, weights once and in a smaller type"
WEIGHTS_ONCE = Remedy(
    'weights once and in their own type: from_pretrained(..., dtype="auto"), torch.load(..., mmap=True), load_state_dict(..., assign=True)',
    change=Change("code", "load"),
)
SMALLER_WEIGHTS = Remedy(
    'it was still loading, so no batch was on the card: weights in a smaller type (bfloat16 takes half of float32, 4 bits an eighth), or part of them in RAM: device_map="auto"',
    change=Change("code", "dtype"),
)


def died_loading(case: CaseFile) -> bool:
    """As the agent saw it: before the first batch was asked for and the first pass through a model. One that printed steps trains with
    something else than PyTorch, which it only imports."""
    if case.phase != "load" or case.step is not None:
        return False
    text = case.output.text
    return text is None or text.progress.training_step is None
