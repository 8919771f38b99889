"""How one job grows: what the guard's facts say about it, from its first look to its last."""

from __future__ import annotations

from collections import deque
from typing import Any

from oomproof.guard.detect_limit import EARLY_SHARE, OUTGROWN
from oomproof.guard.view import Settings
from oomproof.trend import growth
from oomproof.units import MIB

_HISTORY = 600  # points kept for the forecast, one a second: ten minutes
_BLINK = 0.3  # seconds, as for the rate of what the job holds
_LOOK_AGAIN = 0.2  # seconds; near a limit there are a hundred looks a second
_PEAK_WINDOW = 5.0  # seconds, or two steps of the job: its highest point is in there
# A job that fills its limit in twenty seconds would else be asked to stop before the second forecast, never warned.
_FORECAST_EVERY, _FORECAST_EVERY_NEAR = 10.0, 1.0
# A cache or a buffer that fills looks like a leak until it is full: with a limit 5 % above its peak, it ends with a
# twentieth of its growth left to the limit.
_SEEN_LONGER = 20.0
_CALM_AFTER = 60.0  # seconds


class JobGrowth:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.use = growth.Growth()
        self.warm_up = growth.WarmUp()  # told by the agent's thread
        self._steady = growth.Steady(MIB)
        self.is_calm = False  # it has held the same for a minute
        self.time_to_full: float | None = None
        self.is_sure = False  # whether the growth behind ``time_to_full`` will hardly end by itself
        self._charged, self._new_highs = growth.Lasting(), growth.NewHighs(_BLINK)
        self._history: deque[tuple[float, int]] = deque(maxlen=_HISTORY)
        self._forecast_at = float("-inf")
        self._lasted = (float("-inf"), 0.0)  # when growth that lasts was looked for, and what was found
        self._since: float | None = None  # since when each forecast has found growth
        self._peak_headroom: int | None = None

    def add(self, t: float, use: int) -> None:
        """With each look: what the job holds."""
        self.use.add(t, use)
        self.is_calm = self._steady.seconds(t, use) >= _CALM_AFTER and self.use.is_still()

    def unchanged(self, t: float, use: int, limit_headroom: int | None) -> None:
        """With each glance: the series have a point where a look would have made one."""
        self.use.add(t, use)
        self.near_limit(t, limit_headroom)

    def near_limit(self, t: float, limit_headroom: int | None) -> dict[str, Any]:
        """With each look: the facts about the job's own limit."""
        limit, self._peak_headroom = self._settings.limit, None
        if limit is None or limit_headroom is None:
            return {}
        rate = self._new_highs.rate(t, limit - limit_headroom)
        lasting = self._lasting(t, limit, limit_headroom)
        return {"limit_rate": rate, "lasting": lasting, "peak_headroom": self._peak_headroom}

    def _lasting(self, t: float, limit: int, limit_headroom: int) -> float:
        """Growth that continues after loading and the first steps; asked only where a request may be due."""
        if not self.warm_up.is_over(t):
            self._charged.clear()
            return 0.0
        if self.warm_up.counts(t):
            self._charged.add(t, limit - limit_headroom)
        step = self.warm_up.step_seconds(t)
        self._peak_headroom = peak_headroom = limit - self._charged.highest(max(_PEAK_WINDOW, 2 * step))
        if peak_headroom > limit * EARLY_SHARE:
            return 0.0
        if abs(t - self._lasted[0]) >= _LOOK_AGAIN:
            self._lasted = (t, self._charged.rate(step))
        lasting = self._lasted[1]
        left = self.time_to_full
        # a drip shows over minutes only
        if lasting == 0 and left is not None and left <= self._settings.grace:
            lasting = max(0.0, peak_headroom / max(left, 1.0))
        return lasting

    def row(self, t: float, use: int, headroom: int) -> None:
        """With each recorded row: what the job holds, and what it can still get. Forecasts now and then."""
        history = self._history
        if not self.warm_up.is_over(t):
            history.clear()
        elif self.warm_up.counts(t) and (not history or t - history[-1][0] >= 0.9):
            history.append((t, use))
        limit, left = self._settings.limit, self.time_to_full
        shown = bool(history) and t - history[0][0] >= _FORECAST_EVERY
        close = shown and limit is not None and headroom <= limit * EARLY_SHARE
        near = close or (left is not None and left < 300)
        if t - self._forecast_at >= (_FORECAST_EVERY_NEAR if near else _FORECAST_EVERY):
            self._forecast_at = t
            self.time_to_full = self._forecast(t, use, headroom)

    def _forecast(self, t: float, use: int, headroom: int) -> float | None:
        """Never for longer than the growth was seen."""
        usual = self._settings.usual_peak
        if not self._history or (usual is not None and use <= usual < use + headroom):
            left = None  # it held as much before, and ended well
        else:
            least = headroom if self._peak_headroom is None else min(headroom, self._peak_headroom)
            left = growth.time_to_full(list(self._history), max(0, least))
        if left is None:
            self._since, self.is_sure = None, False
            return None
        self._since = self._history[0][0] if self._since is None else self._since
        seen = t - self._since
        outgrown = usual is not None and use > usual * OUTGROWN
        self.is_sure = outgrown or left <= seen / _SEEN_LONGER
        return left if left <= seen else None
