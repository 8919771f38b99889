"""The clock of every recording: seconds since boot, sleep included, which no date change can move."""

from __future__ import annotations

from oomproof.leaf.proc_files import boottime

__all__ = ["boot_wall", "boottime"]


def boot_wall(proc: str = "/proc") -> float | None:
    """When the present boot began, in wall-clock seconds."""
    try:
        with open(f"{proc}/stat", encoding="ascii", errors="replace") as file:
            return next((float(line.split()[1]) for line in file if line.startswith("btime ")), None)
    except (OSError, ValueError, IndexError):
        return None
