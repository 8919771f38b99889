"""The largest batch that fits, in few looks: what a batch needs is the largest of several lines, one per phase, so lines are drawn through looks near the answer. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

from oomproof.errors import OomproofError
from oomproof.records import dataclass

Need = Callable[[int], int | None]
Tell = Callable[[int, int | None], None]
_UNBOUNDED = 1 << 24  # no batch is larger, and no array has as many rows of any use
_LEAP = 16  # times the largest batch looked at: a line through two looks says little about what is further
_NEARLY = 1.2  # times what a look needs is the capacity, or more: the border is at most about so far
_CALLS = 60  # against a need that answers at random: more than twice the steps of a bisection of all there is


@dataclass(frozen=True, slots=True)
class Found:
    """``batch``: the largest that fits, 0 where not even the smallest does. ``above``: the next larger one allowed, which does not
    fit; None where none larger was asked for. ``seen``: every batch looked at, in that order, and the bytes it needs; None: more than the
    capacity, by how much is not known."""

    batch: int
    above: int | None
    seen: Mapping[int, int | None]
    exact: bool = True  # both neighbours were looked at

    @property
    def need(self) -> int | None:
        return self.seen.get(self.batch)

    def at(self, batch: int) -> int | None:
        """Bytes of any batch: as seen, or on the line through its two nearest looks; None where fewer than two are known."""
        if (known := self.seen.get(batch)) is not None:
            return known
        points = _points(self.seen)
        if len(points) < 2:
            return None
        return round(_value(*_around(points, batch), batch))


def largest_batch(
    need: Need,
    capacity: int,
    *,
    start: int = 8,
    most: int | None = None,
    candidates: Sequence[int] | None = None,
    calls: int = _CALLS,
    tell: Tell = lambda batch, need: None,
) -> Found:
    """``need(batch)``: the bytes it takes, or None for more than the capacity by an unknown amount. Taken to grow with the batch.
    ``candidates``: the only batches allowed, else all up to ``most``. ``calls``: after so many looks the best so far is the answer."""
    sizes = allowed_sizes(most, candidates)
    seen: dict[int, int | None] = {}
    low, high = -1, len(sizes)  # indexes: the largest that fits, the smallest that does not
    widths: list[int] = []  # of what is left to look at, once its upper end is known
    while high - low > 1 and len(seen) < calls:
        at = _next(sizes, low, high, capacity, start, seen, stuck=_is_stuck(widths))
        batch = sizes[at]
        seen[batch] = need(batch)
        tell(batch, seen[batch])
        if _fits(seen[batch], capacity):
            low = at
        else:
            high = at
        if high < len(sizes):
            widths.append(high - low)
    above = sizes[high] if high < len(sizes) else None
    return Found(sizes[low] if low >= 0 else 0, above, seen, high - low == 1)


def allowed_sizes(most: int | None, candidates: Sequence[int] | None) -> Sequence[int]:
    """Ascending."""
    if candidates is None:
        sizes: Sequence[int] = range(1, (most or _UNBOUNDED) + 1)
    else:
        sizes = sorted({size for size in candidates if most is None or size <= most})
    if not sizes or sizes[0] < 1:
        raise OomproofError("there is no batch to try", "a batch is a whole number from 1 on")
    return sizes


def _fits(need: int | None, capacity: int) -> bool:
    return need is not None and need <= capacity


def _next(
    sizes: Sequence[int],
    low: int,
    high: int,
    capacity: int,
    start: int,
    seen: Mapping[int, int | None],
    *,
    stuck: bool,
) -> int:
    """The index to look at, strictly between what fits and what does not."""
    if not seen:
        return _index(sizes, start, low, high)
    if high < len(sizes) and stuck:
        return (low + high) // 2
    wanted = _estimate(sizes, low, high, capacity, seen)
    if wanted is None:
        return (low + high) // 2 if high < len(sizes) else _index(sizes, 2 * sizes[low], low, high)
    return _index(sizes, wanted, low, high)


def _index(sizes: Sequence[int], batch: float, low: int, high: int) -> int:
    """Of the largest size up to ``batch``; where that was looked at, its neighbour: a look proves or moves the border."""
    at = bisect_right(sizes, min(batch, sizes[-1])) - 1
    return min(max(at, low + 1), high - 1)


def _estimate(
    sizes: Sequence[int], low: int, high: int, capacity: int, seen: Mapping[int, int | None]
) -> float | None:
    """The batch at which the need would be the capacity; None where the looks so far do not tell."""
    if high < len(sizes) and seen[sizes[high]] is None:
        return None  # how far above is not known
    points = _points(seen)
    fitting = [point for point in points if point[1] <= capacity]
    above = [point for point in points if point[1] > capacity]
    if len(points) == 1:
        batch, need = points[0]
        if above:
            # the fixed part is not known yet: well below the proportional answer
            return batch * capacity / need / 2
        return min(batch * max(2.0, capacity / max(need, 1)), batch * _LEAP)
    if fitting and above:
        return _bend(points, len(fitting), capacity) or _crossing(fitting[-1], above[0], capacity)
    if above:
        return max(0.0, _crossing(above[0], above[1], capacity) or 0.0)
    if len(fitting) < 2:
        return None
    before, largest = fitting[-2][0], fitting[-1][0]
    reached = _crossing(fitting[-2], fitting[-1], capacity) or _crossing(fitting[0], fitting[-1], capacity)
    if reached is None:
        return largest * _LEAP
    if len(points) > 3:  # the lines have fallen short so far: a step, or noise
        further = largest + 2 * (largest - before)
        # ... by little: what is left is not far, and a look far beyond it would take long for nothing
        reached = max(
            reached, min(further, largest * _NEARLY) if fitting[-1][1] * _NEARLY >= capacity else further
        )
    return min(reached, largest * _LEAP)


def _bend(points: list[tuple[int, int]], first_above: int, capacity: int) -> float | None:
    """Where the parabola through the three looks next to the border is at the capacity, between the two beside it: a need that grows
    with the square of the batch. None where that is not told."""
    if len(points) < 3:
        return None
    low, high = points[first_above - 1], points[first_above]
    third = min(
        (point for point in points if point not in (low, high)),
        key=lambda point: min(abs(point[0] - low[0]), abs(point[0] - high[0])),
    )
    slope = (high[1] - low[1]) / (high[0] - low[0])
    curve = ((third[1] - high[1]) / (third[0] - high[0]) - slope) / (third[0] - low[0])
    # need(x) = low + slope (x - low) + curve (x - low) (x - high): two steps of the secant's correction are exact enough
    reached = low[0] + (capacity - low[1]) / slope
    for _ in range(4):
        gradient = slope + curve * (2 * reached - low[0] - high[0])
        if gradient <= 0:
            return None
        off = low[1] + (reached - low[0]) * (slope + curve * (reached - high[0])) - capacity
        reached -= off / gradient
    return reached if low[0] <= reached <= high[0] else None


def _points(seen: Mapping[int, int | None]) -> list[tuple[int, int]]:
    return sorted((batch, need) for batch, need in seen.items() if need is not None)


def _crossing(first: tuple[int, int], second: tuple[int, int], capacity: int) -> float | None:
    """Where the line through both is at the capacity; None where it does not rise."""
    rise = second[1] - first[1]
    if rise <= 0:
        return None
    return first[0] + (capacity - first[1]) * (second[0] - first[0]) / rise


def _around(points: list[tuple[int, int]], batch: int) -> tuple[tuple[int, int], tuple[int, int]]:
    at = min(max(bisect_right(points, (batch, 0)), 1), len(points) - 1)
    return points[at - 1], points[at]


def _value(first: tuple[int, int], second: tuple[int, int], batch: int) -> float:
    return first[1] + (second[1] - first[1]) * (batch - first[0]) / (second[0] - first[0])


def _is_stuck(widths: Sequence[int]) -> bool:
    """Two looks have not halved what lies between, the last two or the last six on average: a kink, a step, or noise. Then the
    middle is looked at."""
    creeps = len(widths) > 6 and widths[-1] * 8 > widths[-7]
    return creeps or (len(widths) > 2 and widths[-1] * 2 > widths[-3])
