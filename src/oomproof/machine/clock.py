"""The clock of every recording: seconds since boot, sleep included, which no date change can move."""

from __future__ import annotations

import time

# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC counts sleep too
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    return time.clock_gettime(_CLOCK)


def boot_wall(proc: str = "/proc") -> float | None:
    """When the present boot began, in wall-clock seconds."""
    try:
        with open(f"{proc}/stat", encoding="ascii", errors="replace") as file:
            return next((float(line.split()[1]) for line in file if line.startswith("btime ")), None)
    except (OSError, ValueError, IndexError):
        return None
