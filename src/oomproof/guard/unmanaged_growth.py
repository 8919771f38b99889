"""Who else is growing: a slow look over all processes, from a thread of its own, only when memory is short."""

from __future__ import annotations

import os
import threading

from oomproof.machine import processes
from oomproof.units import MIB, format_size

_PAGE = os.sysconf("SC_PAGE_SIZE")
_WORTH_NAMING = 32 * MIB  # per look; browsers breathe by less


def resident(proc: str = "/proc") -> dict[int, int]:
    """Pid → resident bytes, for every process that can be seen."""
    by_pid: dict[int, int] = {}
    for name in os.listdir(proc):
        if not name.isdigit():
            continue
        try:
            with open(f"{proc}/{name}/statm", "rb") as file:
                by_pid[int(name)] = int(file.read().split()[1]) * _PAGE
        except (OSError, IndexError, ValueError):
            continue
    return by_pid


def fastest(before: dict[int, int], after: dict[int, int], ours: set[int]) -> tuple[int, int] | None:
    """(pid, growth) of the unmanaged process that grew most between two looks."""
    growth = [(size - before.get(pid, 0), pid) for pid, size in after.items() if pid not in ours]
    if not growth:
        return None
    most, pid = max(growth)
    return (pid, most) if most >= _WORTH_NAMING else None


class UnmanagedGrowth:
    """Looks when asked to; the answer is there at the next question."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._busy = threading.Event()
        self._before: dict[int, int] | None = None
        self.named = ""  # "chromium (pid 812) grew by 1.2 GiB, holds 3.4 GiB"

    def look(self, ours: set[int]) -> None:
        """Returns at once; one look at a time."""
        if self._busy.is_set():
            return
        thread = threading.Thread(target=self._look, args=(ours,), name="unmanaged", daemon=True)
        self._busy.set()
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._busy.clear()
            raise

    def _look(self, ours: set[int]) -> None:
        try:
            after = resident(self._proc)
            fastest_growth = fastest(self._before, after, ours) if self._before is not None else None
            self._before = after
            if fastest_growth:
                pid, growth = fastest_growth
                process = processes.memory(pid, self._proc)
                name = process.name if process else "?"
                self.named = (
                    f"{name} (pid {pid}) grew by {format_size(growth)}, held {format_size(after[pid])}"
                )
        except Exception:
            pass  # /proc is hidden from us, no memory: then nobody can be named
        finally:
            self._busy.clear()
