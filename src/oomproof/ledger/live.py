"""Which of this user's runs are alive, what they hold, and whose turn it is when the whole machine runs short.

One small locked file per live run, in a folder that is gone after a reboot. The lock goes with its process, so a
killed guard leaves the list by itself. Nobody waits for anybody: a record is one write, a look is one read per run.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oomproof.errors import OomproofError
from oomproof.ledger.runtime import runtime_folder
from oomproof.recording.runs import is_locked

# bytes held, boottime of the update, bytes per second of growth, frozen (0 no, 1 by its guard, 2 by hand), flags
# (1 protected, 2 its need is reserved), the leader's pid and start
_RECORD = struct.Struct("=qdqBBiq")
_FIRST = struct.Struct("=qd")  # all that the first version wrote
_LATCH = struct.Struct("=di?")  # boottime of the last action, its guard's pid, whether it was a thaw
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
    frozen: int = RUNS
    protected: bool = False
    pid: int = 0
    start: int = 0
    reserved: bool = False  # its need was known when it was let in

    @property
    def id(self) -> str:
        return self.name.split("-", 1)[1]


@dataclass(frozen=True, slots=True)
class Turns:
    """What the others mean for this run, at one moment."""

    to_end: bool = True  # newest unprotected run whose end would help
    to_freeze: bool = False  # the run whose pause would help, newest first
    to_thaw: bool = True  # no older run of ours waits to go on
    running: int = 0  # others of ours that are not frozen: who can finish and give room
    waiting: int = 0  # others that their guards have frozen: they wait for us too


def turns(me: Live, others: Sequence[Live], worth: int, shrink: float, can_push: bool) -> Turns:
    """Newest first, protected last; of those to pause, first the one that reserved nothing. Pure.

    Freezing stops growth; only with swap to push it out to does it free what a job holds. So without such swap the
    newest *growing* run is the one to freeze; with it, or when no run of ours grows, the newest that holds enough.
    """
    everybody = [me, *others]
    grows = max(1 << 20, shrink / 4)

    def helps(one: Live) -> bool:
        return one.use >= worth or one.rate >= max(1 << 20, shrink / 2)

    def before_me(one: Live) -> bool:
        """Whose end comes before mine."""
        if one.protected != me.protected:
            return me.protected
        return one.name > me.name

    free = [one for one in everybody if not one.frozen and not one.protected]
    growers = [one for one in free if one.rate >= grows]
    holders = [one for one in free if one.use >= worth]
    pool = holders if can_push and holders else growers or holders
    return Turns(
        to_end=not any(helps(one) and before_me(one) for one in others),
        to_freeze=bool(pool) and max(pool, key=lambda one: (not one.reserved, one.name)).name == me.name,
        to_thaw=not any(one.frozen == BY_GUARD and one.name < me.name for one in others),
        running=sum(not one.frozen for one in others),
        waiting=sum(one.frozen == BY_GUARD for one in others),
    )


class LiveRun:
    """This run's place among the living."""

    def __init__(
        self,
        run_id: str,
        boottime: float,
        folder: Path | None = None,
        protected: bool = False,
        leader: tuple[int, int | None] = (0, None),
        reserved: bool = False,
    ) -> None:
        self._folder = (folder or runtime_folder()) / "live"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        sweep(self._folder)
        name = f"{int(boottime * 1000):015d}-{run_id}"  # sorts by age
        self.name, self.protected, self.reserved = name, protected, reserved
        self._frozen = RUNS
        self._who = (leader[0], leader[1] or 0)
        while True:
            self._fd = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            if os.fstat(self._fd).st_nlink:
                break
            os.close(self._fd)  # swept by another start between the open and the lock
        self._latch = os.open(self._folder.parent / "latch", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def update(self, use: int, boottime: float, rate: float = 0.0, frozen: int = RUNS) -> None:
        self._frozen = frozen
        record = _RECORD.pack(
            use, boottime, int(rate), frozen, self.protected | self.reserved << 1, *self._who
        )
        os.pwrite(self._fd, record, 0)

    def me(self, use: int, t: float, rate: float) -> Live:
        """This run as the others would see it now."""
        return Live(self.name, use, t, int(rate), self._frozen, self.protected, *self._who, self.reserved)

    def others(self, now: float) -> list[Live]:
        """Every other live run of this user, oldest first. What a silent guard said of its growth is not believed."""
        found = []
        for name in sorted(os.listdir(self._folder)):
            path = self._folder / name
            if name != self.name and is_locked(path):
                one = _read(path)
                found.append(one if now - one.t <= _STALE else replace(one, rate=0))
        return found

    def take_latch(self, boottime: float, pause: float = ACTION_PAUSE, thaw: bool = False) -> bool:
        """True when no run acted on the machine's shortage within ``pause``; then this one has it.

        A thaw of one's own does not count: a job that goes on and fills the machine at once must not wait for itself.
        """
        try:
            fcntl.flock(self._latch, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        try:
            data = os.pread(self._latch, _LATCH.size, 0)
            last, who, thawed = _LATCH.unpack(data) if len(data) == _LATCH.size else (0.0, 0, False)
            own_thaw = thawed and who == os.getpid()
            if 0 <= boottime - last < pause and not own_thaw:
                return False
            os.pwrite(self._latch, _LATCH.pack(boottime, os.getpid(), thaw), 0)
            return True
        finally:
            fcntl.flock(self._latch, fcntl.LOCK_UN)

    def leave(self) -> None:
        try:
            os.unlink(self._folder / self.name)
        except OSError:
            pass  # the folder was cleaned under us
        os.close(self._fd)
        os.close(self._latch)


def _read(path: Path) -> Live:
    try:
        data = path.read_bytes()
        if len(data) >= _RECORD.size:
            use, t, rate, frozen, flags, pid, start = _RECORD.unpack(data[: _RECORD.size])
            return Live(path.name, use, t, rate, frozen, bool(flags & 1), pid, start, bool(flags & 2))
        use, t = _FIRST.unpack(data[: _FIRST.size])
        return Live(path.name, use, t)
    except (OSError, struct.error):
        return Live(path.name)


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
    found: dict[str, tuple[int, float]] = {}
    try:
        names = os.listdir(folder / "live")
    except OSError:
        return found
    for name in names:
        try:
            with open(f"{folder}/live/{name}", "rb", buffering=0) as file:
                held, at = _FIRST.unpack(file.read(_FIRST.size))
        except (OSError, struct.error):  # gone, or just being made
            continue
        found[name.partition("-")[2]] = (int(held), float(at))
    return found
