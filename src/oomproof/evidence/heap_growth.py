"""What kind of memory it is that grows, from the allocators' own counters in the training process.

Python's objects, what libraries hold (arrays and tensors, native code), what the C library keeps though it was freed, Arrow's
pool; the rest was mapped by a library itself."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.leaf.heap_kinds import ARROW, COUNTERS, MAPPED, NATIVE, PYTHON, RETAINED, most_of, split
from oomproof.recording.series import Series
from oomproof.records import dataclass

__all__ = ["ARROW", "MAPPED", "NATIVE", "PYTHON", "RETAINED", "GrowingContainer", "HeapGrowth", "heap_growth"]

_LOOKS = 6  # before anything is said
_EDGE = 3  # looks at each end, of which the median counts


@dataclass(frozen=True, slots=True)
class GrowingContainer:
    """A list, dict or set of the user's code that had more elements at nearly each look."""

    kind: str
    scope: str  # local, global or attribute
    name: str  # of an attribute: Class.name
    function: str
    file: str
    line: int  # where the function begins
    before: int
    after: int
    element: str  # type of its newest element; a tensor's with its shape

    @property
    def is_large(self) -> bool:
        """Whether its elements can be what fills memory, a few at a time."""
        return self.element.startswith(("Tensor", "ndarray"))


@dataclass(frozen=True, slots=True)
class HeapGrowth:
    """Bytes that each kind grew by in the training process, from one look to another."""

    kind: str  # the one that most of it is; empty: of several
    grown: int  # of the process
    by_kind: dict[str, int]
    objects: int  # Python's small blocks, in numbers
    seconds: float
    containers: tuple[GrowingContainer, ...] = ()  # the fastest first


def heap_growth(series: Series, begin: float, end: float) -> HeapGrowth | None:
    """None where no agent told, or too seldom."""
    looks = [(t, told) for t, told in series.told_numbers("agent:heap") if begin <= t <= end]
    if not looks:
        return None
    pid = looks[-1][1].get("pid")
    looks = [(t, told) for t, told in looks if told.get("pid") == pid]  # a second training has its own heap
    if len(looks) < _LOOKS or not isinstance(looks[-1][1].get("anon"), int):
        return None
    grown = {name: _grown([told.get(name) for _, told in looks]) for name in COUNTERS}
    by_kind = split(grown)
    if by_kind is None:
        return None
    whole, objects = grown["anon"] or 0, grown["blocks"] or 0
    kind = most_of(by_kind, whole)
    containers = _containers(looks[-1][1].get("containers"))
    return HeapGrowth(kind, whole, by_kind, objects, looks[-1][0] - looks[0][0], containers)


def _containers(told: object) -> tuple[GrowingContainer, ...]:
    containers = []
    for row in told if isinstance(told, list) else ():
        if isinstance(row, list) and len(row) == 9 and isinstance(row[6], int) and isinstance(row[7], int):
            kind, scope, name, function, file = map(str, row[:5])
            line = row[5] if isinstance(row[5], int) else 0
            element = str(row[8])
            containers.append(
                GrowingContainer(kind, scope, name, function, file, line, row[6], row[7], element)
            )
    return tuple(containers)


def _grown(values: Sequence[object]) -> int | None:
    """From the first looks to the last; None where it was not told."""
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) < _LOOKS:
        return None
    return sorted(numbers[-_EDGE:])[_EDGE // 2] - sorted(numbers[:_EDGE])[_EDGE // 2]
