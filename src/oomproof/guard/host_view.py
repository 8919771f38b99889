"""What the machine, or the container around us, can still give: read through descriptors opened at the start."""

from __future__ import annotations

import os
import sys
from collections import deque

from oomproof.machine import cgroup_limits, cgroups, swap
from oomproof.machine.pressure import PressureReader

if sys.platform == "darwin":
    from oomproof.machine.macos import MemoryReader
else:
    from oomproof.machine.memory import MemoryReader

_STALL_WINDOW = 2.0


class HostView:
    """What the machine, or the container around us, can still give."""

    def __init__(self, proc: str = "/proc", sys: str = "/sys") -> None:
        self._memory = MemoryReader(proc)
        self._pressure = PressureReader(f"{proc}/pressure/memory")
        first = self._memory.read()
        self.mem_total = first.total
        self._proc, self._sys = proc, sys
        areas = swap.read(proc, sys)
        self._has_zram = any(area.zram is not None for area in areas)
        self._known_swap = self._memory.swap_total
        self.swap_total = swap.disk(areas)[0] if self._has_zram else first.swap_total
        # Every limit over us: one higher up may leave less than a smaller one below it. Each is compared with what
        # that very cgroup holds.
        over_us = cgroup_limits.read("self", proc, sys)
        wanted = [level for level in over_us.levels if level.limit < first.total]
        machine = over_us.machine(first.total)
        # who is outside it takes nothing of ours
        self.limit_folder = machine.path if machine is not None else None
        paths = [*(level.path for level in wanted), *(level.path for level in over_us.swap_levels)]
        self._views = {path: cgroups.at(path) for path in paths}
        self._outer = [(level.path, level.limit) for level in wanted]
        self._outer_swap = [(level.path, level.limit) for level in over_us.swap_levels]
        if self._outer_swap:
            self.swap_total = min(self.swap_total, *(limit for _, limit in self._outer_swap))
        self._stalls: deque[tuple[float, int]] = deque()
        self.psi = (0, 0)

    def close(self) -> None:
        """For whoever continues after its job has ended."""
        self._memory.close()
        self._pressure.close()
        for view in self._views.values():
            view.close()

    @property
    def inside_a_limit(self) -> bool:
        """Whether a container's or another cgroup's limit, not the machine, is what runs out first."""
        return bool(self._outer)

    @property
    def ram(self) -> int:
        return min([self.mem_total, *(limit for _, limit in self._outer)])

    def headroom(self) -> tuple[int, int]:
        """(available, free disk swap)"""
        available, swap_free = self._memory.available_and_swap_free()
        changed = self._memory.swap_total != self._known_swap  # swapped on since: zram is no extra memory
        if (self._has_zram or changed) and swap_free:
            areas = swap.read(self._proc, self._sys)
            self._has_zram = any(area.zram is not None for area in areas)
            self._known_swap = self._memory.swap_total
            swap_free = swap.disk(areas)[1]
        inside = {path: view.memory() for path, view in self._views.items()}
        for path, limit in self._outer:
            held = inside[path]
            if held is not None:
                available = min(available, max(0, limit - held.charged))
        for path, limit in self._outer_swap:
            held = inside[path]
            if held is not None or limit == 0:
                swap_free = min(swap_free, max(0, limit - (held.swap if held else 0)))
        return available, swap_free

    def stall(self, t: float) -> float:
        """Share of the last two seconds in which everybody stalled."""
        self.psi = self._pressure.totals()
        stalls = self._stalls
        stalls.append((t, self.psi[1]))
        while t - stalls[0][0] > _STALL_WINDOW:
            stalls.popleft()
        elapsed = t - stalls[0][0]
        return (self.psi[1] - stalls[0][1]) / 1e6 / elapsed if elapsed > 0.2 else 0.0


def open_pressure_trigger() -> int | None:
    """A descriptor that wakes us when tasks stall for 150 ms of 2 s: a second witness beside our own polling.

    Unprivileged since Linux 6.4 for windows that are multiples of 2 s; None elsewhere.
    """
    try:
        fd = os.open("/proc/pressure/memory", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.write(fd, b"some 150000 2000000\0")
    except OSError:
        os.close(fd)
        return None
    return fd
