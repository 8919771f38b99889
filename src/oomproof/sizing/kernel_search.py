"""cudnn.benchmark tries its kernels with memory that the card has free. A job that gets less tries fewer of them and continues, so what the
search takes is told apart from what the job needs (PyTorch's Conv_v8.cpp asks for half as much until it gets it, and empties the cache after)."""

from __future__ import annotations

from oomproof.sizing import measured_workspaces, virtual_run
from oomproof.sizing.calibrated_card import CalibratedCard
from oomproof.sizing.card_constants import ANY_CARD
from oomproof.sizing.virtual_run import VirtualRun
from oomproof.units import format_size

_MATTERS = 0.9  # a job that needs less than this share of its upper end without the search


def measured_run(
    run: VirtualRun, calibrated: CalibratedCard, expandable: bool, total: int | None
) -> tuple[VirtualRun, str]:
    """The run with what was measured on the card, and a note. Without the search where only that makes it more than ``total``, the card's
    bytes."""
    whole = measured_workspaces.applied(run, calibrated)
    if not run.result.get("benchmark"):
        return whole, ""
    bare = measured_workspaces.applied(run, calibrated, search=False)
    card = calibrated.card(ANY_CARD)
    most, needed = (virtual_run.gpu_estimate(some, expandable, card)[0] for some in (whole, bare))
    if needed.high > _MATTERS * most.high:
        return whole, ""
    search = format_size(most.expected - needed.expected)
    if total and most.high > total:
        return (
            bare,
            f"while cudnn.benchmark tries kernels it takes up to {search} more, for a moment and where the GPU has that free",
        )
    return whole, (
        f"{search} of it only while cudnn.benchmark tries kernels, for a moment and where the GPU has that free; "
        f"the job needs at most {format_size(needed.high)}"
    )
