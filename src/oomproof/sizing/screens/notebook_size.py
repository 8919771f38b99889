"""`oomproof.size(step, model, optimizer, batch)`: the answer shows itself as a table in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oomproof.printable import terminal_columns
from oomproof.sizing import calibrated_card, step_sizing
from oomproof.sizing.estimate import Sizing
from oomproof.sizing.fit_verdict import card_of, fit
from oomproof.sizing.screens.size_report import sizing_lines, verdict_lines
from oomproof.units import parse_size


class StepSizing(Sizing):
    """A `Sizing` whose ``repr`` is its table."""

    __slots__ = ("place",)

    def __repr__(self) -> str:
        width = terminal_columns(100)
        lines = sizing_lines(self, width)
        place = getattr(self, "place", None)
        if place is not None and self.gpu is not None:
            lines += ["", *verdict_lines([fit(place, self.gpu)], width)]
        return "\n".join(lines)


def size(
    step: Callable[..., Any],
    model: Any,
    optimizer: Any,
    batch: Any,
    *,
    gpu: str | int | None = None,
    card: str | None = None,
    time_limit: float = 60.0,
) -> StepSizing:
    """What ``step(model, optimizer, batch)`` takes on a GPU, without one, and without touching what is given.

    ``gpu``: would it fit on a card of this size ("24G")? ``card``: a calibrated card, its file or name. What the step raises by
    itself is raised; what cannot be followed is in ``refused``."""
    calibrated = calibrated_card.named(card) if card is not None else None
    found = step_sizing.size_step(step, model, optimizer, batch, seconds=time_limit, card=calibrated)
    total = parse_size(gpu) if isinstance(gpu, str) else gpu
    if total is None and calibrated is not None:
        total = calibrated.total
    shown = StepSizing(
        found.gpu,
        found.host,
        found.phases,
        found.basis,
        found.refused,
        found.passing,
        found.notes,
        found.peak,
    )
    if total is not None:
        object.__setattr__(shown, "place", card_of(total))
    return shown
