"""Suspects, while a job runs, that memory grows without end: hours before the guard must act. Host memory, or one card's.

Whether it is so, and when it will be full, `oomproof trend` says: asked then, in a process of its own, it has the phases, the
steps and the output, and tells the same figures to everybody."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

_BINS = 720  # of the whole run; each is a point twice: its lowest and its highest
_FIRST_WIDTH = 5.0  # seconds of one, doubled as the run grows longer
_LEAST_SEEN = 600.0  # seconds before a trend over hours means anything
_EVERY, _SHARE = 60.0, 0.05  # an analysis takes 12 ms: seconds between two, or a share of what was seen
_DENIED = 3.0  # times that, after it was asked in vain
_FAR = 10.0  # nobody looks further ahead than this many times as far as was looked back
_LONGEST = 60.0  # seconds for an answer: a recording of a week takes two


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

    def suspects(self, t: float, headroom: int) -> bool:
        """Whether to ask for the trend: growth that is new, or as near again as it was told. ``headroom``: bytes the job can
        still take."""
        seen = t - self._bins[0][0] if self._bins else 0.0
        if seen < _LEAST_SEEN or t < self._next:
            return False
        self._next = t + max(_EVERY, _SHARE * seen)
        # not before the first time: most runs are over by then
        from oomproof.trend.leaks import GROWING, slice_points, trend_of

        slices = (slice_points(begin, self._width, lowest, highest) for begin, lowest, highest in self._bins)
        points = [point for two in slices for point in two]
        trend = trend_of(points, float(self._use + headroom))
        full = trend.full_in
        if trend.kind != GROWING or full is None:
            self._told = None  # it ended by itself: another is told anew
            return False
        if full.expected > _FAR * seen or (self._told is not None and full.expected > self._told / 2):
            return False
        self._told = full.expected
        return True

    def was_wrong(self, t: float) -> None:
        """The trend, which knows more, sees no growth yet: asked again, but not soon."""
        if self._told is not None and self._bins:
            self._told = None
            self._next = t + _DENIED * max(_EVERY, _SHARE * (t - self._bins[0][0]))

    @property
    def is_told(self) -> bool:
        return self._told is not None


class TrendQuestion:
    """One question to `oomproof trend` at a time, never waited for."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._asked: subprocess.Popen[bytes] | None = None
        self._deadline = 0.0
        self._failed = False  # no process could be had for it: answered, with nothing

    def ask(self, t: float) -> None:
        import subprocess  # a run without growth never needs it

        from oomproof.own_command import OWN_COMMAND

        if self._asked is not None:
            return
        try:
            self._asked = subprocess.Popen(
                [*OWN_COMMAND, "trend", self._run_id, "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the job
            )
            self._deadline = t + _LONGEST
        except OSError:  # no memory, no process number: growth is told all the same
            self._failed = True

    def answer(self, t: float) -> dict[str, Any] | None:
        """The trend as JSON, once; None before it is there; empty where none could be had."""
        if self._failed:
            self._failed = False
            return {}
        asked = self._asked
        if asked is None:
            return None
        if asked.poll() is None:
            if t <= self._deadline:
                return None
            self.close()
            return {}
        self._asked = None
        try:
            text = asked.stdout.read() if asked.stdout is not None else b""
            value = json.loads(text)
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def close(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.kill()
            asked.wait()
