"""How often somebody is told: the first of a kind at once, then what came meanwhile as one message. Plain values, no clock."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

from oomproof.records import dataclass

WINDOW, LONGEST = 300.0, 3600.0  # seconds in which a kind is told once; doubled while it does not end
MOST, SPAN = 12, 600.0  # messages in so many seconds, of all jobs and kinds together
_KEYS = 1000  # jobs and kinds remembered


@dataclass
class _Window:
    until: float
    seconds: float
    withheld: int = 0
    last: dict[str, Any] | None = None


class AlertLimiter:
    """``take`` what comes; ask for ``due`` ones at ``next_time``."""

    def __init__(self) -> None:
        self._windows: OrderedDict[tuple[str, str], _Window] = OrderedDict()
        self._sent: deque[float] = deque(maxlen=MOST)

    def take(self, alert: dict[str, Any], now: float) -> dict[str, Any] | None:
        """The alert when it may be told now; None when it will be summed up."""
        key = (str(alert.get("run") or alert.get("job")), str(alert.get("kind")))
        window = self._windows.get(key)
        if window is None or (now >= window.until and not window.withheld):
            window = self._windows[key] = _Window(now, WINDOW)
            self._windows.move_to_end(key)
            if len(self._windows) > _KEYS:
                self._windows.popitem(last=False)
            if self._may_send(now):
                window.until = now + WINDOW
                return alert
            window.until = self._sent[0] + SPAN
        window.withheld += 1
        window.last = alert
        return None

    def due(self, now: float) -> list[dict[str, Any]]:
        """Sums of what was withheld, as far as they may be told now; the next ones wait twice as long."""
        alerts = []
        for window in self._windows.values():
            if window.last is None or now < window.until:
                continue
            if not self._may_send(now):
                window.until = self._sent[0] + SPAN
                continue
            alerts.append({**window.last, "repeated": window.withheld - 1})
            window.seconds = min(LONGEST, 2 * window.seconds)
            window.until, window.withheld, window.last = now + window.seconds, 0, None
        return alerts

    @property
    def next_time(self) -> float | None:
        """When something is due; None: nothing waits."""
        return min(
            (window.until for window in self._windows.values() if window.last is not None), default=None
        )

    def withheld(self) -> int:
        """What nobody was told, for the last message."""
        return sum(window.withheld for window in self._windows.values())

    def _may_send(self, now: float) -> bool:
        if len(self._sent) == MOST and now - self._sent[0] < SPAN:
            return False
        self._sent.append(now)
        return True
