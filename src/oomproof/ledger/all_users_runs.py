"""The live runs of all users, for a guard of root's. Nothing that a user wrote there is trusted, followed or waited for.

Each user's runs write what they hold into a folder of that user's (live_runs.py). Somebody may have put anything there: links,
pipes, a file of gigabytes, a million files, a mount that never answers, another user's processes. So every step is opened below
the last without following links and must belong to that user; a file is regular, a few bytes of it are read, and a process
counts only if it is that user's too. It is read in a thread of its own: what does not answer leaves the answer empty.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice

from oomproof.leaf.proc_files import owner_of, read_text
from oomproof.ledger.live_runs import RECORD_SIZE, Live, parsed
from oomproof.machine import processes
from oomproof.records import dataclass, replace

_MOST_USERS, _MOST_RUNS, _MOST_NAMES = 256, 64, 100_000
_MOST_HELD = 1 << 50
_NAME = re.compile(r"\d{15}-[\w.:+-]{1,100}", re.ASCII)
_READ_EVERY, _OLD = 1.0, 10.0  # seconds
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


@dataclass(frozen=True, slots=True)
class Place:
    """Where users have their runtime folders: ``base`` is root's, a name in it tells the user, ``below`` leads on from there."""

    base: str
    pattern: re.Pattern[str]
    below: tuple[str, ...] = ()


PLACES = (
    Place("/run/user", re.compile(r"(\d{1,10})"), ("oomproof",)),
    Place("/tmp", re.compile(r"oomproof-(\d{1,10})")),
)


class AllUsersRuns:
    """What was read last, and a new reading begun where that is more than a second old. Never waits."""

    def __init__(self, places: Sequence[Place] = PLACES, proc: str = "/proc") -> None:
        self._places, self._proc = places, proc
        self._runs: list[Live] = []
        self._at = self._begun = float("-inf")
        self._busy = threading.Lock()

    def __call__(self, now: float) -> list[Live]:
        if now - self._begun >= _READ_EVERY and self._busy.acquire(blocking=False):
            self._begun = now
            try:
                threading.Thread(target=self._read, args=(now,), name="all-runs", daemon=True).start()
            except RuntimeError:  # no more threads
                self._busy.release()
        return self._runs if now - self._at <= _OLD else []

    def _read(self, now: float) -> None:
        try:
            self._runs, self._at = read_all(now, self._places, self._proc), now
        except Exception:  # then none of them is known
            pass
        finally:
            self._busy.release()


def read_all(now: float, places: Sequence[Place] = PLACES, proc: str = "/proc") -> list[Live]:
    """Of every user, oldest first."""
    runs: dict[tuple[int, str], Live] = {}
    foreign = _mounted_by_users(proc)
    for place in places:
        for name, uid in islice(_users(place, foreign), _MOST_USERS):
            read = _below(place.base, (name, *place.below, "live"), uid, now, proc)
            runs |= {(uid, run.name): run for run in read}
    return sorted(runs.values(), key=lambda run: (run.name, run.uid or 0))


def _mounted_by_users(proc: str) -> list[str]:
    """Mounts that a user may have made, whose server may never answer."""
    lines = (line.split(" ") for line in read_text(f"{proc}/self/mountinfo").splitlines())
    return [words[4] for words in lines if "-" in words and words[words.index("-") + 1].startswith("fuse")]


def _users(place: Place, foreign: Sequence[str]) -> Iterator[tuple[str, int]]:
    try:
        with os.scandir(place.base) as entries:
            names = [entry.name for entry in islice(entries, _MOST_NAMES)]
    except OSError:
        return
    for name in names:
        if (match := place.pattern.fullmatch(name)) is None:
            continue
        path = "/".join((place.base, name, *place.below, "live"))
        if any(path == point or path.startswith(f"{point}/") for point in foreign):
            continue
        try:  # a user may make folders with any name in /tmp: they do not count
            if os.lstat(f"{place.base}/{name}").st_uid == int(match[1]):
                yield name, int(match[1])
        except OSError:
            continue


@contextmanager
def _opened(
    path: str | os.PathLike[str], flags: int, uid: int | None, folder: int | None = None
) -> Iterator[int]:
    """A descriptor of something that is this user's; raises OSError."""
    fd = os.open(path, flags, dir_fd=folder)
    try:
        if uid is not None and os.fstat(fd).st_uid != uid:
            raise PermissionError("it is another user's")
        yield fd
    finally:
        os.close(fd)


def _below(base: str, steps: Sequence[str], uid: int, now: float, proc: str) -> list[Live]:
    try:
        with ExitStack() as stack:
            fd = stack.enter_context(_opened(base, _FOLDER, None))
            for step in steps:
                fd = stack.enter_context(_opened(step, _FOLDER, uid, fd))
            with os.scandir(fd) as entries:
                names = [entry.name for entry in islice(entries, 16 * _MOST_RUNS)]
            named = (name for name in sorted(names) if _NAME.fullmatch(name))
            runs = (_run(fd, name, uid, now, proc) for name in named)
            return list(islice((run for run in runs if run is not None), _MOST_RUNS))
    except OSError:  # not there, or not theirs
        return []


def _run(folder: int, name: str, uid: int, now: float, proc: str) -> Live | None:
    """None: no run that lives."""
    try:
        with _opened(name, _FILE, uid, folder) as fd:
            if not stat.S_ISREG(os.fstat(fd).st_mode) or not _is_locked(fd):
                return None
            data = os.pread(fd, RECORD_SIZE, 0)
    except OSError:
        return None
    run = parsed(name, data)
    pid = run.pid if _is_theirs(run, uid, proc) else 0
    rate = run.rate if 0 <= now - run.t <= _OLD and run.rate > 0 else 0
    return replace(run, uid=uid, pid=pid, use=max(0, min(run.use, _MOST_HELD)), rate=min(rate, _MOST_HELD))


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _is_theirs(run: Live, uid: int, proc: str) -> bool:
    return (
        run.pid > 1
        and owner_of(run.pid, proc) == uid
        and processes.is_alive(run.pid, run.start or None, proc)
    )
