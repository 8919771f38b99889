"""The log of allocations that another batch would make, from the logs of two: each tensor has its own line in the batch. Pure."""

from __future__ import annotations

from oomproof.records import dataclass
from oomproof.sizing.smallest_capacity import Events

_LEAST_SQUARE = 16  # bytes: below that a ratio says nothing
_ODD = 0.02  # of the tensors: as many may have become smaller with the batch (workspaces of another kernel)


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
    if small >= large or not first or len(first) != len(second):
        return None
    shrunk = sum(before > after for before, after in zip(first, second, strict=True))
    if shrunk > _ODD * len(first):
        return None
    return LogPair(small, large, tuple(zip(first, second, strict=True)), large_log)


def _allocations(log: Events) -> list[int]:
    return [size for name, size in log if name > 0]
