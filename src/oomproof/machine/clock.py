"""The clock of every recording: seconds since boot, sleep included, which no date change can move."""

from __future__ import annotations

import time

# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC counts sleep too
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    return time.clock_gettime(_CLOCK)
