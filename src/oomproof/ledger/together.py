"""Whether a set of jobs fits into RAM at the same time, in which turns, and what would make it fit. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from oomproof.ledger.budget import Budget, Status
from oomproof.records import dataclass
from oomproof.units import GIB


@dataclass(frozen=True, slots=True)
class Part:
    """One job of the set. ``held``: bytes it has already, where it runs; its pages in swap too."""

    name: str
    need: int
    basis: str
    held: int = 0
    running: bool = False
    command: str = ""  # of its last run, as one line to type; empty: not known

    @property
    def wanted(self) -> int:
        return max(self.need, self.held)


@dataclass(frozen=True, slots=True)
class Remedy:
    way: Literal["swap", "smaller", "close"]
    size: int  # of swap to add, that the job may take at most, or to free
    name: str = ""  # of that job


@dataclass(frozen=True, slots=True)
class Together:
    parts: tuple[Part, ...]
    budget: Budget
    rest: int  # everything else
    turns: tuple[tuple[Part, ...], ...]
    rest_basis: str = ""
    never: tuple[Part, ...] = ()  # jobs that do not fit on this machine even alone; they have no turn

    @property
    def wanted(self) -> int:
        return sum(part.wanted for part in self.parts) + self.rest

    @property
    def memory(self) -> int:
        return self.budget.total + self.budget.swap_total

    @property
    def spare(self) -> int:
        """The bytes that stay free above the margin, without which a desktop is not usable; negative: short."""
        return self.memory - self.budget.margin - self.wanted

    @property
    def status(self) -> Status:
        return "never" if self.never else "not-now" if self.spare < 0 else "fits"

    def remedies(self) -> Iterator[Remedy]:
        """What would make all fit at once. A machine with more swap than RAM only swaps, so that is not offered."""
        short = max(0, -self.spare)
        swap = -(-short // GIB) * GIB
        if 0 < swap <= self.budget.total:
            yield Remedy("swap", swap)
        waiting = [part for part in self.parts if not part.running]
        largest = max(waiting, key=lambda part: part.wanted, default=None)
        if largest is not None and 0 < short < largest.wanted:
            yield Remedy("smaller", largest.wanted - short, largest.name)
        if 0 < short <= self.rest:
            yield Remedy("close", short)


def together(
    budget: Budget, parts: Sequence[Part], rest: int = 0, yet_to_grow: int = 0, largest: str = ""
) -> Together:
    """``rest``: what the user says everything else takes; it is at least what is in use now beyond the set, of which
    ``largest`` names the largest job.
    ``yet_to_grow``: what runs outside the set have reserved."""
    in_use = budget.in_use + budget.swap_total - budget.swap_free
    now = max(0, in_use - sum(part.held for part in parts)) + yet_to_grow
    basis = "as you say" if rest > now else f"in use now beyond these{largest}"
    rest = max(rest, now)
    for_jobs = budget.total + budget.swap_total - budget.margin - rest
    never = [part for part in parts if part.wanted > budget.ever]
    # running jobs stay in the first turn; the largest of the others comes first, each in the first turn where it fits
    turns = [[part for part in parts if part.running and part not in never]]
    for part in sorted(parts, key=lambda part: -part.wanted):
        if part.running or part in never:
            continue
        fitting = (turn for turn in turns if sum(other.wanted for other in (*turn, part)) <= for_jobs)
        if (turn := next(fitting, None)) is not None:
            turn.append(part)
        else:
            turns.append([part])
    ordered = (tuple(part for part in parts if part in turn) for turn in turns if turn)
    return Together(tuple(parts), budget, rest, tuple(ordered), basis, tuple(never))
