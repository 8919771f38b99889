"""Host memory from /proc/meminfo: one reader with its file kept open, cheap enough for the guard's loop."""

from __future__ import annotations

import os

from oomproof.leaf.proc_files import kib_field
from oomproof.machine import swap
from oomproof.records import dataclass

_BUFFER = 8192


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, as the kernel reports them at one moment."""

    total: int
    free: int
    available: int
    swap_total: int
    swap_free: int
    anon: int
    shmem: int
    file_cache: int  # Cached + Buffers − Shmem: what reclaim can take
    slab_reclaimable: int
    slab_unreclaimable: int
    page_tables: int
    kernel_stack: int


def parse(text: bytes) -> Memory:
    """All fields; a newline is put before so that ``MemFree:`` never matches inside another name."""
    text = b"\n" + text
    shmem = kib_field(text, b"\nShmem:")
    return Memory(
        total=kib_field(text, b"\nMemTotal:"),
        free=kib_field(text, b"\nMemFree:"),
        available=kib_field(text, b"\nMemAvailable:"),
        swap_total=kib_field(text, b"\nSwapTotal:"),
        swap_free=kib_field(text, b"\nSwapFree:"),
        anon=kib_field(text, b"\nAnonPages:"),
        shmem=shmem,
        file_cache=max(0, kib_field(text, b"\nCached:") + kib_field(text, b"\nBuffers:") - shmem),
        slab_reclaimable=kib_field(text, b"\nSReclaimable:"),
        slab_unreclaimable=kib_field(text, b"\nSUnreclaim:"),
        page_tables=kib_field(text, b"\nPageTables:"),
        kernel_stack=kib_field(text, b"\nKernelStack:"),
    )


class MemoryReader:
    """Keeps the descriptor open: opening files needs memory just when there is none."""

    swap_total = 0  # as of the last look

    def __init__(self, proc: str = "/proc") -> None:
        self._fd = os.open(f"{proc}/meminfo", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> Memory:
        memory = parse(os.pread(self._fd, _BUFFER, 0))
        self.swap_total = memory.swap_total
        return memory

    def available_and_swap_free(self) -> tuple[int, int]:
        """The two numbers the loop lives on, without building the record."""
        text = os.pread(self._fd, _BUFFER, 0)
        # a file system in between that has lost its server: unknown is not 0
        if b"MemAvailable:" not in text:
            raise OSError("/proc/meminfo does not tell what is available")
        self.swap_total = kib_field(text, b"SwapTotal:")
        return kib_field(text, b"MemAvailable:"), kib_field(text, b"SwapFree:")

    def close(self) -> None:
        os.close(self._fd)


def read(proc: str = "/proc") -> Memory:
    reader = MemoryReader(proc)
    try:
        return reader.read()
    finally:
        reader.close()


@dataclass(frozen=True, slots=True)
class Unowned:
    """RAM that no process owns and that the main lines of /proc/meminfo leave out, in bytes."""

    zram: int  # the pool of compressed pages
    zswap: int  # the same, in front of a disk swap
    huge_pages: int  # set aside at boot or by sysctl, used or not
    per_cpu: int
    balloon: int  # taken back by the hypervisor


def read_unowned(proc: str = "/proc", sys: str = "/sys") -> Unowned:
    try:
        with open(f"{proc}/meminfo", "rb") as file:
            text = b"\n" + file.read()
    except OSError:
        text = b""
    return Unowned(
        zram=swap.zram_in_ram(sys),
        zswap=kib_field(text, b"\nZswap:"),
        huge_pages=kib_field(text, b"\nHugetlb:"),
        per_cpu=kib_field(text, b"\nPercpu:"),
        balloon=kib_field(text, b"\nBalloon:"),
    )
