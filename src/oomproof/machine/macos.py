"""The same memory facts on macOS, read out of vm_stat, sysctl and memory_pressure.

Written from these tools' documented output and recorded text; nobody has run it on a Mac yet.
"""

from __future__ import annotations

import re
import subprocess

import psutil

from oomproof.machine.gpu import Gpu, Gpus
from oomproof.machine.jobs import Process
from oomproof.machine.memory import Memory, Unowned
from oomproof.machine.swap import Swap


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


_PAGE_SIZE = re.compile(r"page size of (\d+) bytes")
_PAGES = re.compile(r'^"?([^":]+)"?:\s+(\d+)\.?$', re.MULTILINE)
_SWAP = re.compile(r"total = ([\d.]+)M\s+used = ([\d.]+)M")
_FREE = re.compile(r"free percentage:\s*(\d+)\s*%")


def parse_vm_stat(text: str) -> dict[str, int]:
    """Name -> bytes, for the lines of ``vm_stat`` that count pages."""
    size = _PAGE_SIZE.search(text)
    page = int(size[1]) if size else 4096
    return {name: int(count) * page for name, count in _PAGES.findall(text)}


def parse_swapusage(text: str) -> Swap | None:
    """``vm.swapusage: total = 2048.00M  used = 1124.25M ...``: files on disk that macOS grows itself."""
    match = _SWAP.search(text)
    if not match:
        return None
    total, used = (int(float(number) * (1 << 20)) for number in match.groups())
    return Swap("/private/var/vm", total, used, 0)


def parse_free_percentage(text: str) -> int | None:
    """``System-wide memory free percentage: 63%``, the last line of ``memory_pressure -Q``."""
    match = _FREE.search(text)
    return int(match[1]) if match else None


def memory_of(total: int, pages: dict[str, int], swap: Swap | None, free_percentage: int | None) -> Memory:
    """What macOS calls free to use: its own percentage where it tells, else free and inactive pages."""
    free = pages.get("Pages free", 0) + pages.get("Pages speculative", 0)
    inactive = pages.get("Pages inactive", 0)
    return Memory(
        total=total,
        free=free,
        available=min(total, free + inactive)
        if free_percentage is None
        else total * min(free_percentage, 100) // 100,
        swap_total=swap.total if swap else 0,
        swap_free=swap.free if swap else 0,
        anon=pages.get("Anonymous pages", 0),
        shmem=0,
        file_cache=max(0, pages.get("File-backed pages", 0) - pages.get("Pages speculative", 0)),
        slab_reclaimable=0,
        slab_unreclaimable=pages.get("Pages wired down", 0),
        page_tables=0,
        kernel_stack=0,
    )


def read() -> tuple[Memory, tuple[Swap, ...], Unowned]:
    """Memory, swap, and the compressor's pool, which is to macOS what zram is to Linux."""
    pages = parse_vm_stat(_output("vm_stat"))
    swap = parse_swapusage(_output("sysctl", "vm.swapusage"))
    percentage = parse_free_percentage(_output("memory_pressure", "-Q"))
    total = _output("sysctl", "-n", "hw.memsize").strip()
    memory = memory_of(int(total) if total.isdigit() else 0, pages, swap, percentage)
    compressor = pages.get("Pages occupied by compressor", 0)
    return memory, (swap,) if swap else (), Unowned(compressor, 0, 0, 0, 0)


def scan() -> dict[int, Process]:
    """Processes through psutil; macOS tells other users' memory only to root."""
    import psutil

    by_pid = {}
    for process in psutil.process_iter(["pid", "ppid", "name", "memory_info", "uids"]):
        facts = process.info
        memory, uids = facts["memory_info"], facts["uids"]
        if memory:
            by_pid[facts["pid"]] = Process(
                pid=facts["pid"],
                parent=facts["ppid"] or 0,
                session=facts["pid"],
                uid=uids.real if uids else -1,
                name=facts["name"] or "?",
                anon=memory.rss,
                shmem=0,
                file=0,
                swap=0,
            )
    return by_pid


def gpus(machine: str) -> Gpus:
    if machine != "arm64":
        return Gpus()
    note = "unified memory: the GPU lives in the machine's RAM"
    return Gpus((Gpu(0, "Apple GPU", None, None, None, (), note),))


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=2, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
