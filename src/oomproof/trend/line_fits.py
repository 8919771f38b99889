"""Lines through points, how well they describe them, how sure their slope is, and whether they bend."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from math import exp, inf, log, sqrt

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


_OVER = 0.8  # of the span: by then a curve must be over to be told from the line behind it
_SLOWER = 0.6  # of its first third's rate: what still rises faster in its last third is no plateau


@dataclass(frozen=True, slots=True)
class Bend:
    """Growth that bends: towards a plateau, or towards a line that is less steep than its beginning."""

    begin: int
    plateau: float
    rate: float | None  # None: it levels off
    error: float = 0.0


def bend_of(floors: Sequence[Point], begin: int) -> Bend | None:
    """None where no curve describes it much better than a line. Earlier pieces that rose more steeply belong to it."""
    grain, start = grain_of(floors), begin
    last = fit(floors[begin:])
    slack = max(2 * grain, 4 * sqrt(sum_of_squares(last.residuals) / len(last.residuals)))
    while start > 0 and floors[start - 1][1] < floors[start][1] + slack:
        start -= 1
    points = floors[start:]
    count = len(points)
    if count < SHORTEST:
        return None
    straight = fit(points)
    line = description(sum_of_squares(straight.residuals), count, 2, grain)
    span = points[-1][0] - points[0][0]
    _, bend, _, plateau, squares = _best_bend(points, span, with_line=False)
    levels = description(squares, count, 3, grain)
    both_tau, both_bend, both_steep, _, both_squares = _best_bend(points, span, with_line=True)
    both = description(both_squares, count, 4, grain)
    if min(levels, both) > line - CURVED or (bend >= 0 if levels <= both else both_bend >= 0):
        return None
    if both < levels - CURVED and both_steep > 0:
        # it still bends: what it bends towards is a guess, its last piece is not
        if 3 * both_tau > _OVER * span:
            third = max(SHORTEST // 2, count // 3)
            if fit(points[-third:]).slope > _SLOWER * fit(points[:third]).slope:
                return None
            return Bend(start, plateau, None)
        error = sqrt(both_squares / count + grain * grain / 16) / (span * sqrt(count / 12)) * 2
        if both_steep > SURE * error and both_steep * span > 0.1 * (points[-1][1] - points[0][1]):
            # the curved part is over: what is left is the line
            straight_since = bisect_left([t for t, _ in points], points[0][0] + 3 * both_tau)
            return Bend(start + min(straight_since, count - SHORTEST), inf, both_steep, error)
    return Bend(start, plateau, None)


def _best_bend(
    points: Sequence[Point], span: float, with_line: bool
) -> tuple[float, float, float, float, float]:
    """(tau, bend, steep, level, squares) of the curve that fits best: a coarse search, then a fine one."""
    low, high = 0.03, 1.2  # of the span
    for steps in (10, 6, 6):
        ratio = (high / low) ** (1 / steps)
        shares = [low * ratio**number for number in range(steps + 1)]
        fits = [(span * share, *_bent(points, span * share, with_line)) for share in shares]
        best = min(range(len(fits)), key=lambda number: fits[number][-1])
        low, high = shares[max(0, best - 1)], shares[min(steps, best + 1)]
    return fits[best]


def _bent(points: Sequence[Point], tau: float, with_line: bool) -> tuple[float, float, float, float]:
    """Least squares of level + steep·t + bend·exp(-t/tau): (bend, steep, level, squares)."""
    origin = points[0][0]
    scale = points[-1][0] - origin
    rows = [(1.0, exp(-(t - origin) / tau), (t - origin) / scale) for t, _ in points]
    values = [value for _, value in points]
    width = 3 if with_line else 2
    matrix = [[sum(row[i] * row[j] for row in rows) for j in range(width)] for i in range(width)]
    right = [sum(row[i] * value for row, value in zip(rows, values, strict=True)) for i in range(width)]
    solved = _solve(matrix, right)
    if solved is None:
        return 0.0, 0.0, 0.0, inf
    squares = sum(
        (value - sum(factor * part for factor, part in zip(solved, row, strict=False))) ** 2
        for row, value in zip(rows, values, strict=True)
    )
    return solved[1], solved[2] / scale if with_line else 0.0, solved[0], squares


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gauss, with the largest pivot."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda number: abs(rows[number][column]))
        if abs(rows[pivot][column]) < 1e-12:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for number in range(size):
            if number != column:
                factor = rows[number][column] / rows[column][column]
                rows[number] = [a - factor * b for a, b in zip(rows[number], rows[column], strict=True)]
    return [rows[number][size] / rows[number][number] for number in range(size)]
