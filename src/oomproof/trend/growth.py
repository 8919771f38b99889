"""How fast memory grows, and when it will be full."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf

_SPACING = 0.02  # seconds between kept points
_WINDOW = 16.0  # seconds of history
_STEADY_SHARE = 256  # of what is held: noise
# Seconds in which a leak must have grown, by the highest and the lowest of each second.
_SHORT, _LONG, _LONGEST = 15.0, 60.0, 600.0
_STEPS = 2  # in each third of such a window: what rises and falls within a step is no growth
_SEEN = 9.0  # seconds before growth can be called lasting
# less than a thousandth of what is held, or a tenth of the breath of its steps, is noise
_NOISE, _BREATH = 1000, 10
# The first steps make the optimizer's state and fill the allocator and the loaders' queues.
_FIRST_STEPS, _FIRST_SECONDS = 5, 5.0
_LONGEST_LOAD = 600.0  # seconds; a program may use torch for ever without a step
LONGEST_PIN = 120.0  # seconds; 8 GiB take two (measured)
_WITHOUT_STEPS = 60.0  # seconds of evaluating or generating, of a program that makes no steps


def mean_rate(points: Sequence[tuple[float, float]]) -> float:
    """Bytes per second from the first point to the last; 0 where no time lies between them."""
    if len(points) < 2 or points[-1][0] <= points[0][0]:
        return 0.0
    return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])


class Growth:
    """Bytes per second of one series, over a blink and over a while."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._values: list[int] = []

    def add(self, t: float, value: int) -> None:
        times = self._times
        if times and t - times[-1] < _SPACING:
            return
        times.append(t)
        self._values.append(value)
        if t - times[0] > _WINDOW + 2.0:  # not at each point
            old = bisect_left(times, t - _WINDOW) - 1  # the last one before it tells that the window is full
            del times[:old], self._values[:old]

    def _since(self, window: float) -> int:
        """Index of the last point that is ``window`` seconds old; the oldest within the history when none is."""
        times = self._times
        last = times[-1]
        oldest = 0 if last - times[0] <= _WINDOW else bisect_left(times, last - _WINDOW)
        at = bisect_right(times, last - window) - 1
        while at + 1 < len(times) and last - times[at + 1] >= window:  # by the width of a rounding
            at += 1
        while at >= 0 and last - times[at] < window:
            at -= 1
        return max(at, oldest)

    def rate(self, window: float) -> float:
        """Mean growth over the last ``window`` seconds; over what there is when history is shorter."""
        times, values = self._times, self._values
        if len(times) < 2:
            return 0.0
        at = self._since(window)
        elapsed = times[-1] - times[at]
        return (values[-1] - values[at]) / elapsed if elapsed > 0 else 0.0

    def is_still(self) -> bool:
        """No growth over a blink, two and fifteen seconds."""
        if not self._times or self._times[-1] - self._times[0] < 15.0:
            return False
        return self.rate(0.3) <= 0 and self.rate(2.0) <= 0 and self.rate(15.0) <= 0

    def sustained(self) -> float:
        """Growth that has lasted: the smallest over 2, 5 and 15 s, and nothing before 5 s are seen.

        A model that loads at 2 GB/s is a burst that ends by itself; a leak grows in every window.
        """
        if len(self._times) < 2 or self._times[-1] - self._times[0] < 5.0:
            return 0.0
        lately = self.rate(2.0)
        return max(0.0, min(lately, self.rate(5.0), self.rate(15.0))) if lately > 0 else 0.0


class Steady:
    """For how long a series has been the same, but for noise."""

    def __init__(self, noise: int) -> None:
        self._noise = noise
        self._value, self._since = 0, inf

    def seconds(self, t: float, value: int) -> float:
        """With each look. A clock that jumped back begins anew."""
        if t < self._since or abs(value - self._value) > max(self._noise, self._value // _STEADY_SHARE):
            self._value, self._since = value, t
        return t - self._since


class NewHighs:
    """How fast a series climbs above all it has been: a tooth of a saw that was as high before is no growth."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._recent: deque[tuple[float, int]] = deque()
        self._highest = 0  # up to the window's begin

    def rate(self, t: float, value: int) -> float:
        """With each look: bytes per second over the window, 0 below an earlier high."""
        recent = self._recent
        while len(recent) > 1 and t - recent[1][0] >= self._window:
            self._highest = max(self._highest, recent.popleft()[1])
        if not recent or t - recent[-1][0] >= _SPACING:
            recent.append((t, value))
        start, first = recent[0]
        return max(0, value - max(self._highest, first)) / (t - start) if t > start else 0.0


class Lasting:
    """Growth that continues: the highest and the lowest of each second must rise together.

    A burst lifts only the highest, a step lifts both but once; a leak lifts both in each third of a window.
    """

    def __init__(self) -> None:
        self._seconds: deque[tuple[float, int, int]] = deque()  # (start, lowest, highest)

    def clear(self) -> None:
        self._seconds.clear()

    def add(self, t: float, value: int) -> None:
        seconds = self._seconds
        if seconds and t - seconds[-1][0] < 1.0:
            start, lowest, highest = seconds[-1]
            seconds[-1] = (start, min(lowest, value), max(highest, value))
            return
        seconds.append((t, value, value))
        while t - seconds[0][0] > _LONGEST:
            seconds.popleft()

    def highest(self, window: float) -> int:
        """Of the last ``window`` seconds; 0 before the first look."""
        highest = 0
        for start, _, top in reversed(self._seconds):
            if self._seconds[-1][0] - start > window:
                break
            highest = max(highest, top)
        return highest

    def rate(self, step_seconds: float = 0.0) -> float:
        """Bytes per second; 0 when it does not last. ``step_seconds``: how long a step of the job takes."""
        seconds = self._seconds
        long = max(_LONG, 3 * _STEPS * step_seconds)
        if len(seconds) < 6 or seconds[-1][0] - seconds[0][0] < _SEEN:
            return 0.0
        short, rises, goes_on = self._thirds(_SHORT)
        if short <= 0 or not goes_on:
            return 0.0
        if rises and 3 * _STEPS * step_seconds <= _SHORT:
            return short
        if seconds[-1][0] - seconds[0][0] < 3 * _STEPS * step_seconds:
            return 0.0
        whole, rises, _ = self._thirds(long)  # stairs and drips, which a short window misses
        return max(0.0, min(short, whole)) if rises else 0.0

    def _thirds(self, window: float) -> tuple[float, bool, bool]:
        """Growth from the window's first third to its last; whether each is above the one before, and the last."""
        seconds = self._seconds
        now = seconds[-1][0]
        span = min(window, now - seconds[0][0])
        thirds: list[list[tuple[int, int]]] = [[], [], []]
        for start, lowest, highest in reversed(seconds):
            age = now - start
            if age > span:
                break
            thirds[2 - min(2, int(3 * age / span))].append((lowest, highest))
        if not all(thirds):
            return 0.0, False, False
        lows = [min(lowest for lowest, _ in third) for third in thirds]
        tops = [max(highest for _, highest in third) for third in thirds]
        growth = min(lows[2] - lows[0], tops[2] - tops[0]) / (span * 2 / 3)
        breath = max(top - low for low, top in zip(lows, tops, strict=True))
        noise = max(tops[0] / _NOISE, breath / _BREATH)
        rises = all(later - earlier > noise for series in (lows, tops) for earlier, later in pairwise(series))
        return growth, rises, tops[2] - tops[1] > noise


class WarmUp:
    """Loading and the first steps, by what the job tells of itself: growth there is no trend."""

    def __init__(self) -> None:
        self.phase = ""
        self._told_at = self._noted_at = self._trains_since = 0.0
        self._step: int | None = None
        self._first: tuple[float, int] | None = None  # the first step that was told, and when
        self._pins_since: float | None = None

    def pins(self, is_pinning: bool, t: float) -> None:
        """Host memory for the card is being pinned: as much growth as was asked for, and no more."""
        self._pins_since = t if is_pinning else None

    def note(self, phase: str, step: int | None, t: float) -> None:
        if not self.phase:
            self._told_at = t
        if phase != "load" and not self._trains_since:
            self._trains_since = t
        if step is not None:
            if self._first is None or self._step is None or step < self._step:  # or another training begins
                self._first = (t, step)
            self._step = step
        self.phase, self._noted_at = phase, t

    def is_over(self, t: float) -> bool:
        """True too for a job that tells nothing."""
        return t >= self.over_at()

    def over_at(self) -> float:
        """From when on it is over, if nothing else is told."""
        if self._pins_since is not None:
            return self._pins_since + LONGEST_PIN
        if not self.phase:
            return -inf
        if self._first is not None and self._step is not None:
            if self.phase == "load":
                return self._noted_at + _LONGEST_LOAD
            begun, first = self._first
            return begun + (_FIRST_SECONDS if self._step - first >= _FIRST_STEPS else _LONGEST_LOAD)
        longest = self._told_at + _LONGEST_LOAD
        return min(self._trains_since + _WITHOUT_STEPS, longest) if self._trains_since else longest

    def step_seconds(self, t: float) -> float:
        """How long a step takes; 0 where none was told."""
        if self._first is None or self._step is None or self._step <= self._first[1]:
            return 0.0
        return (t - self._first[0]) / (self._step - self._first[1])

    def counts(self, t: float) -> bool:
        """Whether what is held now belongs into a forecast: of a training, only what it holds while it trains."""
        return self.is_over(t) and (self._first is None or self.phase == "train")


def floors(samples: Sequence[tuple[float, int]], period: float) -> list[tuple[float, int]]:
    """The lowest point of every period: a leak lifts the floors, a sawtooth does not."""
    lowest: dict[int, tuple[float, int]] = {}
    for t, value in samples:
        slot = int(t // period)
        if slot not in lowest or value < lowest[slot][1]:
            lowest[slot] = (t, value)
    return [lowest[slot] for slot in sorted(lowest)]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Theil–Sen: the median of all pairwise slopes; one outlier does not move it."""
    slopes = sorted(
        (later - earlier) / (t2 - t1)
        for index, (t1, earlier) in enumerate(points)
        for t2, later in points[index + 1 :]
        if t2 > t1
    )
    # the lower median; the statistics module would bring decimal and random into the guard
    return slopes[(len(slopes) - 1) // 2] if slopes else 0.0


def time_to_full(samples: Sequence[tuple[float, int]], available: int) -> float | None:
    """Seconds until growth that has shown itself over the samples fills ``available``; None when it is no trend."""
    rate = lasting_rate(samples)
    return available / rate if rate is not None else None


def lasting_rate(samples: Sequence[tuple[float, int]]) -> float | None:
    """Bytes per second of growth that has shown itself over minutes; None when it is no trend.

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
    return min(whole, recent) if recent > 0 else None


LOOK_AHEAD = 600.0  # seconds of growth that a run without a known need has reserved
_FAR = 10.0  # nobody looks further ahead than this many times as far as was looked back
_SHORTEST = 3.0  # seconds of samples before growth means anything


def expected_growth(samples: Iterable[tuple[float, int]], shortest: float = _SHORTEST) -> int:
    """Bytes that the growth of these (time, bytes) samples would bring, as far ahead as they carry.

    Growth is what went on: a model that was loaded and now sits there has none, whatever it did before.
    """
    points = list(samples)
    if len(points) < 2:
        return 0
    seconds = points[-1][0] - points[0][0]
    if seconds < shortest:
        return 0
    half = next(number for number, point in enumerate(points) if point[0] >= points[0][0] + seconds / 2)
    rate = mean_rate(points)
    if points[half][0] < points[-1][0]:
        rate = min(rate, mean_rate(points[half:]))
    return _ahead(rate, seconds)


def expected_lift(tops: Sequence[tuple[float, int]]) -> int:
    """The same for the tops of a phase's last visits, which an outlier must not move; two tell nothing."""
    return _ahead(slope(tops), tops[-1][0] - tops[0][0]) if len(tops) >= 3 else 0


def _ahead(rate: float, seconds: float) -> int:
    return max(0, int(rate * min(LOOK_AHEAD, _FAR * seconds)))
