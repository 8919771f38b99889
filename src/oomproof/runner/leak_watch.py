"""Tells, while a job runs, that its memory grows without end and when it will be full: hours before the guard must act."""

from __future__ import annotations

from oomproof.units import format_duration, format_rate

_BINS = 720  # of the whole run; each is a point twice: its lowest and its highest
_FIRST_WIDTH = 5.0  # seconds of one, doubled as the run grows longer
_LEAST_SEEN = 600.0  # seconds before a trend over hours means anything
_EVERY, _SHARE = 60.0, 0.05  # an analysis takes 12 ms: seconds between two, or a share of what was seen
_FAR = 10.0  # nobody looks further ahead than this many times as far as was looked back


class LeakWatch:
    def __init__(self) -> None:
        self._width = _FIRST_WIDTH
        self._bins: list[tuple[float, int, int]] = []  # (begin, lowest, highest)
        self._next, self._use = 0.0, 0
        self._told: float | None = None  # the time to full that was told last

    def note(self, t: float, use: int) -> None:
        bins, self._use = self._bins, use
        if bins and t - bins[-1][0] < self._width:
            begin, lowest, highest = bins[-1]
            bins[-1] = (begin, min(lowest, use), max(highest, use))
            return
        bins.append((t, use, use))
        if len(bins) > _BINS:
            self._width *= 2
            merged: list[tuple[float, int, int]] = []
            for begin, lowest, highest in bins:
                if merged and begin - merged[-1][0] < self._width:
                    first, low, high = merged[-1]
                    merged[-1] = (first, min(low, lowest), max(high, highest))
                else:
                    merged.append((begin, lowest, highest))
            self._bins = merged

    def look(self, t: float, headroom: int) -> str | None:
        """What to tell the user; None when there is nothing new. ``headroom``: bytes the job can still take."""
        seen = t - self._bins[0][0] if self._bins else 0.0
        if seen < _LEAST_SEEN or t < self._next:
            return None
        self._next = t + max(_EVERY, _SHARE * seen)
        # not before the first time: most runs are over by then
        from oomproof.trend.leaks import GROWING, slice_points, trend_of

        slices = (slice_points(begin, self._width, lowest, highest) for begin, lowest, highest in self._bins)
        points = [point for two in slices for point in two]
        trend = trend_of(points, float(self._use + headroom))
        full = trend.full_in
        if trend.kind != GROWING or trend.rate is None or full is None:
            self._told = None  # it ended by itself: another is told anew
            return None
        if full.expected > _FAR * seen:
            return None
        if self._told is not None and full.expected > self._told / 2:
            return None
        self._told = full.expected
        when = f"{format_duration(full.low)} to {format_duration(full.high)}"
        if full.high > 100 * full.expected:  # its slowest may be none at all
            when = f"{format_duration(full.low)} at the earliest"
        since = format_duration(t - trend.since) if trend.since is not None else format_duration(seen)
        rate = format_rate(trend.rate.expected)
        return f"memory has grown by {rate} for {since}: at this rate it is full in {when} (oomproof trend tells more)"
