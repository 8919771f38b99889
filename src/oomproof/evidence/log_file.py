"""What this machine knows of a log's file: who still writes it, when it last changed, what the kernel said around then."""

from __future__ import annotations

import os
import time
from itertools import islice
from stat import S_ISREG

from oomproof.errors import OomproofError
from oomproof.evidence import run_settings
from oomproof.evidence.case_file import KernelFault, KernelKill
from oomproof.evidence.texts.line_reader import open_lines
from oomproof.leaf.proc_files import name_of
from oomproof.machine import kernel_log
from oomproof.machine.clock import boot_wall
from oomproof.machine.kill_counters import machine_kills
from oomproof.records import dataclass, replace

_BEFORE, _AFTER = 30.0, 600.0  # seconds around a log's last line in which the end of its job may lie
_OPENING = 5000  # lines of a log in which it tells its settings
_TAIL = 64 << 10
_WRITES = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True, slots=True)
class LogFile:
    """Seconds of the wall clock. The kernel's part is of the present boot, and only where the file changed in it."""

    changed: float
    age: float  # since then
    writer: int | None = None  # a process that has it open for writing
    writer_name: str = ""
    booted: float | None = None  # when the present boot began
    counted: int | None = None  # OOM kills since then, everybody's
    log_readable: bool = False
    device: str | None = None  # as its opening tells
    kills: tuple[KernelKill, ...] = ()  # around its last change
    faults: tuple[KernelFault, ...] = ()


def log_file(
    path: str,
    *,
    proc: str = "/proc",
    kmsg: str = "/dev/kmsg",
    journalctl: str = "journalctl",
    now: float | None = None,
) -> LogFile | None:
    """None for standard input, a pipe, and what cannot be looked at."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    if not S_ISREG(stat.st_mode):
        return None
    now = time.time() if now is None else now
    told = run_settings.last_date(closing_text(path))
    # a copy made just now still tells when its last line was written
    changed, booted = min(stat.st_mtime, told or stat.st_mtime), boot_wall(proc)
    writer = _writer((stat.st_dev, stat.st_ino), proc)
    name = name_of(writer, proc) if writer is not None else ""
    device = run_settings.device(run_settings.told_in(opening_lines(path)))
    known = LogFile(changed, max(0.0, now - changed), writer, name, booted, device=device)
    if writer is not None or booted is None or changed < booted:
        return known
    log = kernel_log.read(changed - booted - _BEFORE, kmsg=kmsg, journalctl=journalctl)
    from oomproof.evidence.job_processes import read_kernel

    until = changed - booted + _AFTER
    kills, faults = read_kernel((line.time, line.text) for line in log.lines if line.time <= until)
    return replace(
        known, counted=machine_kills(proc), log_readable=log.reason is None, kills=kills, faults=faults
    )


def opening_lines(path: str) -> list[str]:
    """The first lines, where a job tells its settings; none of a stream, which was read once already."""
    if path == "-" or not os.path.isfile(path):
        return []
    try:
        return [line[:4000] for _, line in islice(open_lines(path), _OPENING)]
    except (OomproofError, OSError):
        return []


def closing_text(path: str) -> str:
    """Its last lines; none of a stream: opened once more, it waits for another writer."""
    if not os.path.isfile(path):
        return ""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            return file.read(_TAIL).decode("utf-8", "replace")
    except OSError:
        return ""


def writer_of(path: str, proc: str = "/proc") -> tuple[int, str] | None:
    """(process, name) of one that has the file open for writing, as far as we may look."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    pid = _writer((stat.st_dev, stat.st_ino), proc)
    return None if pid is None else (pid, name_of(pid, proc))


def _writer(file: tuple[int, int], proc: str) -> int | None:
    """Of the processes that we may look into; a reader (less, tail -f) is none."""
    mine = os.getpid()
    for pid in (int(name) for name in _names(proc) if name.isdigit()):
        for descriptor in _names(f"{proc}/{pid}/fd") if pid != mine else ():
            try:
                stat = os.stat(f"{proc}/{pid}/fd/{descriptor}")
                if (stat.st_dev, stat.st_ino) == file and _writes(f"{proc}/{pid}/fdinfo/{descriptor}"):
                    return pid
            except OSError:
                continue  # closed meanwhile
    return None


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # gone, or not ours to look into


def _writes(info: str) -> bool:
    with open(info, encoding="ascii") as file:
        flags = next((line.split()[1] for line in file if line.startswith("flags:")), "0")
    return bool(int(flags, 8) & _WRITES)
