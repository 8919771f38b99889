"""Which of this user's runs are alive, and whose turn it is to act when the whole machine runs short.

One small locked file per live run, in a folder that is gone after a reboot. The lock goes with its process, so a
killed guard leaves the list by itself. The full ledger (reservations, admission) will take this over.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from pathlib import Path

from oomproof.errors import OomproofError
from oomproof.recording.runs import is_locked

_RECORD = struct.Struct("=qd")  # bytes held, boottime of the update
_ACTION_PAUSE = 1.0  # seconds between machine-wide actions: freed memory needs a moment to show


def runtime_folder() -> Path:
    """$XDG_RUNTIME_DIR/oomproof, else a 0700 folder of ours in /tmp whose owner is checked."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isdir(base) and os.access(base, os.W_OK):
        folder = Path(base) / "oomproof"
    else:
        folder = Path("/tmp") / f"oomproof-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise OomproofError(
            f"cannot make {folder}: {error.strerror}", "set XDG_RUNTIME_DIR to your own folder"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise OomproofError(
            f"{folder} belongs to somebody else", "set XDG_RUNTIME_DIR to a folder of your own"
        )
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    return folder


class LiveRun:
    """This run's place among the living."""

    def __init__(self, run_id: str, boottime: float, folder: Path | None = None) -> None:
        self._folder = (folder or runtime_folder()) / "live"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        sweep(self._folder)
        self._name = f"{int(boottime * 1000):015d}-{run_id}"  # sorts by age
        while True:
            self._fd = os.open(self._folder / self._name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            if os.fstat(self._fd).st_nlink:
                break
            os.close(self._fd)  # swept by another start between the open and the lock
        self._latch = os.open(self._folder.parent / "latch", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def update(self, use: int, boottime: float) -> None:
        os.pwrite(self._fd, _RECORD.pack(use, boottime), 0)

    def others_younger_that_help(self, worth: int) -> list[str]:
        """Younger live runs that hold at least ``worth`` bytes: ending one of those would help, so they go first."""
        younger = []
        for name in os.listdir(self._folder):
            if name > self._name and is_locked(self._folder / name) and self._held(name) >= worth:
                younger.append(name.split("-", 1)[1])
        return younger

    def _held(self, name: str) -> int:
        try:
            data = (self._folder / name).read_bytes()
            return int(_RECORD.unpack(data[: _RECORD.size])[0])
        except (OSError, struct.error):
            return 0

    def my_turn(self, worth: int) -> bool:
        return not self.others_younger_that_help(worth)

    def take_latch(self, boottime: float) -> bool:
        """True when no other run acted on the machine's shortage a moment ago; then this one has it."""
        try:
            fcntl.flock(self._latch, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        try:
            data = os.pread(self._latch, 8, 0)
            last = struct.unpack("=d", data)[0] if len(data) == 8 else 0.0
            if 0 <= boottime - last < _ACTION_PAUSE:
                return False
            os.pwrite(self._latch, struct.pack("=d", boottime), 0)
            return True
        finally:
            fcntl.flock(self._latch, fcntl.LOCK_UN)

    def leave(self) -> None:
        try:
            os.unlink(self._folder / self._name)
        except OSError:
            pass  # the folder was cleaned under us
        os.close(self._fd)
        os.close(self._latch)


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
                held, at = _RECORD.unpack(file.read(_RECORD.size))
        except (OSError, struct.error):  # gone, or just being made
            continue
        found[name.partition("-")[2]] = (int(held), float(at))
    return found
