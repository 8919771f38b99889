"""Host memory for the guard's loop where there is no /proc/meminfo, through psutil. Not run on a Mac yet."""

from __future__ import annotations

import psutil

from oomproof.machine.memory import Memory


class MemoryReader:
    def __init__(self, proc: str = "") -> None:
        """As on Linux, where a folder is read."""

    def read(self) -> Memory:
        now, swap = psutil.virtual_memory(), psutil.swap_memory()
        return Memory(now.total, now.free, now.available, swap.total, swap.free, 0, 0, 0, 0, 0, 0, 0)

    swap_total = 0  # on a disk, all of it: nothing to tell apart

    def available_and_swap_free(self) -> tuple[int, int]:
        return psutil.virtual_memory().available, psutil.swap_memory().free

    def close(self) -> None:
        """Nothing is held open."""
