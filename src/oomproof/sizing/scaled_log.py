"""The log of allocations that another batch would make, from the logs of two: each tensor has its own line in the batch. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.records import dataclass
from oomproof.sizing.smallest_capacity import Events

_LEAST_SQUARE = 16  # bytes: below that a ratio says nothing
_ODD = 0.02  # of the tensors: as many may have another size than a line gives (workspaces of another kernel)


@dataclass(frozen=True, slots=True)
class LogPair:
    """Two logs of the same steps, at two batches; the places of what is given back are the larger one's."""

    small: int
    large: int
    sizes: tuple[tuple[int, int], ...]  # of each allocation, in order: at the small batch, at the large one
    events: Events  # of the large batch

    def at(self, batch: int) -> list[tuple[int, int]]:
        """The log at any batch."""
        share = (batch - self.small) / (self.large - self.small)
        following = iter(self.sizes)
        scaled = []
        for name, size in self.events:
            if name > 0:
                small, large = next(following)
                scaled.append((name, self._size(small, large, share, batch)))
            else:
                scaled.append((name, size))
        return scaled

    def _size(self, small: int, large: int, share: float, batch: int) -> int:
        if small == large:
            return large
        if self._is_square(small, large):
            return small * batch * batch // (self.small * self.small)
        return max(1, round(small + (large - small) * share))

    def _is_square(self, small: int, large: int) -> bool:
        return small >= _LEAST_SQUARE and large * self.small**2 == small * self.large**2

    @property
    def squares(self) -> int:
        """How many tensors grow with the square of the batch: samples are compared with each other."""
        return sum(self._is_square(small, large) for small, large in self.sizes if small != large)


def log_pair(small: int, small_log: Events, large: int, large_log: Events) -> LogPair | None:
    """None where the two did not make the same tensors: other kernels, other lengths, another number of steps."""
    first, second = (_allocations(log) for log in (small_log, large_log))
    if small >= large or not first or not second:
        return None
    if len(first) != len(second) or _odd(first, second, small, large) > _ODD * len(first):
        paired = _around_a_gap(first, second, small, large)
    else:
        paired = first
    return (
        None if paired is None else LogPair(small, large, tuple(zip(paired, second, strict=True)), large_log)
    )


def _odd(first: Sequence[int], second: Sequence[int], small: int, large: int) -> int:
    return sum(not _may_be(before, after, small, large) for before, after in zip(first, second, strict=True))


def _may_be(before: int, after: int, small: int, large: int) -> bool:
    """The same tensor at two batches: at most with the square."""
    return before <= after and after * small * small <= before * large * large


def _around_a_gap(first: list[int], second: list[int], small: int, large: int) -> list[int] | None:
    """The first with as many as the second, where one of them made some more at one place: a library that starts, say. Those stay as they are."""
    least = min(len(first), len(second))
    if abs(len(first) - len(second)) > max(8, _ODD * least):
        return None
    front = next((at for at in range(least) if not _may_be(first[at], second[at], small, large)), least)
    rest = least - front
    for behind in range(1, rest + 1):
        if not _may_be(first[-behind], second[-behind], small, large):
            return None
    kept = first[len(first) - rest :] if rest else []
    return [*first[:front], *second[front : len(second) - rest], *kept]


def _allocations(log: Events) -> list[int]:
    return [size for name, size in log if name > 0]
