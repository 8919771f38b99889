"""Does an estimate fit in a place, a machine's RAM or a card? Plain arithmetic, and the sentence that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from oomproof.ledger.budget import Budget
from oomproof.machine.gpu import Gpu
from oomproof.records import dataclass
from oomproof.sizing.estimate import Estimate
from oomproof.units import format_size

Status = Literal["fits", "close", "not-now", "never"]


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes. ``now``: what may be used at this moment; ``ever``: with nothing else running."""

    kind: Literal["ram", "gpu"]
    name: str  # "this machine's RAM", "a 24.0 GiB card"
    now: int
    ever: int
    has: str  # "19.5 GiB available, margin 5.0 GiB"


@dataclass(frozen=True, slots=True)
class Fit:
    place: Place
    status: Status  # close: what is expected fits, the most that it may become does not
    short_by: int
    sentence: str

    def as_json(self) -> dict[str, Any]:
        return {
            "place": self.place.name,
            "kind": self.place.kind,
            "status": self.status,
            "short_by_bytes": self.short_by,
            "sentence": self.sentence,
        }


def ram_here(budget: Budget) -> Place:
    swap = f", {format_size(budget.swap_free)} disk swap free" if budget.swap_free else ""
    reserved = f", {format_size(budget.reserved)} reserved for running jobs" if budget.reserved else ""
    has = f"{format_size(budget.available)} available{swap}{reserved}, margin {format_size(budget.margin)}"
    return Place("ram", "this machine's RAM", budget.now, budget.ever, has)


def ram_of(total: int, margin: int) -> Place:
    """Another machine's, with nothing else on it."""
    usable = max(0, total - margin)
    return Place("ram", f"{format_size(total)} of RAM", usable, usable, f"margin {format_size(margin)}")


def card_here(card: Gpu) -> Place:
    free, total = card.free or 0, card.total or 0
    name = f"GPU {card.index} ({card.name})" if card.name else f"GPU {card.index}"
    return Place("gpu", name, free, total, f"{format_size(free)} free of {format_size(total)}")


def _a(size: int) -> str:
    """8, 11, 18, 80 are said with a vowel."""
    number = format_size(size).partition(".")[0].partition(" ")[0]
    return "an" if number.startswith("8") or number in ("11", "18") else "a"


def card_of(total: int) -> Place:
    return Place("gpu", f"{_a(total)} {format_size(total)} card", total, total, "with nothing else on it")


def fit(place: Place, estimate: Estimate, smaller: Sequence[tuple[str, Estimate]] = ()) -> Fit:
    """``smaller``: the same in other types, in the order to offer them."""
    where = f"in {place.name}" if place.kind == "ram" else f"on {place.name}"
    if estimate.high <= place.now:
        spare = format_size(place.now - estimate.high)
        return Fit(place, "fits", 0, f"fits {where} ({place.has}), {spare} to spare")
    if estimate.expected <= place.now:
        sentence = (
            f"just fits {where} ({place.has}): {format_size(estimate.expected)} expected, but "
            f"{format_size(estimate.high)} are possible"
        )
        return Fit(place, "close", 0, sentence + _other(place, smaller))
    never = estimate.expected > place.ever
    short = estimate.expected - (place.ever if never else place.now)
    when = (
        "never fits" if never and place.now < place.ever else "does not fit" if never else "does not fit now"
    )
    sentence = f"{when} {where} ({place.has}): short by {format_size(short)}"
    return Fit(place, "never" if never else "not-now", short, sentence + _other(place, smaller))


def _other(place: Place, smaller: Sequence[tuple[str, Estimate]]) -> str:
    for name, estimate in smaller:
        if estimate.high <= place.now:
            return f"; as {name} it would fit ({format_size(estimate.expected)})"
    return "; no smaller type would fit either" if smaller else ""
