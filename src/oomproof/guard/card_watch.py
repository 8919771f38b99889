"""The cards of the machine: who grows on them, who will be refused memory next, and who could give some back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from oomproof.records import dataclass
from oomproof.units import MIB, format_duration, format_size

if TYPE_CHECKING:  # brings subprocess along, and most machines have no card
    from oomproof.machine.gpu import Gpu

_WINDOW = 30.0  # seconds over which growth is told
_SEEN = 15.0  # seconds on the card before anything is said of it: by then most models are loaded
_SOON = 60.0  # seconds that the growth leaves
_WARN_EVERY = 600.0  # seconds, of each card
_WORTH = 64 * MIB  # a second's growth of less, or a holder of less, changes nothing
IDLE = 512 * MIB


@dataclass(frozen=True, slots=True)
class CardGrowth:
    """The process that takes most of a card that will soon be full."""

    card: int
    pid: int
    held: int
    grown: int
    seconds: float
    free: int
    total: int
    left: float  # seconds until nothing is free, at this rate
    holders: Mapping[int, int]  # pid → what the others hold there


@dataclass(frozen=True, slots=True)
class CardHolder:
    """A run of oomproof on that card. ``idle``: reserved by PyTorch and not in use."""

    run: str
    held: int
    paused: bool = False
    idle: int = 0


class CardWatch:
    """Given each reading of the cards; gives who will be refused next, once in ten minutes for each card."""

    def __init__(self) -> None:
        self._points: dict[tuple[int, int], deque[tuple[float, int]]] = {}
        self._warned: dict[int, float] = {}

    def look(self, t: float, cards: Sequence[Gpu]) -> list[CardGrowth]:
        warnings = []
        held = {
            (card.index, process.pid): process.used
            for card in cards
            for process in card.processes
            if process.used is not None
        }
        self._points = {key: points for key, points in self._points.items() if key in held}
        for key, used in held.items():
            points = self._points.setdefault(key, deque())
            if not points or t - points[-1][0] >= 1.0:
                points.append((t, used))
            while t - points[0][0] > _WINDOW:
                points.popleft()
        for card in cards:
            growth = self._growth(t, card)
            if growth is not None and t - self._warned.get(card.index, float("-inf")) >= _WARN_EVERY:
                self._warned[card.index] = t
                warnings.append(growth)
        return warnings

    def _growth(self, t: float, card: Gpu) -> CardGrowth | None:
        if card.free is None or card.total is None:
            return None  # the machine's RAM, which is looked after as that
        rates = {pid: rate for (index, pid), points in self._points.items() if index == card.index and (rate := lasting(points)) > 0}  # fmt: skip
        if not rates or card.free / sum(rates.values()) > _SOON:
            return None
        pid = max(rates, key=lambda pid: rates[pid])
        points = self._points[card.index, pid]
        others = {other: points[-1][1] for (index, other), points in self._points.items() if index == card.index and other != pid}  # fmt: skip
        grown, seconds = points[-1][1] - points[0][1], points[-1][0] - points[0][0]
        left = card.free / sum(rates.values())
        return CardGrowth(card.index, pid, points[-1][1], grown, seconds, card.free, card.total, left, others)


def lasting(points: Sequence[tuple[float, int]]) -> float:
    """Bytes per second; 0 where it does not rise in each third of what was seen. A model that was loaded, or a batch that took its
    share once, is no growth."""
    seconds = points[-1][0] - points[0][0] if points else 0.0
    if seconds < _SEEN or len(points) < 4:
        return 0.0
    values = [points[round(part * (len(points) - 1) / 3)][1] for part in range(4)]
    rises = all(after > before for before, after in pairwise(values)) and points[-1][1] > points[-2][1]
    rate = (values[-1] - values[0]) / seconds
    still = values[-1] - values[-2] >= rate * seconds / 6  # half of its share
    return rate if rises and still and rate * seconds >= _WORTH else 0.0


def warning(
    growth: CardGrowth, name: str, run: str, holders: Sequence[CardHolder], asked: Sequence[str] = ()
) -> str:
    """One message: job, figure, time left, what to type. ``run``: the run it belongs to, where it is one of oomproof's. ``asked``: the
    runs that were asked to give back what they do not use; a paused one that holds more is told of instead."""
    text = (
        f"GPU {growth.card} is getting full: {format_size(growth.free)} of {format_size(growth.total)} free; {name} "
        f"(pid {growth.pid}) grew by {format_size(growth.grown)} in {format_duration(growth.seconds)} to "
        f"{format_size(growth.held)} and will at this rate be refused more (CUDA out of memory) in about {format_duration(growth.left)}"
    )
    return f"{text}; {what_to_type(run, holders, asked)}"


def what_to_type(run: str, holders: Sequence[CardHolder], asked: Sequence[str] = ()) -> str:
    """Who sits on memory first: a paused run, then one that keeps what it does not use; else the job itself."""
    paused = max(
        (holder for holder in holders if holder.paused), key=lambda holder: holder.held, default=None
    )
    if paused is not None and paused.held >= _WORTH:
        return f"{paused.run} is paused and holds {format_size(paused.held)} there; give it back: oomproof pause {paused.run} --gpu"
    if run:
        own = f"move it off the card for now: oomproof pause {run} --gpu; or save first: oomproof save {run}"
    else:
        own = (
            "who holds the card: oomproof check; started with oomproof run --gpu-share, jobs take turns on it"
        )
    if asked:
        some = [
            f"{holder.run} ({format_size(holder.idle)})"
            for holder in sorted(holders, key=lambda holder: -holder.idle)
            if holder.run in asked
        ]
        return f"asked to give back what it keeps reserved and does not use: {', '.join(some)}; {own}"
    idle = max(holders, key=lambda holder: holder.idle, default=None)
    if idle is not None and idle.idle >= IDLE:
        size = format_size(idle.idle)
        return f"{idle.run} keeps {size} reserved that it does not use (oomproof run --release auto gives it back); {own}"
    return own
