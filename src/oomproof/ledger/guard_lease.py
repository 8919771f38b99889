"""Who guards the whole machine now: one guard for each user, one for the system. The runs leave unmanaged jobs to it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from oomproof.errors import OomproofError
from oomproof.leaf.proc_files import is_stopped
from oomproof.leaf.small_files import read_object
from oomproof.ledger.paused_jobs import SYSTEM_FOLDER
from oomproof.machine import processes
from oomproof.recording.state_files import runtime_folder, take_lock, write_json
from oomproof.records import dataclass

_LOCK, _FILE = "guard.lock", "guard.json"


@dataclass(frozen=True, slots=True)
class GuardLease:
    pid: int
    start: int
    since: float  # wall time
    system: bool
    dry_run: bool
    floor: int = 0  # bytes, where it acts; 0: not told


def holder() -> GuardLease | None:
    """The guard that decides about unmanaged jobs here: the system's before the user's own. One that acts on nothing is none."""
    lease = read(SYSTEM_FOLDER, system=True)
    if lease is None or lease.dry_run:  # only then: the system's own guard has no folder of a user's
        lease = own()
    return None if lease is None or lease.dry_run else lease


def own() -> GuardLease | None:
    """This user's."""
    try:
        return read(runtime_folder())
    except (OSError, OomproofError):
        return None


def read(folder: Path, system: bool = False) -> GuardLease | None:
    """None where it has ended, however it did."""
    path = folder / _FILE
    try:
        if system and os.stat(path).st_uid != 0:
            return None
    except OSError:
        return None
    values: dict[str, Any] = read_object(str(path))
    try:
        lease = GuardLease(
            int(values["pid"]),
            int(values["start"]),
            float(values["since"]),
            system,
            bool(values.get("dry_run")),
            int(values.get("floor") or 0),
        )
    except (KeyError, TypeError, ValueError):
        return None
    lives = processes.is_alive(lease.pid, lease.start) and not is_stopped(lease.pid)
    return lease if lives else None


def take(folder: Path, dry_run: bool, floor: int = 0) -> int:
    """A descriptor, held as long as the guard lives. Raises OomproofError where another guard has it."""
    lock = take_lock(folder / _LOCK)
    if lock is None:
        held = read(folder)
        who = (
            f"pid {held.pid}, since {time.strftime('%H:%M', time.localtime(held.since))}"
            if held
            else "another one"
        )
        raise OomproofError(f"a guard is running already: {who}", "see it: oomproof guard status")
    start = processes.start_time(os.getpid())
    path = folder / _FILE
    write_json(
        path, {"pid": os.getpid(), "start": start, "since": time.time(), "dry_run": dry_run, "floor": floor}
    )
    if folder == SYSTEM_FOLDER:
        path.chmod(0o644)
    return lock


def leave(folder: Path) -> None:
    (folder / _FILE).unlink(missing_ok=True)
