"""The log of allocations that another batch would make, from the logs of two: each tensor has its own line in the batch. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.records import dataclass
from oomproof.sizing.caching_allocator import Events

_LEAST_SQUARE = 16  # bytes: below that a ratio says nothing
_ODD = 0.08  # of the tensors: as many may be in one log only
_WINDOW, _RUN = 4, 4  # tensors passed over at once, and those behind them that have to go on alike


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
    """None where the two did not make the same tensors: other lengths, another number of steps, quite other kernels."""
    first, second = (_allocations(log) for log in (small_log, large_log))
    if small >= large or not first or not second:
        return None
    paired, unmatched = _aligned(first, second, small, large)
    if unmatched > _ODD * len(second):
        return None
    return LogPair(small, large, tuple(zip(paired, second, strict=True)), large_log)


def _may_be(before: int, after: int, small: int, large: int) -> bool:
    """The same tensor at two batches: at most with the square."""
    return before <= after and after * small * small <= before * large * large


def _aligned(first: Sequence[int], second: Sequence[int], small: int, large: int) -> tuple[list[int], int]:
    """For each tensor of the second log its size in the first, and how many have none there, or are left over. Some are made in one of them only: workspaces of
    sums and convolutions that a small batch does not need, a library that starts. Those stay as they are."""
    paired: list[int] = []
    unmatched = at = index = 0
    while index < len(second):
        skipped = _skipped(first, at, second, index, small, large)
        if skipped is None:
            paired.append(second[index])
            unmatched += 1
            index += 1
            at += 1
            continue
        left, right = skipped
        paired.extend(second[index : index + right])
        unmatched += left + right
        at, index = at + left, index + right
        if index < len(second):
            paired.append(first[at])
            at, index = at + 1, index + 1
    return paired, unmatched + max(0, len(first) - at)


def _skipped(
    first: Sequence[int], at: int, second: Sequence[int], index: int, small: int, large: int
) -> tuple[int, int] | None:
    """How many of each to pass over until both go on alike; the fewest."""
    for total in range(2 * _WINDOW):
        for left in range(max(0, total - _WINDOW), min(total, _WINDOW) + 1):
            if _goes_on(first, at + left, second, index + total - left, small, large, _RUN if total else 1):
                return left, total - left
    return None


def _goes_on(
    first: Sequence[int], at: int, second: Sequence[int], index: int, small: int, large: int, run: int
) -> bool:
    if at >= len(first) or index >= len(second):
        return at >= len(first) and index >= len(second)
    return all(
        _may_be(before, after, small, large)
        for before, after in zip(first[at : at + run], second[index : index + run], strict=False)
    )


def _allocations(log: Events) -> list[int]:
    return [size for name, size in log if name > 0]
