"""Which recordings may go, and their going. A run that lives is never one of them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from typing import Any

from oomproof.recording.run_folders import ELSEWHERE, Run, runs_folder
from oomproof.recording.state_files import take_lock
from oomproof.records import dataclass

_ALIVE = ("running", "paused", "unguarded", "starting", "waiting")
_SILENT = 7 * 86400.0  # seconds without a write after which a run on another host is taken for over


@dataclass(frozen=True, slots=True)
class Stored:
    """One run as it lies on the disk."""

    run: Run
    created: float
    size: int
    alive: bool

    def as_json(self, problem: str | None) -> dict[str, Any]:
        return {
            "id": self.run.id,
            "name": self.run.name,
            "created": self.created,
            "bytes": self.size,
            "problem": problem,
        }


@dataclass(frozen=True, slots=True)
class Rules:
    """What to keep; None: not asked for. A run goes when one of them lets it go."""

    newest: int | None = None  # runs
    since: float | None = None  # wall seconds: younger ones stay
    total: int | None = None  # bytes of all together


def stored(run: Run) -> Stored:
    return Stored(run, run.created, disk_use(str(run.folder)), _lives(run))


def _lives(run: Run) -> bool:
    """Also one that has ended and whose keeper or guard still cleans up."""
    state = run.state()
    if state == ELSEWHERE and _written_lately(run):  # a guard writes every second, whatever its job does
        return True
    return state in _ALIVE or run.keeper_lives() or run.guard_lives()


def _written_lately(run: Run) -> bool:
    try:
        with os.scandir(run.attempt) as entries:
            newest = max(
                (entry.stat(follow_symlinks=False).st_mtime for entry in entries), default=run.created
            )
    except OSError:
        return True  # cannot be told
    return time.time() - newest < _SILENT


def disk_use(folder: str) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
            except OSError:
                pass  # gone meanwhile
    return total


def choose(candidates: Sequence[Stored], rules: Rules) -> list[Stored]:
    """Those to remove, oldest first. Runs that live count, and stay."""
    ordered = sorted(candidates, key=lambda candidate: (candidate.created, candidate.run.id), reverse=True)
    going: list[Stored] = []
    used, full = 0, False
    for index, stored in enumerate(ordered):
        # without a date (a damaged run.json) its age is not known: age alone does not remove it
        aged = rules.since is not None and 0 < stored.created < rules.since
        beyond = rules.newest is not None and index >= rules.newest
        # from the first that does not fit, all older ones go: a small old run is not kept in place of a large new one
        full = full or (rules.total is not None and used + stored.size > rules.total)
        if not stored.alive and (aged or beyond or full):
            going.append(stored)
        else:
            used += stored.size
    return going[::-1]


def remove(run: Run) -> str | None:
    """Why it could not be removed, None when it is gone. Its locks are held meanwhile: nobody takes it up again."""
    folder = run.folder
    if folder.parent != runs_folder() or folder.is_symlink() or not folder.is_dir():
        return "not a folder of runs"
    if _lives(run):
        return "it lives"
    held: list[int] = []
    try:
        for path in (run.waiting_lock, run.keeper_lock, run.guard_lock):
            lock = take_lock(path)
            if lock is None:
                return "it lives"
            held.append(lock)
        shutil.rmtree(folder)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        for lock in held:
            os.close(lock)
    return None
