"""How fast memory grows, and when it will be full."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

_SPACING = 0.02  # seconds between kept points
_WINDOW = 16.0  # seconds of history


class Growth:
    """Bytes per second of one series, over a blink and over a while."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def add(self, t: float, value: int) -> None:
        points = self._points
        if points and t - points[-1][0] < _SPACING:
            return
        points.append((t, value))
        while t - points[0][0] > _WINDOW:
            points.popleft()

    def rate(self, window: float) -> float:
        """Mean growth over the last ``window`` seconds; over what there is when history is shorter."""
        points = self._points
        if len(points) < 2:
            return 0.0
        last_t, last_value = points[-1]
        first_t, first_value = next(
            (point for point in reversed(points) if last_t - point[0] >= window), points[0]
        )
        elapsed = last_t - first_t
        return (last_value - first_value) / elapsed if elapsed > 0 else 0.0

    def sustained(self) -> float:
        """Growth that has lasted: the smallest over 2, 5 and 15 s, and nothing before 5 s are seen.

        A model that loads at 2 GB/s is a burst that ends by itself; a leak grows in every window.
        """
        points = self._points
        if len(points) < 2 or points[-1][0] - points[0][0] < 5.0:
            return 0.0
        return max(0.0, min(self.rate(2.0), self.rate(5.0), self.rate(15.0)))


def floors(samples: Sequence[tuple[float, int]], period: float) -> list[tuple[float, int]]:
    """The lowest point of every period: a leak lifts the floors, a sawtooth does not."""
    lowest: dict[int, tuple[float, int]] = {}
    for t, value in samples:
        slot = int(t // period)
        if slot not in lowest or value < lowest[slot][1]:
            lowest[slot] = (t, value)
    return [lowest[slot] for slot in sorted(lowest)]


def slope(points: Sequence[tuple[float, int]]) -> float:
    """Theil–Sen: the median of all pairwise slopes; one outlier does not move it."""
    slopes = sorted(
        (later - earlier) / (t2 - t1)
        for index, (t1, earlier) in enumerate(points)
        for t2, later in points[index + 1 :]
        if t2 > t1
    )
    # the lower median; the statistics module would bring decimal and random into the guard
    return slopes[(len(slopes) - 1) // 2] if slopes else 0.0


def time_to_full(samples: Sequence[tuple[float, int]], room: int) -> float | None:
    """Seconds until growth that has shown itself over the samples fills ``room``; None when it is no trend.

    It must rise in most periods, by more than noise, and not have flattened in the second half.
    """
    if len(samples) < 8:
        return None
    span = samples[-1][0] - samples[0][0]
    points = floors(samples, max(1.0, span / 12))
    if len(points) < 6:
        return None
    rises = sum(later > earlier for (_, earlier), (_, later) in pairwise(points))
    if rises < 0.75 * (len(points) - 1):
        return None
    half = len(points) // 2
    whole, recent = slope(points), slope(points[half:])
    if whole <= 0 or recent < whole / 3:  # flattening: a plateau is in sight
        return None
    return room / min(whole, recent) if recent > 0 else None
