"""Processes from /proc: who they are, what they hold, who their children are. A vanished one is None."""

from __future__ import annotations

import re
import sys

from oomproof.leaf.proc_files import (
    boot_id,
    children,
    command_line,
    descendants,
    is_alive,
    kib_field,
    read_bytes,
    start_time,
    stat_fields,
)
from oomproof.records import dataclass

__all__ = [
    "Overlap", "ProcessMemory", "answers", "boot_id", "catches", "children", "command_line", "descendants", "is_alive", "memory",
    "openmp_runtimes", "overlap", "parse_overlap", "pss", "start_time", "stat_fields",
]  # fmt: skip

# libgomp-a34b3233.so.1.0.0 is how wheels carry their own copy
_OPENMP = re.compile(rb"/(?:[^/\n]*/)*lib(gomp|iomp5|omp)(?:-[0-9a-f]+)?\.so[.0-9]*(?=\n| \(deleted\)|\Z)")
_MOST_MAPS = 32 << 20  # a process with a million mappings is not read to its end
_MASK = re.compile(rb"^Sig(Blk|Cgt):\s*([0-9a-f]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """One process. ``anon`` counts pages shared by fork once per process: sums need PSS beside them."""

    pid: int
    start: int  # clock ticks since boot: with the pid it names a process for ever
    parent: int
    name: str
    anon: int
    file: int
    shmem: int
    swap: int
    largest_rss: int = 0  # the most it ever had resident, files and all


def answers(pid: int, number: int, proc: str = "/proc") -> bool | None:
    """Whether it has a handler for this signal, or its main thread blocks it for another that waits for it (sigwait). None:
    nobody can tell. The other threads' masks say nothing: libraries block all signals in their own."""
    handled = _signals(pid, number, proc)
    return any(handled.values()) if handled else None


def catches(pid: int, number: int, proc: str = "/proc") -> bool:
    """Whether that process has a handler for the signal now: without one it would die of it."""
    return _signals(pid, number, proc).get(b"Cgt", False)


def _signals(pid: int, number: int, proc: str) -> dict[bytes, bool]:
    """Whether the main thread blocks (Blk) and whether the process catches (Cgt) the signal."""
    masks = _MASK.findall(read_bytes(f"{proc}/{pid}/status") or b"")
    return {name: bool(int(mask, 16) >> (number - 1) & 1) for name, mask in masks}


def memory(pid: int, proc: str = "/proc") -> ProcessMemory | None:
    status = read_bytes(f"{proc}/{pid}/status")
    start = start_time(pid, proc)
    if not status or start is None:
        return None
    try:
        name = status[6 : status.index(b"\n")].decode("utf-8", "replace")
        at = status.find(b"\nPPid:") + 6
        parent = int(status[at : status.index(b"\n", at)])
        return ProcessMemory(
            pid=pid,
            start=start,
            parent=parent,
            name=name,
            anon=kib_field(status, b"\nRssAnon:"),
            file=kib_field(status, b"\nRssFile:"),
            shmem=kib_field(status, b"\nRssShmem:"),
            swap=kib_field(status, b"\nVmSwap:"),
            largest_rss=kib_field(status, b"\nVmHWM:"),
        )
    except ValueError:
        return None


def pss(pid: int, proc: str = "/proc") -> tuple[int, int] | None:
    """(PSS of anon + shmem pages, PSS of everything): shared pages divided among those who share them.

    The kernel walks the page tables for it (about a millisecond per GB), so this is for now and then.
    """
    text = read_bytes(f"{proc}/{pid}/smaps_rollup")
    if not text:
        return None
    return kib_field(text, b"\nPss_Anon:") + kib_field(text, b"\nPss_Shmem:"), kib_field(text, b"\nPss:")


@dataclass(frozen=True, slots=True)
class Overlap:
    """What of one process's memory is counted by other processes too, in bytes; from one walk over its page tables."""

    anon: int  # of its anonymous pages: the part that belongs to those who share them
    swap: int
    shmem_pss: int  # its share of the shared memory it has mapped
    pss: int  # its share of everything


def parse_overlap(text: bytes) -> Overlap:
    """Of smaps_rollup. Before Linux 5.4 PSS is not told by kind: then all that is shared counts as anonymous."""
    anon, pss = kib_field(text, b"\nAnonymous:"), kib_field(text, b"\nPss:")
    if b"\nPss_Anon:" in text:
        shared, shmem = anon - kib_field(text, b"\nPss_Anon:"), kib_field(text, b"\nPss_Shmem:")
    else:
        shared, shmem = min(anon, kib_field(text, b"\nRss:") - pss), 0
    swap = kib_field(text, b"\nSwap:") - kib_field(text, b"\nSwapPss:")
    return Overlap(max(0, shared), max(0, swap), shmem, pss)


def overlap(pid: int, proc: str = "/proc") -> Overlap | None:
    """As costly as ``pss``; None where it may not be read, or the process has gone."""
    text = read_bytes(f"{proc}/{pid}/smaps_rollup")
    try:
        return parse_overlap(text) if text else None
    except ValueError:
        return None


def openmp_runtimes(pid: int, proc: str = "/proc") -> dict[str, str]:
    """OpenMP runtimes it has loaded; two different ones are a known reason for crashes. Runtime (gomp, iomp5, omp) → one file it was loaded from. Empty for a process that has gone or is not ours."""
    try:
        with open(f"{proc}/{pid}/maps", "rb") as file:
            maps = file.read(_MOST_MAPS)
    except OSError:
        return {}
    by_name: dict[str, str] = {}
    for match in _OPENMP.finditer(maps):
        by_name.setdefault(match[1].decode(), match[0].decode("utf-8", "replace"))
    return by_name


if sys.platform == "darwin":
    from oomproof.machine.macos_processes import (  # the other platform
        boot_id,
        children,
        command_line,
        descendants,
        is_alive,
        memory,
        overlap,
        pss,
        start_time,
    )
