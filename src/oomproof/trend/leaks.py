"""Whether memory over hours is a leak, a plateau or noise, and when it will be full.

A leak lifts the floors: the lowest of each period, an epoch or what repeats itself in the series. The last piece of the
floors that one line describes is what counts, so that loading and an earlier, quieter time do not. The job dies at its tops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, hypot, inf, sqrt

from oomproof.records import dataclass, replace
from oomproof.trend.growth import slope
from oomproof.trend.line_fits import (
    CURVED,
    SHORTEST,
    SURE,
    Line,
    Point,
    bend_of,
    description,
    fit,
    grain_of,
    inflation,
    slope_error,
    sum_of_squares,
)

FLAT, GROWING, SLOWING, UNKNOWN = "flat", "growing", "slowing", "too short to tell"
STEPS = "steps"  # of a run: it grows in one phase only, by as much each time it is visited
GROWS = (GROWING, SLOWING, STEPS)


_BINS = 720  # of the whole time; more than this tells nothing about hours
_WINDOWS = 60  # periods where nothing repeats itself
_LEAST_WINDOWS = 4  # of a series
_REPEATS, _AS_HIGH = 0.3, 0.75  # autocorrelation: below, it is no period; of the highest, another as good
_BREAK = 3.0  # parameters that a second line counts for (BIC)
_LIKELY = 1.28  # standard errors: 80 % of the forecasts
_LOST = 0.5  # of a rise: what went again by so much was no growth
_SWINGS = 1.7  # it must have risen by so many times what came and went by itself
# of the limit or of what is held; less is no leak, whatever its p-value
_LEAST_SHARE, _LEAST = 0.002, 8 << 20
_GAP = 0.05  # of the whole time: a longer one without samples is no time
_FEW_STEPS = 0.8  # of the rise
_LATE = 0.1  # of what is held: a smaller rise at the very end is not worth a word
_NARROWEST = 0.015  # of a rate: no forecast is better
# share of the tops that are below, for the early and the late end; of a period
_TOP, _LATE_TOP, _SLACK = 0.95, 0.8, 0.25
_AS_STEEP, _SMALL_STEP = 0.2, 0.05  # of a rate; of the whole rise: two pieces of one line
_PARTS, _PART = 4, 4  # of a piece, whose rates are compared; windows of each
_NOISE = 1.5  # times what noise explains of their differences


@dataclass(frozen=True, slots=True)
class Range:
    low: float
    expected: float
    high: float


@dataclass(frozen=True, slots=True)
class Trend:
    kind: str
    rate: Range | None  # bytes per second; of what slows down, its rate at the end
    since: float | None  # when this growth began
    grown: float  # bytes since then
    held: float  # the floor at the end
    top: float  # the highest of its last periods
    full_in: Range | None  # seconds from the last sample to the limit; None: not by this growth
    plateau: float | None  # of what slows down: the top it would level off at
    period: float | None  # seconds after which it repeats itself


@dataclass(frozen=True, slots=True)
class _Window:
    low: Point
    high: Point


def slice_points(begin: float, width: float, lowest: float, highest: float) -> list[Point]:
    """A slice of time of which only these two are known, as samples."""
    return [(begin + width / 3, float(lowest)), (begin + width * 2 / 3, float(highest))]


def trend_of(samples: Sequence[Point], limit: float | None = None, period: float | None = None) -> Trend:
    """``samples``: (seconds, bytes) in the order of time. ``period``: seconds, where it is known (an epoch)."""
    samples, gaps = _without_gaps(samples)
    trend = _trend(samples, limit, period)
    if trend.since is None or not gaps:
        return trend
    return replace(trend, since=trend.since - sum(length for end, length in gaps if trend.since < end))


def _without_gaps(samples: Sequence[Point]) -> tuple[Sequence[Point], list[tuple[float, float]]]:
    """(The samples, those before a gap moved up to it; where each gap ended and how long it was). A machine that slept, or a
    job that was paused, did not grow meanwhile."""
    steps = [later - earlier for (earlier, _), (later, _) in pairwise(samples)]
    if len(steps) < _LEAST_WINDOWS:
        return samples, []
    usual = sorted(steps)[int(0.9 * (len(steps) - 1))]  # the two points of a slice stand close together
    long = max(10 * usual, _GAP * (samples[-1][0] - samples[0][0]))
    gaps = [(samples[at + 1][0], step - usual) for at, step in enumerate(steps) if step > long]
    if not gaps:
        return samples, []
    moved, behind = [], sum(length for _, length in gaps)
    ends = iter([*(end for end, _ in gaps), inf])
    lengths = iter(length for _, length in gaps)
    end = next(ends)
    for t, value in samples:
        if t >= end:
            behind -= next(lengths)
            end = next(ends)
        moved.append((t + behind, value))
    return moved, gaps


def _trend(samples: Sequence[Point], limit: float | None, period: float | None) -> Trend:
    bins = _binned(samples)
    if period is None or not samples or 2 * period > samples[-1][0] - samples[0][0]:
        period = _period(bins)
    windows = _windows(bins, period)
    if not windows:
        return Trend(UNKNOWN, None, None, 0.0, 0.0, 0.0, None, None, period)
    held, top = windows[-1].low[1], max(window.high[1] for window in windows[-3:])

    def unclear(kind: str, since: float | None = None, grown: float = 0.0) -> Trend:
        return Trend(kind, None, since, grown, held, top, None, None, period)

    if period is None and len(windows) < SHORTEST:
        return unclear(UNKNOWN)
    if len(windows) < _LEAST_WINDOWS:
        if period is None or len(bins) < _WINDOWS:
            return unclear(UNKNOWN)
        # what does not grow from minute to minute is flat; what grows by far more than it breathes grows
        shorter = _trend(samples, limit, (samples[-1][0] - samples[0][0]) / _WINDOWS)
        breath = max(window.high[1] - window.low[1] for window in windows)
        if shorter.kind in (GROWING, SLOWING) and shorter.grown > _SWINGS * breath:
            return replace(shorter, period=None)
        return unclear(FLAT if shorter.kind == FLAT else UNKNOWN)
    floors = _without_outliers([window.low for window in windows])
    begin = _last_piece(floors)
    piece = floors[begin:]
    least = max(_LEAST, _LEAST_SHARE * (limit or held))
    line = fit(piece)
    rise = line.slope * (piece[-1][0] - piece[0][0])
    if rise < least or not _is_sure(piece, line) or rise < _SWINGS * _swing(floors, begin, line):
        late = _late_rise(floors)
        if floors[-1][1] - floors[late][1] > max(
            least, _LATE * held, _SWINGS * _comes_and_goes(floors[: late + 1])
        ):
            return unclear(UNKNOWN, floors[late][0], floors[-1][1] - floors[late][1])
        return unclear(FLAT)
    if len(piece) >= 2 * SHORTEST and _in_few_steps(piece):
        return unclear(UNKNOWN, piece[0][0], rise)
    now, held = samples[-1][0], floors[-1][1]  # without the outlier that a job's last moment may be
    curve, rate = bend_of(floors, begin), _rate(piece)
    if curve is not None and curve.rate is None:
        rate = _rate(piece[-max(SHORTEST, len(piece) // 2) :])
        plateau = max(top, curve.plateau + top - held)
        full = _full_in(windows[begin:], rate, limit, now, period)
        if limit is not None and plateau < limit and full is not None:
            full = Range(full.low, inf, inf)
        since, before = floors[curve.begin]
        return Trend(SLOWING, rate, since, max(0.0, held - before), held, top, full, plateau, period)
    if curve is not None and curve.rate is not None:
        begin = max(begin, curve.begin)
        rate = _around(curve.rate, max(curve.error, (rate.high - rate.low) / 2))
    full = _full_in(windows[begin:], rate, limit, now, period)
    grown = max(0.0, held - floors[begin][1])
    return Trend(GROWING, rate, floors[begin][0], grown, held, top, full, None, period)


def _late_rise(floors: Sequence[Point]) -> int:
    """Where the rise at the very end began, if it takes a few windows; else the last of all."""
    at = len(floors) - 1
    while at > 0 and floors[at - 1][1] <= floors[at][1]:
        at -= 1
    return at if len(floors) - at >= _LEAST_WINDOWS else len(floors) - 1


def _in_few_steps(piece: Sequence[Point]) -> bool:
    """Whether two or three jumps are nearly all of the rise: that may be loading, or the first of many."""
    jumps = sorted(later - earlier for (_, earlier), (_, later) in pairwise(piece))
    return sum(jumps[-3:]) > _FEW_STEPS * (piece[-1][1] - piece[0][1])


def _binned(samples: Sequence[Point]) -> list[_Window]:
    """The lowest and the highest of each of equal stretches of time; empty ones are left out."""
    if len(samples) < 2 or samples[-1][0] <= samples[0][0]:
        return [_Window(point, point) for point in samples[:1]]
    begin, width = samples[0][0], (samples[-1][0] - samples[0][0]) / _BINS
    bins: dict[int, list[Point]] = {}
    for point in samples:
        number = min(_BINS - 1, int((point[0] - begin) / width))
        known = bins.get(number)
        if known is None:
            bins[number] = [point, point]
        elif point[1] < known[0][1]:
            known[0] = point
        elif point[1] > known[1][1]:
            known[1] = point
    return [_Window(low, high) for _, (low, high) in sorted(bins.items())]


def _period(bins: Sequence[_Window]) -> float | None:
    """Seconds after which the series resembles itself, by its autocorrelation; None where nothing repeats itself."""
    if len(bins) < 60:
        return None
    points = [((bin.low[0] + bin.high[0]) / 2, (bin.low[1] + bin.high[1]) / 2) for bin in bins]
    values = list(fit(points).residuals)
    power = sum(value * value for value in values)
    if power <= 0:
        return None
    count = len(values)
    alike = []
    for lag in range(count // 3):
        together = sum(a * b for a, b in zip(values, values[lag:], strict=False))
        alike.append(together / power * count / (count - lag))
    dipped = next((lag for lag, value in enumerate(alike) if value < 0), None)
    if dipped is None:
        return None
    tops = [
        lag for lag in range(max(dipped, 4), len(alike) - 1) if alike[lag - 1] <= alike[lag] > alike[lag + 1]
    ]
    highest = max((alike[lag] for lag in tops), default=0.0)
    if highest < _REPEATS:
        return None
    first = next(lag for lag in tops if alike[lag] >= _AS_HIGH * highest)  # twice a period is as good a one
    first = max((lag for lag in tops if lag < 1.25 * first), key=lambda lag: alike[lag])
    return first * (points[-1][0] - points[0][0]) / (count - 1)


def _windows(bins: Sequence[_Window], period: float | None) -> list[_Window]:
    """Of one period each, counted back from the end; the oldest, which is not whole, is left out."""
    if not bins:
        return []
    begin, end = bins[0].low[0], max(bins[-1].low[0], bins[-1].high[0])
    width = period or (end - begin) / _WINDOWS
    if width <= 0:
        return []
    # several periods together where there are many
    width *= max(1, ceil((end - begin) / width / (2 * _WINDOWS)))
    grouped: dict[int, list[_Window]] = {}
    for bin in bins:
        grouped.setdefault(int((end - bin.low[0]) / width), []).append(bin)
    whole = int((end - begin) / width + 1e-6)
    windows = []
    for number in sorted(grouped, reverse=True):
        if number < max(whole, 1):
            inside = grouped[number]
            low = min((bin.low for bin in inside), key=lambda point: point[1])
            windows.append(_Window(low, max((bin.high for bin in inside), key=lambda point: point[1])))
    return windows


def _without_outliers(floors: list[Point]) -> list[Point]:
    """The median of three neighbours: a single window, such as that of a job's last moment, bends no line."""
    if len(floors) < SHORTEST:
        return floors
    values = [value for _, value in floors]
    middle = [sorted(values[at - 1 : at + 2])[1] for at in range(1, len(values) - 1)]
    first, last = sorted(values[:3])[1], sorted(values[-3:])[1]
    first, last = min(first, values[0]), max(last, values[-1])  # a line that rises has its ends there
    return [(t, value) for (t, _), value in zip(floors, [first, *middle, last], strict=True)]


def _last_piece(floors: Sequence[Point]) -> int:
    """Where the last stretch begins that one line describes: by splits that two lines describe much better."""
    begins, grain = [0], grain_of(floors)
    while len(floors) - begins[-1] >= 2 * SHORTEST:
        points = floors[begins[-1] :]
        count = len(points)
        one = description(sum_of_squares(fit(points).residuals), count, 2, grain)
        best, where = inf, 0
        around: tuple[float, ...] = ()
        for cut in range(SHORTEST, count - SHORTEST + 1):
            residuals = fit(points[:cut]).residuals + fit(points[cut:]).residuals
            if (two := description(sum_of_squares(residuals), count, 2 + _BREAK, grain)) < best:
                best, where, around = two, cut, residuals
        # points that resemble each other count for fewer
        if not where or one - best < CURVED * inflation(around) ** 2:
            break
        begins.append(begins[-1] + where)
    while len(begins) > 1 and _is_the_same_line(floors[begins[-2] : begins[-1]], floors[begins[-1] :]):
        begins.pop()
    earlier, begin = begins[-2] if len(begins) > 1 else 0, begins[-1]
    # too short to have a slope of its own: it may be the same line
    if begin and len(floors) - begin < 2 * SHORTEST:
        last, before = fit(floors[begin:]), fit(floors[earlier:begin])
        if 0 < before.slope < 2 * (last.slope + SURE * slope_error(floors[begin:], last)):
            return earlier
    return begin


def _is_the_same_line(before: Sequence[Point], after: Sequence[Point]) -> bool:
    """As steep on both sides of a small step, such as that of a library that was loaded meanwhile."""
    first, second = fit(before), fit(after)
    if not _is_sure(before, first) or not _is_sure(after, second):
        return False
    if abs(first.slope - second.slope) > _AS_STEEP * max(first.slope, second.slope):
        return False
    (t, value), rise = after[0], after[-1][1] - before[0][1]
    (last, held), residual = before[-1], first.residuals[-1]
    step = value - second.residuals[0] - (held - residual + first.slope * (t - last))
    return abs(step) <= _SMALL_STEP * rise


def _is_sure(points: Sequence[Point], line: Line) -> bool:
    return line.slope > SURE * slope_error(points, line)


def _swing(floors: Sequence[Point], begin: int, line: Line) -> float:
    """The largest rise that was no growth: around the line, and before it, where it was lost again. What came in a moment
    and went is another thing than what took as long as this."""
    swing = _comes_and_goes([(0.0, value) for value in line.residuals])
    if not begin:
        return swing
    before = floors[: begin + 1]  # the fall that the piece began with too
    return max(swing, _comes_and_goes(before, (len(floors) - begin) // 3))


def _comes_and_goes(points: Sequence[Point], shortest: int = 0) -> float:
    """The largest rise that was lost again later, of those that took so many windows."""
    lowest_after = [inf] * (len(points) + 1)
    for number in range(len(points) - 1, -1, -1):
        lowest_after[number] = min(points[number][1], lowest_after[number + 1])
    largest, lowest, since = 0.0, inf, 0
    for number, (_, value) in enumerate(points):
        if value < lowest:
            lowest, since = value, number
        if number - since >= shortest:
            rise = value - lowest
            if value - lowest_after[number] >= _LOST * rise:
                largest = max(largest, rise)
    return largest


def _rate(points: Sequence[Point]) -> Range:
    line = fit(points)
    freedom = max(1.0, len(points) / inflation(line.residuals) ** 2 - 2)
    error = hypot(slope_error(points, line), _drift(points))
    return _around(slope(points), _LIKELY * (1 + 1.1 / freedom) * error)  # Student's, about


def _drift(points: Sequence[Point]) -> float:
    """By how much the rate itself changed meanwhile, beyond what noise explains: a busy machine makes fewer steps a second, and
    so it may be later."""
    size = len(points) // _PARTS
    if size < _PART:
        return 0.0
    parts = [
        points[len(points) - size * (number + 1) : len(points) - size * number] for number in range(_PARTS)
    ]
    lines = [fit(part) for part in parts]
    mean = sum(line.slope for line in lines) / _PARTS
    between = sum((line.slope - mean) ** 2 for line in lines) / (_PARTS - 1)
    noise = sum(slope_error(part, line) ** 2 for part, line in zip(parts, lines, strict=True)) / _PARTS
    return sqrt(max(0.0, between - _NOISE * noise))


def _around(rate: float, error: float) -> Range:
    error = max(error, _NARROWEST * rate)
    return Range(max(rate - error, 0.0), rate, rate + error)


def _full_in(
    windows: Sequence[_Window], rate: Range, limit: float | None, now: float, period: float | None
) -> Range | None:
    """Seconds until the tops are at the limit."""
    if limit is None or rate.expected <= 0:
        return None

    def left(bytes_per_second: float, share: float) -> float:
        """Seconds, from the tops as they would stand now: the share of them that is below."""
        tops = sorted(window.high[1] + bytes_per_second * (now - window.high[0]) for window in windows)
        return max(0.0, limit - tops[int(share * (len(tops) - 1))]) / bytes_per_second

    slack = _SLACK * (period or 0.0)
    earliest, expected = left(rate.high, _TOP) - slack, left(rate.expected, 0.9)
    latest = left(rate.low, _LATE_TOP) + slack if rate.low > 0 else inf
    if period:  # it dies at the top of a period
        to_top = windows[-1].high[0] - now
        expected = max(0.0, to_top + period * ceil((expected - to_top) / period - 0.25))
    return Range(max(0.0, min(earliest, expected)), expected, max(expected, latest))
