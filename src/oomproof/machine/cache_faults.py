"""What a job reads from disk again because its page cache was taken from it: the kernel's counters, of its cgroup or of the
machine and its processes."""

from __future__ import annotations

import os
from collections.abc import Iterable

from oomproof.leaf.proc_files import read_bytes, stat_fields
from oomproof.machine import pressure
from oomproof.machine.cgroups import stat_field
from oomproof.records import dataclass

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MAJOR = 9  # of stat_fields: majflt
_READ_BACK = {2: b"workingset_refault_file", 1: b"total_workingset_refault_file"}  # since Linux 5.9
_MAJORS = {2: b"pgmajfault", 1: b"total_pgmajfault"}
_OF_MACHINE = (b"workingset_refault_file", b"workingset_refault")  # the latter before that


@dataclass(frozen=True, slots=True)
class CacheFaults:
    """Counters: only their differences mean something. Reading a file for the first time moves none but ``major``."""

    read_back: int  # bytes of files that had been in memory and were taken from there
    major: int  # page faults that waited for the disk: of mapped files (libraries, weights), never of read()
    stalled: float | None  # seconds in which somebody waited for memory; None: no PSI


def of_cgroup(
    directory: str, version: int, unified: str | None = None, proc: str = "/proc"
) -> CacheFaults | None:
    """``unified``: the job's folder of the version that has its pressure. None where the kernel does not tell, or it is gone."""
    stat = read_bytes(f"{directory}/memory.stat") or b""
    if not _has(stat, _READ_BACK[version]):
        return None
    stalled = read_bytes(f"{unified or directory}/memory.pressure") or read_bytes(f"{proc}/pressure/memory")
    return CacheFaults(
        stat_field(stat, _READ_BACK[version]) * _PAGE, stat_field(stat, _MAJORS[version]), _seconds(stalled)
    )


def of_processes(pids: Iterable[int], proc: str = "/proc") -> CacheFaults | None:
    """Where no cgroup counts: the major faults of these, and what the whole machine read back and waited."""
    vmstat = read_bytes(f"{proc}/vmstat") or b""
    name = next((name for name in _OF_MACHINE if _has(vmstat, name)), None)
    if name is None:
        return None
    known = (stat_fields(pid, proc) for pid in pids)
    major = sum(int(fields[_MAJOR]) for fields in known if fields and len(fields) > _MAJOR)
    return CacheFaults(
        stat_field(vmstat, name) * _PAGE, major, _seconds(read_bytes(f"{proc}/pressure/memory"))
    )


def _has(text: bytes, name: bytes) -> bool:
    return text.startswith(name + b" ") or b"\n" + name + b" " in text


def _seconds(text: bytes | None) -> float | None:
    return pressure.total(text, b"some") / 1e6 if text else None
