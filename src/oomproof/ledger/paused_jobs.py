"""Jobs that were not started by us and are paused by a guard: one small file each in the runtime folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oomproof.errors import OomproofError
from oomproof.leaf.proc_files import is_stopped
from oomproof.leaf.small_files import read_object
from oomproof.machine import processes
from oomproof.recording.state_files import runtime_folder, write_json
from oomproof.records import asdict, dataclass

JobKey = tuple[int, int]  # pid and start
_LATE = 60.0  # seconds after which a pause should long have ended
SYSTEM_FOLDER = Path("/run/oomproof")  # of the guard of the whole machine: root's, readable by all


@dataclass(frozen=True, slots=True)
class PausedJob:
    pid: int
    start: int
    name: str
    use: int  # bytes, when it was paused
    why: str
    by: str  # the guard that paused it, in words
    since: float  # wall times
    until: float
    members: tuple[JobKey, ...] = ()  # everybody who was stopped
    skip: tuple[int, ...] = ()  # who was stopped before, by somebody else


def file_of(pid: int, start: int, folder: Callable[[], Path] = runtime_folder) -> Path:
    return folder() / "paused" / f"{pid}-{start}"


def write(job: PausedJob, path: Path) -> None:
    shared = SYSTEM_FOLDER in path.parents
    path.parent.mkdir(mode=0o755 if shared else 0o700, exist_ok=True)
    write_json(path, asdict(job))
    if shared:
        path.chmod(0o644)


def read(folder: Callable[[], Path] = runtime_folder) -> list[PausedJob]:
    """Those that are stopped now, oldest pause first: of this user's guards, and of the system's."""
    jobs: list[PausedJob] = []
    for place in (folder, lambda: SYSTEM_FOLDER):
        try:
            below = place() / "paused"
            if os.lstat(below).st_uid not in (0, os.getuid()):
                continue
            files = [below / name for name in os.listdir(below)]
        except (OSError, OomproofError):
            continue
        jobs += [job for path in files if (job := _read(path)) is not None]
    stopped = {(job.pid, job.start): job for job in jobs if _is_stopped(job)}
    return sorted(stopped.values(), key=lambda job: job.since)


def _is_stopped(job: PausedJob) -> bool:
    """A file may outlive the pause, where a guard and its resumer were both killed."""
    return job.until + _LATE > time.time() and processes.is_alive(job.pid, job.start) and is_stopped(job.pid)


def forget(job: PausedJob) -> None:
    """It was resumed by hand. What the system's guard wrote is that one's to remove."""
    try:
        file_of(job.pid, job.start).unlink(missing_ok=True)
    except (OSError, OomproofError):
        pass


def _read(path: Path) -> PausedJob | None:
    values: dict[str, Any] = read_object(str(path))
    try:
        return PausedJob(
            pid=int(values["pid"]),
            start=int(values["start"]),
            name=str(values["name"]),
            use=int(values["use"]),
            why=str(values["why"]),
            by=str(values["by"]),
            since=float(values["since"]),
            until=float(values["until"]),
            members=tuple((int(pid), int(start)) for pid, start in values.get("members") or ()),
            skip=tuple(int(pid) for pid in values.get("skip") or ()),
        )
    except (KeyError, TypeError, ValueError):
        return None
