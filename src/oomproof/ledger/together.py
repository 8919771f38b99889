"""Do these jobs fit on this machine together, in which turns, and what would make them fit? Plain arithmetic on plain bytes.

    wanted = each job's need, or what it holds already where that is more + everything else + the margin
    memory = RAM + disk swap; zram is no memory

Everything else is what is in use now beyond the jobs named, or what the user says it will be, whichever is more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from oomproof.ledger.budget import EXIT_STATUS, Budget, Status
from oomproof.records import dataclass
from oomproof.units import GIB

Way = Literal["turns", "swap", "smaller", "close"]


@dataclass(frozen=True, slots=True)
class Part:
    """One job of the set. ``held``: bytes it has already, where it runs; its pages in swap too."""

    name: str
    need: int
    basis: str
    held: int = 0
    running: bool = False

    @property
    def wanted(self) -> int:
        return max(self.need, self.held)


@dataclass(frozen=True, slots=True)
class Turn:
    """Jobs that fit at the same time. ``close``: bytes of everything else that must go first."""

    names: tuple[str, ...]
    wanted: int
    close: int = 0


@dataclass(frozen=True, slots=True)
class Remedy:
    way: Way
    size: int = 0  # of swap to add, that a job may take at most, or to free
    name: str = ""  # of that job


@dataclass(frozen=True, slots=True)
class Together:
    parts: tuple[Part, ...]
    budget: Budget
    rest: int  # everything else
    rest_now: int  # of it, measured now
    status: Status
    turns: tuple[Turn, ...]
    remedies: tuple[Remedy, ...]

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


def together(budget: Budget, parts: Sequence[Part], rest: int = 0, yet_to_grow: int = 0) -> Together:
    """``rest``: what the user says everything else takes. ``yet_to_grow``: what runs that are not in the set have reserved."""
    in_use = budget.in_use + budget.swap_total - budget.swap_free
    rest_now = max(0, in_use - sum(part.held for part in parts)) + yet_to_grow
    rest = max(rest, rest_now)
    for_jobs = budget.total + budget.swap_total - budget.margin - rest
    turns = turns_of(parts, for_jobs)
    status: Status = "fits" if sum(part.wanted for part in parts) <= for_jobs else "not-now"
    if any(part.wanted > budget.ever for part in parts):
        status = "never"
    answer = Together(tuple(parts), budget, rest, rest_now, status, turns, ())
    if status == "fits":
        return answer
    return Together(tuple(parts), budget, rest, rest_now, status, turns, remedies_of(answer))


def turns_of(parts: Sequence[Part], for_jobs: int) -> tuple[Turn, ...]:
    """What runs stays in the first; of the others the largest first, each in the first turn where it fits."""
    turns: list[list[Part]] = [[part for part in parts if part.running]]
    for part in sorted((part for part in parts if not part.running), key=lambda part: -part.wanted):
        fitting = (turn for turn in turns if sum(other.wanted for other in [*turn, part]) <= for_jobs)
        if (turn := next(fitting, None)) is not None:
            turn.append(part)
        else:
            turns.append([part])
    order = [part.name for part in parts]
    return tuple(
        Turn(
            tuple(sorted((part.name for part in turn), key=order.index)),
            wanted := sum(part.wanted for part in turn),
            max(0, wanted - max(0, for_jobs)),
        )
        for turn in turns
        if turn
    )


def remedies_of(answer: Together) -> tuple[Remedy, ...]:
    """The cheapest first. A pause is one only with disk swap, which it then fills: without, it frees nothing."""
    remedies = []
    if len(answer.turns) > 1:
        remedies.append(Remedy("turns"))
    remedies.append(Remedy("swap", -(-answer.short_by // GIB) * GIB))
    waiting = [part for part in answer.parts if not part.running]
    largest = max(waiting, key=lambda part: part.wanted, default=None)
    if largest is not None and largest.wanted > answer.short_by:
        remedies.append(Remedy("smaller", largest.wanted - answer.short_by, largest.name))
    if answer.rest_now >= answer.short_by:
        remedies.append(Remedy("close", answer.short_by))
    return tuple(remedies)
