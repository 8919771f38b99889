"""Which of this user's runs are alive, and what they hold.

One small locked file per live run, in a folder that is gone after a reboot. The lock goes with its process, so a
killed guard leaves the list by itself. Nobody waits for anybody: a record is one write, a look is one read per run.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path

from oomproof.errors import OomproofError
from oomproof.leaf.small_files import is_locked
from oomproof.recording.state_files import runtime_folder
from oomproof.records import dataclass, replace

# bytes held, boottime of the update, bytes per second of growth, paused (0 no, 1 by its guard, 2 by hand), flags
# (1 protected, 2 its need is reserved), the leader's pid and start, bytes that are reserved for it
_RECORD = struct.Struct("=qdqBBiqq")
RECORD_SIZE = _RECORD.size
WHEN, WHEN_AT = struct.Struct("=d"), 8  # in that record, and in what a run says of its growth
_LATCH = struct.Struct("=di?")  # boottime of the last action, its guard's pid, whether it was a resume
CHECK_SLOT_SECONDS = 5.0  # seconds between looks whether our file is still where the others look
LATCH_STUCK = 2.0  # seconds: a lock that is held for longer belongs to a guard that was stopped
ACTION_PAUSE = 1.0  # seconds between machine-wide actions: freed memory needs a moment to show
_STALE = 3.0  # seconds: a guard that is short of memory writes ten times a second, one that is not, once

RUNS, BY_GUARD, BY_HAND = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Live:
    """One run as its guard last wrote it. Names sort by age."""

    name: str
    use: int = 0
    t: float = 0.0
    rate: int = 0
    paused: int = RUNS
    protected: bool = False
    pid: int = 0
    start: int = 0
    reserved: bool = False  # its need was known when it was let in
    uid: int | None = None  # None: whoever asks
    need: int = 0  # reserved for it

    @property
    def id(self) -> str:
        return self.name.split("-", 1)[1]


class LiveRun:
    """This run's place among the living.

    The folder may be full, or vanish (at a logout) and come back: then ``update`` and ``others`` raise OSError until
    the place could be taken again, which ``update`` tries every few seconds.
    """

    def __init__(
        self,
        run_id: str,
        boottime: float,
        folder: Path | None = None,
        protected: bool = False,
        leader: tuple[int, int | None] = (0, None),
        need: int | None = None,
    ) -> None:
        """``need``: bytes that are reserved for it."""
        self._given = folder
        self.id = run_id
        self.name = f"{int(boottime * 1000):015d}-{run_id}"  # sorts by age
        self.protected, self.need = protected, need
        self._paused = RUNS
        self._who = (leader[0], leader[1] or 0)
        self._folder: Path | None = None  # None: no place yet, or lost
        self._fd: int | None = None
        self._latch: int | None = None
        self._latch_busy_since: float | None = None
        self._next_check = 0.0
        self._why_not: Exception = FileNotFoundError("no place was taken yet")
        self._take_slot()

    def _take_slot(self) -> None:
        try:
            self._join(self._given or runtime_folder())
        except (OSError, OomproofError) as error:
            self._on_slot_lost(error)

    def _join(self, runtime: Path) -> None:
        """Everything of ours in the runtime folder, made and opened anew."""
        folder = runtime / "live"
        folder.mkdir(mode=0o700, exist_ok=True)
        sweep(folder)
        self._latch = os.open(runtime / "latch", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while True:
            self._fd = os.open(folder / self.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            _lock(self._fd)
            if os.fstat(self._fd).st_nlink:
                break
            os.close(self._fd)  # swept by another start between the open and the lock
        self._folder = folder

    def _on_slot_lost(self, error: Exception) -> None:
        self._folder, self._why_not = None, error
        for fd in (self._fd, self._latch):
            if fd is not None:
                os.close(fd)
        self._fd = self._latch = None

    def _check_slot(self, boottime: float) -> None:
        """Now and then: whether our file is still where the others look for it; if not, it is made there."""
        if 0 <= self._next_check - boottime <= CHECK_SLOT_SECONDS:
            return
        self._next_check = boottime + CHECK_SLOT_SECONDS
        try:
            there = os.stat((self._given or runtime_folder()) / "live" / self.name)
            ours = os.fstat(self._fd) if self._fd is not None else None
        except (OSError, OomproofError) as error:
            self._on_slot_lost(error)
        else:
            if ours is not None and (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return
            self._on_slot_lost(FileNotFoundError("the file is another one"))
        self._take_slot()

    def _need_slot(self) -> Path:
        if self._folder is None:
            raise OSError(f"{self._why_not}") from self._why_not
        return self._folder

    def update(self, use: int, boottime: float, rate: float = 0.0, paused: int = RUNS) -> None:
        self._paused = paused
        self._check_slot(boottime)
        self._need_slot()
        flags = self.protected | (self.need is not None) << 1
        put(self._fd, _RECORD.pack(use, boottime, int(rate), paused, flags, *self._who, self.need or 0))

    def confirm(self, boottime: float) -> None:
        """What was last said holds still."""
        self._need_slot()
        put(self._fd, WHEN.pack(boottime), WHEN_AT)

    def others(self, now: float) -> list[Live]:
        """Every other live run of this user, oldest first."""
        runs = []
        folder = self._need_slot()
        for name in sorted(os.listdir(folder)):
            path = folder / name
            if name != self.name and is_locked(path):
                runs.append(_believed(_read(path), now))
        return runs

    def take_latch(self, boottime: float, pause: float = ACTION_PAUSE, resume: bool = False) -> bool:
        """True when no run acted on the machine's shortage within ``pause``; then this one has it.

        A resume of one's own does not count: a job that resumes and fills the machine at once must not wait for itself.
        """
        self._need_slot()
        assert self._latch is not None
        try:
            fcntl.flock(self._latch, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # held for microseconds, unless its holder was stopped in between
            self._latch_busy_since = self._latch_busy_since or boottime
            return boottime - self._latch_busy_since > LATCH_STUCK
        self._latch_busy_since = None
        try:
            data = os.pread(self._latch, _LATCH.size, 0)
            last, who, resumed = _LATCH.unpack(data) if len(data) == _LATCH.size else (0.0, 0, False)
            own_resume = resumed and who == os.getpid()
            if 0 <= boottime - last < pause and not own_resume:
                return False
            put(self._latch, _LATCH.pack(boottime, os.getpid(), resume))
            return True
        finally:
            fcntl.flock(self._latch, fcntl.LOCK_UN)

    def leave(self) -> None:
        if self._folder is not None:
            try:
                os.unlink(self._folder / self.name)
            except OSError:
                pass  # the folder was cleaned under us
        self._on_slot_lost(FileNotFoundError("the run has ended"))


def _lock(fd: int) -> None:
    """Ours in the end: others only glance at it (is_locked), for microseconds."""
    for _ in range(40):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.005)
    raise BlockingIOError("somebody else has this run's place")


def put(fd: int | None, record: bytes, at: int = 0) -> None:
    """Whole or not at all: a full folder may take a part."""
    if fd is None or os.pwrite(fd, record, at) != len(record):
        raise OSError("the runtime folder is full")


def _read(path: Path) -> Live:
    try:
        return parsed(path.name, path.read_bytes())
    except OSError:
        return Live(path.name)


def parsed(name: str, data: bytes) -> Live:
    """The run as its record describes it; only its name where the record is just being made."""
    if len(data) < RECORD_SIZE:
        return Live(name)
    use, t, rate, paused, flags, pid, start, need = _RECORD.unpack_from(data)
    protected, reserved = bool(flags & 1), bool(flags & 2)
    return Live(name, use, t, rate, paused, protected, pid, start, reserved, need=need)


def everybody(now: float | None = None, folder: Path | None = None) -> list[Live]:
    """Every live run of this user, oldest first, for who is no run itself; nobody where that cannot be told. Given ``now``, what
    a silent guard said of its growth is not believed."""
    try:
        live = (folder or runtime_folder()) / "live"
        runs = [_read(path) for path in sorted(live.iterdir()) if is_locked(path)]
    except (OSError, OomproofError):
        return []
    return runs if now is None else [_believed(run, now) for run in runs]


def _believed(run: Live, now: float) -> Live:
    return run if now - run.t <= _STALE else replace(run, rate=0)


def count(folder: Path | None = None) -> int:
    """How many runs of this user are alive; 0 where that cannot be told."""
    try:
        live = (folder or runtime_folder()) / "live"
        return sum(is_locked(path) for path in live.iterdir())
    except (OSError, OomproofError):
        return 0


def sweep(live: Path) -> None:
    """Removes the files of guards that were killed."""
    for path in live.iterdir():
        if not is_locked(path):
            path.unlink(missing_ok=True)


def held_by_all(folder: Path) -> dict[str, tuple[int, float]]:
    """Run → (bytes held, boottime of that update), as the runs themselves wrote it; for readers."""
    by_run: dict[str, tuple[int, float]] = {}
    try:
        names = os.listdir(folder / "live")
    except OSError:
        return by_run
    for name in names:
        run = _read(folder / "live" / name)
        if run.t:  # else it is gone, or just being made
            by_run[name.partition("-")[2]] = (run.use, run.t)
    return by_run
