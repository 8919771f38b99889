"""May this run start now? Plain arithmetic on plain values; nothing here reads or writes anything.

    available = headroom − what admitted runs have yet to grow − what unmanaged processes are about to take

First come, first served within a priority. A later run is let past the ones ahead of it only when that delays nobody:
whichever of the admitted runs end, in whatever order, everyone ahead could start at the same moment as without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from oomproof.records import dataclass

Verdict = Literal["start", "short", "behind"]

# Sums of what may be given back are kept in steps of this size; errors of rounding only ever hold a run back.
_STEP = 16 << 20
_MOST = 64 << 40  # no machine holds more; a wild figure must not make the sums endless


@dataclass(frozen=True, slots=True)
class Claim:
    """An admitted run: what it said it needs (None: nothing known), what it holds, what ten minutes of growth bring.

    ``parked`` of what it holds is the card's memory, moved here while others have the card: its need knows nothing of that.
    """

    run: str
    need: int | None = None
    held: int = 0
    growth: int = 0
    gpu_need: int = 0
    gpu: int | None = None
    gpu_held: int = 0
    parked: int = 0

    @property
    def short(self) -> int:
        """How far it is below its need; 0 past it, or without one."""
        return max(0, (self.need or 0) - max(0, self.held - self.parked))

    @property
    def yet(self) -> int:
        """What it has yet to grow. Past its need, or without one, only its own growth tells."""
        return self.short or max(0, self.growth)

    @property
    def gives(self) -> int:
        """What its end gives back."""
        return self.held + self.yet

    @property
    def gpu_yet(self) -> int:
        """One that gave the card back waits for its turn like everybody else."""
        return 0 if self.parked else max(0, self.gpu_need - self.gpu_held)


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A run that asks. ``gpu`` None with a need: any card will do."""

    run: str
    need: int
    gpu_need: int = 0
    gpu: int | None = None
    priority: int = 0
    asked: float = 0.0

    @property
    def order(self) -> tuple[int, float, str]:
        """Sorts the queue."""
        return (-self.priority, self.asked, self.run)


@dataclass(frozen=True, slots=True)
class Card:
    index: int
    free: int  # as the driver says
    hides: int | None = None  # what all processes hold together, where the driver does not tell them apart


@dataclass(frozen=True, slots=True)
class Decision:
    """``short_by`` bytes of RAM are missing, ``gpu_short_by`` on the card; ``behind`` names those who come first."""

    verdict: Verdict
    short_by: int = 0
    gpu_short_by: int = 0
    gpu: int | None = None  # the card it gets
    behind: tuple[str, ...] = ()


def reserved(claims: Iterable[Claim], unmanaged: int = 0) -> int:
    """What is spoken for beyond what is held already."""
    return sum(claim.yet for claim in claims) + max(0, unmanaged)


def decide(
    headroom: int,
    claims: Sequence[Claim],
    queue: Sequence[AdmissionRequest],
    mine: AdmissionRequest,
    cards: Sequence[Card] = (),
    unmanaged: int = 0,
) -> Decision:
    """``headroom`` is what the budget leaves before any reservation; ``queue`` are all that wait, in any order, with or without ``mine``."""
    available = headroom - reserved(claims, unmanaged)
    short = max(0, mine.need - available)
    gpu, gpu_short = _card_for(mine, cards, claims) if mine.gpu_need else (None, 0)
    if short or gpu_short:
        return Decision("short", short, gpu_short, gpu)
    ahead = sorted(
        (request for request in queue if request.order < mine.order), key=lambda request: request.order
    )
    delayed = _delayed(available, claims, ahead, mine, cards)
    if delayed:
        return Decision("behind", gpu=gpu, behind=delayed)
    return Decision("start", gpu=gpu)


def _delayed(
    available: int,
    claims: Sequence[Claim],
    ahead: Sequence[AdmissionRequest],
    mine: AdmissionRequest,
    cards: Sequence[Card],
) -> tuple[str, ...]:
    """Those ahead who would, or might, start later if ``mine`` started now."""
    delayed = []
    # Which sums can the ends of runs give back? Bit n: n steps. Each is rounded down, which the slack makes up for.
    sums = 1
    for claim in claims:
        sums |= sums << (min(claim.gives, _MOST) // _STEP)
    parts = len(claims)
    taken = 0  # by those ahead, once they run
    for request in ahead:
        missing = request.need + taken - available
        if _loses(sums, parts, missing, mine.need) or _same_card(request, mine):
            delayed.append(request.run)
        taken += request.need
        sums |= sums << (min(request.need, _MOST) // _STEP)  # it will run and end as well
        parts += 1
    return tuple(delayed)


def _loses(sums: int, parts: int, missing: int, mine: int) -> bool:
    """Is there a set of ends that gives back ``missing`` but not ``missing + mine``?

    A sum of rounded parts lies less than ``parts`` steps under the true one. So every true sum of at least ``missing``
    has its rounded one above ``missing − parts·step``, and the rounded one reaching ``missing + mine`` is proof enough.
    """
    low = max(0, -(-(missing - parts * _STEP) // _STEP))
    beyond = -(-(missing + mine) // _STEP)
    if beyond <= low:
        return False
    window = (sums >> low) & ((1 << (beyond - low)) - 1)
    return window != 0


def _same_card(ahead: AdmissionRequest, mine: AdmissionRequest) -> bool:
    """A card that somebody ahead waits for is not taken from under them."""
    if not ahead.gpu_need or not mine.gpu_need:
        return False
    return ahead.gpu is None or mine.gpu is None or ahead.gpu == mine.gpu


def _card_for(
    mine: AdmissionRequest, cards: Sequence[Card], claims: Sequence[Claim]
) -> tuple[int | None, int]:
    """(card, bytes short on it): the asked one, else the one with the most free memory."""
    available = {card.index: card_available(card, claims) for card in cards if mine.gpu in (None, card.index)}
    if not available:
        return mine.gpu, mine.gpu_need
    best = max(available, key=lambda index: (available[index], -index))
    return best, max(0, mine.gpu_need - available[best])


def card_available(card: Card, claims: Sequence[Claim]) -> int:
    """What is free on the card and reserved by nobody."""
    here = [claim for claim in claims if claim.gpu_need and claim.gpu == card.index and not claim.parked]
    if card.hides is not None:
        return card.free - max(0, sum(claim.gpu_need for claim in here) - card.hides)
    return card.free - sum(claim.gpu_yet for claim in here)
