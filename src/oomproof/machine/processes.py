"""Processes from /proc: who they are, what they hold, who their children are. A vanished one is None."""

from __future__ import annotations

import os
import sys

from oomproof.records import dataclass


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


def _read(path: str) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = part = os.read(fd, 16384)
        while len(part) >= 2048:  # a long list (children) comes in several parts
            part = os.read(fd, 16384)
            text += part
        return text
    except OSError:  # ESRCH: it died between open and read
        return None
    finally:
        os.close(fd)


def stat_fields(pid: int, proc: str = "/proc") -> list[bytes] | None:
    """Fields of /proc/PID/stat from the third on; the name before them may hold spaces and brackets."""
    text = _read(f"{proc}/{pid}/stat")
    if not text:
        return None
    return text[text.rfind(b")") + 2 :].split()


def start_time(pid: int, proc: str = "/proc") -> int | None:
    fields = stat_fields(pid, proc)
    return int(fields[19]) if fields and len(fields) > 19 else None


def is_alive(pid: int, start: int | None, proc: str = "/proc") -> bool:
    """True only for the very process that had this pid at that start; zombies are dead."""
    fields = stat_fields(pid, proc)
    if not fields or len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return False
    return start is None or int(fields[19]) == start


def _kib(text: bytes, name: bytes) -> int:
    at = text.find(name)
    if at < 0:
        return 0
    at += len(name)
    return int(text[at : text.find(b"kB", at)]) * 1024


def memory(pid: int, proc: str = "/proc") -> ProcessMemory | None:
    status = _read(f"{proc}/{pid}/status")
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
            anon=_kib(status, b"\nRssAnon:"),
            file=_kib(status, b"\nRssFile:"),
            shmem=_kib(status, b"\nRssShmem:"),
            swap=_kib(status, b"\nVmSwap:"),
        )
    except ValueError:
        return None


def pss(pid: int, proc: str = "/proc") -> tuple[int, int] | None:
    """(PSS of anon + shmem pages, PSS of everything): shared pages divided among those who share them.

    The kernel walks the page tables for it (about a millisecond per GB), so this is for now and then.
    """
    text = _read(f"{proc}/{pid}/smaps_rollup")
    if not text:
        return None
    return _kib(text, b"\nPss_Anon:") + _kib(text, b"\nPss_Shmem:"), _kib(text, b"\nPss:")


@dataclass(frozen=True, slots=True)
class Overlap:
    """What of one process's memory is counted by other processes too, in bytes; from one walk over its page tables."""

    anon: int  # of its anonymous pages: the part that belongs to those who share them
    swap: int
    shmem_pss: int  # its share of the shared memory it has mapped
    pss: int  # its share of everything


def parse_overlap(text: bytes) -> Overlap:
    """Of smaps_rollup. Before Linux 5.4 PSS is not told by kind: then all that is shared counts as anonymous."""
    anon, pss = _kib(text, b"\nAnonymous:"), _kib(text, b"\nPss:")
    if b"\nPss_Anon:" in text:
        shared, shmem = anon - _kib(text, b"\nPss_Anon:"), _kib(text, b"\nPss_Shmem:")
    else:
        shared, shmem = min(anon, _kib(text, b"\nRss:") - pss), 0
    swap = _kib(text, b"\nSwap:") - _kib(text, b"\nSwapPss:")
    return Overlap(max(0, shared), max(0, swap), shmem, pss)


def overlap(pid: int, proc: str = "/proc") -> Overlap | None:
    """As costly as ``pss``; None where it may not be read, or the process has gone."""
    text = _read(f"{proc}/{pid}/smaps_rollup")
    try:
        return parse_overlap(text) if text else None
    except ValueError:
        return None


def children(pid: int, proc: str = "/proc") -> list[int]:
    """Direct children, over all threads of the process: a child hangs on the thread that forked it."""
    found: list[int] = []
    try:
        threads = os.listdir(f"{proc}/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        text = _read(f"{proc}/{pid}/task/{thread}/children")
        if text:
            found.extend(int(word) for word in text.split())
    return found


def descendants(pid: int, proc: str = "/proc") -> list[int]:
    """The tree below ``pid``, without it, oldest generation first. Never lists all of /proc."""
    found: list[int] = []
    queue = [pid]
    seen = {pid}
    while queue:
        for child in children(queue.pop(0), proc):
            if child not in seen:
                seen.add(child)
                found.append(child)
                queue.append(child)
    return found


def command_line(pid: int, proc: str = "/proc") -> list[str]:
    text = _read(f"{proc}/{pid}/cmdline") or b""
    return [part.decode("utf-8", "replace") for part in text.rstrip(b"\0").split(b"\0")] if text else []


def boot_id(proc: str = "/proc") -> str:
    text = _read(f"{proc}/sys/kernel/random/boot_id")
    return text.decode("ascii", "replace").strip() if text else ""


if sys.platform == "darwin":
    from oomproof.machine.macos_processes import (  # noqa: F401 - the other platform
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
