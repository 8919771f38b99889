"""Do these jobs fit on this machine together, in which turns, and what would make them fit? Plain arithmetic on plain bytes.

    wanted = each job's need, or what it holds already where that is more + everything else + the margin
    memory = RAM + disk swap; zram is no memory

Everything else is what is in use now beyond the jobs named, or what the user says it will be, whichever is more. Cards are
asked the same question each for itself, without a margin (cards_together.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from oomproof.ledger.budget import EXIT_STATUS, Budget, Status
from oomproof.ledger.cards_together import CardPart, CardSpace, CardSum, is_too_large, place
from oomproof.records import dataclass, replace
from oomproof.units import GIB

Way = Literal["turns", "swap", "smaller", "close", "gpu-share", "gpu-smaller", "gpu-close"]


@dataclass(frozen=True, slots=True)
class Part:
    """One job of the set. ``held``: bytes it has already, where it runs; its pages in swap too."""

    name: str
    need: int
    basis: str
    held: int = 0
    running: bool = False
    card: CardPart = CardPart()
    command: str = ""  # of its last run, as one line to type; empty: not known, or not to be typed

    @property
    def wanted(self) -> int:
        return max(self.need, self.held)


@dataclass(frozen=True, slots=True)
class Turn:
    """Jobs that fit at the same time. ``close``: bytes of everything else that must go first."""

    names: tuple[str, ...]
    wanted: int
    close: int = 0
    cards: tuple[CardSum, ...] = ()  # those that these jobs use

    @property
    def gpu_close(self) -> int:
        """The same on a card."""
        return max((card.short for card in self.cards), default=0)


@dataclass(frozen=True, slots=True)
class Remedy:
    way: Way
    size: int = 0  # of swap to add, that a job may take at most, or to free
    name: str = ""  # of that job
    card: int | None = None


@dataclass(frozen=True, slots=True)
class Together:
    parts: tuple[Part, ...]
    budget: Budget
    rest: int  # everything else
    rest_now: int  # of it, measured now
    status: Status
    turns: tuple[Turn, ...]
    never: tuple[str, ...] = ()  # jobs that do not fit on this machine even alone; they have no turn
    cards: tuple[CardSum, ...] = ()  # with all of them at once
    remedies: tuple[Remedy, ...] = ()

    @property
    def memory(self) -> int:
        return self.budget.total + self.budget.swap_total

    @property
    def wanted(self) -> int:
        return sum(part.wanted for part in self.parts) + self.rest

    @property
    def short(self) -> int:
        """Of what the machine has to its last byte."""
        return max(0, self.wanted - self.memory)

    @property
    def short_by(self) -> int:
        """With the margin, without which a desktop is not usable."""
        return max(0, self.wanted + self.budget.margin - self.memory)

    @property
    def in_swap(self) -> int:
        """What cannot be in RAM when all have all they want."""
        return max(0, self.wanted + self.budget.margin - self.budget.total)

    @property
    def exit_status(self) -> int:
        return EXIT_STATUS[self.status]


def together(
    budget: Budget,
    parts: Sequence[Part],
    rest: int = 0,
    yet_to_grow: int = 0,
    cards: Sequence[CardSpace] = (),
) -> Together:
    """``rest``: what the user says everything else takes. ``yet_to_grow``: what runs that are not in the set have reserved."""
    in_use = budget.in_use + budget.swap_total - budget.swap_free
    rest_now = max(0, in_use - sum(part.held for part in parts)) + yet_to_grow
    rest = max(rest, rest_now)
    for_jobs = budget.total + budget.swap_total - budget.margin - rest
    never = [part for part in parts if part.wanted > budget.ever or is_too_large(part.card, cards)]
    turns = turns_of([part for part in parts if part not in never], for_jobs, cards)
    sums = _cards_of(parts, cards)
    fits = sum(part.wanted for part in parts) <= for_jobs and not any(card.short for card in sums)
    status: Status = "never" if never else "fits" if fits else "not-now"
    names = tuple(part.name for part in never)
    answer = Together(tuple(parts), budget, rest, rest_now, status, turns, names, sums)
    return answer if status == "fits" else replace(answer, remedies=remedies_of(answer))


def _cards_of(parts: Sequence[Part], cards: Sequence[CardSpace]) -> tuple[CardSum, ...]:
    return place([(part.name, part.card) for part in parts], cards)


def turns_of(parts: Sequence[Part], for_jobs: int, cards: Sequence[CardSpace] = ()) -> tuple[Turn, ...]:
    """What runs stays in the first; of the others the largest first, each in the first turn where it fits."""

    def fit(turn: Sequence[Part]) -> bool:
        short = any(card.short for card in _cards_of(turn, cards))
        return not short and sum(part.wanted for part in turn) <= for_jobs

    turns: list[list[Part]] = [[part for part in parts if part.running]]
    waiting = [part for part in parts if not part.running]
    for part in sorted(waiting, key=lambda part: (-part.wanted, -part.card.wanted)):
        if (turn := next((turn for turn in turns if fit([*turn, part])), None)) is not None:
            turn.append(part)
        else:
            turns.append([part])
    order = [part.name for part in parts]
    return tuple(
        Turn(
            tuple(sorted((part.name for part in turn), key=order.index)),
            wanted := sum(part.wanted for part in turn),
            max(0, wanted - max(0, for_jobs)),
            _cards_of(turn, cards),
        )
        for turn in turns
        if turn
    )


def remedies_of(answer: Together) -> tuple[Remedy, ...]:
    """The cheapest first. Turns are none for a job that does not fit alone. A pause is one only with disk swap, which it then
    fills: without, it frees nothing."""
    remedies = []
    alone = not answer.never and not any(turn.close or turn.gpu_close for turn in answer.turns)
    if len(answer.turns) > 1 and alone:
        remedies.append(Remedy("turns"))
    if answer.short_by:
        remedies += _of_ram(answer)
    for card in answer.cards:
        if card.short:
            remedies += _of_card(answer, card)
    return tuple(remedies)


def _of_ram(answer: Together) -> list[Remedy]:
    remedies = []
    swap = -(-answer.short_by // GIB) * GIB
    # more than that is no longer a machine that swaps, but one that only does
    if swap <= answer.budget.total:
        remedies.append(Remedy("swap", swap))
    waiting = [part for part in answer.parts if not part.running]
    largest = max(waiting, key=lambda part: part.wanted, default=None)
    if largest is not None and largest.wanted > answer.short_by:
        remedies.append(Remedy("smaller", largest.wanted - answer.short_by, largest.name))
    if answer.rest_now >= answer.short_by:
        remedies.append(Remedy("close", answer.short_by))
    return remedies


def _of_card(answer: Together, card: CardSum) -> list[Remedy]:
    remedies = []
    waiting = [part for part in answer.parts if part.name in card.names and not part.running]
    free = card.total - card.rest
    if (
        len(waiting) > 1
        and len(waiting) == len(card.names)
        and all(part.card.wanted <= free for part in waiting)
    ):
        remedies.append(Remedy("gpu-share", card=card.index))
    largest = max(waiting, key=lambda part: part.card.wanted, default=None)
    if largest is not None and largest.card.wanted > card.short:
        remedies.append(Remedy("gpu-smaller", largest.card.wanted - card.short, largest.name, card.index))
    if card.rest >= card.short:
        remedies.append(Remedy("gpu-close", card.short, card=card.index))
    return remedies
