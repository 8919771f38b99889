"""When to tell that a job's swap grows: by more than a rate, or, without one, by each further step."""

from __future__ import annotations

from collections import deque

from oomproof.units import MIB, format_duration, format_size

STEP = 64 * MIB
_MINUTE = 60.0


class SwapGrowth:
    """``rate``: bytes a minute; 0: every 64 MiB, however slowly they came."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._lowest: int | None = None  # since it was last told
        self._looks: deque[tuple[float, int]] = deque()  # of the last minute, a second apart
        self._told_at = float("-inf")

    def look(self, t: float, swap: int) -> str:
        """What to tell; empty: nothing."""
        return self._by_rate(t, swap) if self._rate else self._by_step(swap)

    def _by_step(self, swap: int) -> str:
        lowest = swap if self._lowest is None else min(self._lowest, swap)
        grown = swap - lowest
        self._lowest = swap if grown > STEP else lowest
        return f"the job's swap grew by {format_size(grown)} to {format_size(swap)}" if grown > STEP else ""

    def _by_rate(self, t: float, swap: int) -> str:
        looks = self._looks
        while looks and t - looks[0][0] > _MINUTE:
            looks.popleft()
        at, lowest = min(looks, key=lambda look: look[1], default=(t, swap))
        if not looks or t - looks[-1][0] >= 1.0:
            looks.append((t, swap))
        if swap - lowest <= self._rate or t - self._told_at < _MINUTE:
            return ""
        self._told_at = t
        grown = f"grew by {format_size(swap - lowest)} in {format_duration(t - at)} to {format_size(swap)}"
        return f"the job's swap {grown}: more than {format_size(self._rate)} a minute"
