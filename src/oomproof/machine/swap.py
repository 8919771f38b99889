"""Swap areas, disk and zram told apart, and what each zram device really holds and saves."""

from __future__ import annotations

import os
from collections.abc import Sequence

from oomproof.leaf.proc_files import read_text
from oomproof.records import dataclass


@dataclass(frozen=True, slots=True)
class Zram:
    """One compressed device, from its ``mm_stat``. Its pages live in RAM: it is not extra memory."""

    stored: int  # what was put in, before compression
    compressed: int
    in_ram: int  # what it takes, allocator overhead included

    @property
    def saved(self) -> int:
        """Below zero where the pages do not compress and the overhead is all that is left."""
        return self.stored - self.in_ram


@dataclass(frozen=True, slots=True)
class Swap:
    """One line of /proc/swaps, in bytes."""

    path: str
    total: int
    used: int
    priority: int
    zram: Zram | None = None  # None: on a disk

    @property
    def free(self) -> int:
        return self.total - self.used


def parse_mm_stat(text: str) -> Zram | None:
    """Columns of ``mm_stat``: orig_data_size, compr_data_size, mem_used_total, ..."""
    try:
        stored, compressed, in_ram = (int(column) for column in text.split()[:3])
    except ValueError:
        return None
    return Zram(stored, compressed, in_ram)


def read(proc: str = "/proc", sys: str = "/sys") -> tuple[Swap, ...]:
    """The active swap areas; empty where there are none."""
    areas = []
    for line in read_text(f"{proc}/swaps").splitlines()[1:]:
        try:
            path, _kind, total, used, priority = line.rsplit(None, 4)
            area = Swap(_unescape(path), int(total) * 1024, int(used) * 1024, int(priority))
        except ValueError:
            continue
        name = os.path.basename(area.path)
        if name.startswith("zram"):
            zram = parse_mm_stat(read_text(f"{sys}/block/{name}/mm_stat")) or Zram(
                area.used, area.used, area.used
            )
            area = Swap(area.path, area.total, area.used, area.priority, zram)
        areas.append(area)
    return tuple(areas)


def zram_in_ram(sys: str = "/sys") -> int:
    """RAM taken by every zram device, also those that are no swap (a zram /tmp)."""
    try:
        names = [name for name in os.listdir(f"{sys}/block") if name.startswith("zram")]
    except OSError:
        return 0
    devices = (parse_mm_stat(read_text(f"{sys}/block/{name}/mm_stat")) for name in names)
    return sum(device.in_ram for device in devices if device)


def disk(areas: Sequence[Swap]) -> tuple[int, int]:
    """(total, free) of the areas that are extra memory: those on a disk."""
    on_disk = [area for area in areas if area.zram is None]
    return sum(area.total for area in on_disk), sum(area.free for area in on_disk)


def _unescape(path: str) -> str:
    """The kernel writes a space in a swap file's name as ``\\040``."""
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
