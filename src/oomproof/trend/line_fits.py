"""Lines through points, how well they describe them, and how sure their slope is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf, log, sqrt

from oomproof.records import dataclass

Point = tuple[float, float]
SHORTEST = 8  # points of a piece that is one line
SURE = 2.6  # standard errors: that it grows at all
CURVED = 6.0  # how much better a curve, or two lines, must describe it (BIC)


@dataclass(frozen=True, slots=True)
class Line:
    slope: float
    centre: float  # the mean time
    residuals: tuple[float, ...]


def fit(points: Sequence[Point]) -> Line:
    """Least squares."""
    count = len(points)
    centre = sum(t for t, _ in points) / count
    level = sum(value for _, value in points) / count
    spread = sum((t - centre) ** 2 for t, _ in points)
    steep = sum((t - centre) * (value - level) for t, value in points) / spread if spread > 0 else 0.0
    residuals = tuple(value - level - steep * (t - centre) for t, value in points)
    return Line(steep, centre, residuals)


def sum_of_squares(values: Sequence[float]) -> float:
    return sum(value * value for value in values)


def grain_of(floors: Sequence[Point]) -> float:
    """What no description needs to be better than: memory comes in pages, arenas and batches."""
    return max(1 << 20, 0.0005 * max(value for _, value in floors))


def description(squares: float, count: int, parameters: float, grain: float) -> float:
    """BIC: the smaller, the better it describes the points for what it takes to say."""
    return count * log(squares / count + grain * grain) + parameters * log(count)


def inflation(residuals: Sequence[float]) -> float:
    """By how much errors that resemble their neighbours make a standard error too small."""
    count, power = len(residuals), sum_of_squares(residuals)
    if count < 4 or power <= 0:
        return 1.0
    alike = sum(a * b for a, b in pairwise(residuals)) / power
    alike = min(0.95, max(0.0, alike + (2 + 4 * max(0.0, alike)) / count))  # a fitted line hides some of it
    return sqrt((1 + alike) / (1 - alike))


def slope_error(points: Sequence[Point], line: Line) -> float:
    """The standard error of the slope."""
    spread = sum((t - line.centre) ** 2 for t, _ in points)
    grain = grain_of(points) / 4
    variance = sum_of_squares(line.residuals) / max(1, len(points) - 2) + grain * grain
    return sqrt(variance / spread) * inflation(line.residuals) if spread > 0 else inf
