"""output.log: what the job printed, kept up to a cap, synced now and then. For front and keeper alike."""

from __future__ import annotations

import contextlib
import os
import time

from oomproof.leaf.attempt_names import OUTPUT, OUTPUT_BEFORE, OUTPUT_FIRST, OUTPUT_PLACES
from oomproof.leaf.small_files import sync
from oomproof.runner.followed_file import AT_ONCE, Followed

CHUNK = 65536  # bytes of the job's output read at once
_BACKLOG = 1 << 20  # bytes of output that wait in memory for a disk, or for a descriptor
OUTPUT_CAP = 96 << 20  # bytes of output.log with its older parts


class Output:
    """output.log with a cap: the first part is kept as output.first.log, the last two as .prev and .log.

    One writer at a time: the front, and after it the keeper.
    """

    def __init__(self, folder: str, cap: int) -> None:
        self._folder = folder
        self._part = max(4096, cap // 3)
        self._size = 0
        self.trouble: str | None = None
        self._next_try = 0.0
        self._backlog = b""  # what no file took yet
        self._lost = False
        self._fd: int | None = self._open()

    def _open(self) -> int | None:
        """Not O_APPEND: splice refuses that."""
        try:
            fd = os.open(f"{self._folder}/{OUTPUT}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._size = os.lseek(fd, 0, os.SEEK_END)
            return fd
        except OSError as error:
            self.trouble = f"output not stored: {error.strerror}"
            self._next_try = time.monotonic() + 1.0
            return None

    def space_in_first(self) -> int:
        """Bytes until the part is full that is kept whatever comes after it."""
        if os.path.exists(f"{self._folder}/{OUTPUT_FIRST}"):
            return 0
        return max(0, self._part - self._size)

    def place(self, size: int) -> int | None:
        """The descriptor that takes ``size`` more bytes; None while there is none."""
        try:
            if self._fd is None and time.monotonic() >= self._next_try:
                self._fd = self._open()
            if self._fd is not None and self._size and self._size + size > self._part:
                self._rotate()
        except OSError as error:
            self.fail(error)
        return self._fd

    @property
    def behind(self) -> bool:
        """Whether something waits for the file: nothing may be written past it."""
        return bool(self._backlog)

    def wrote(self, size: int) -> None:
        self._size += size

    def fail(self, error: OSError) -> None:
        """Best effort: a full disk must not stop the job."""
        self.trouble = f"output not stored: {error.strerror}"

    def write(self, data: bytes) -> None:
        """What the disk does not take now waits, the oldest goes first."""
        data = self._backlog + data
        fd = self.place(len(data))
        try:
            while data and fd is not None:
                written = os.write(fd, data)
                self._size += written
                data = data[written:]
        except OSError as error:
            self.fail(error)
        self._backlog = data[-_BACKLOG:]
        self._lost = self._lost or len(data) > _BACKLOG
        if not data and not self._lost:
            self.trouble = None

    def follow(self, file: Followed, most: int = 8 * AT_ONCE) -> int:
        """What is new in a file that the job writes to itself; how many bytes. It waits for us, so none is held back.

        Of one that is far ahead only what the cap would keep is read, in a part of its own.
        """
        begun, done = file.place, 0
        waits = file.waiting()  # passes over lines of ours
        if waits > 2 * self._part and not self.space_in_first():
            gap = waits - self._part * 3 // 2
            self.place(self._part)
            self.write(f"\n[oomproof: {gap / 2**20:.1f} MiB of output not stored]\n".encode())
            file.passed(gap)
        while done < most and (waits := file.waiting()):
            if self.behind:
                self.write(b"")
            size = min(AT_ONCE, self._part // 4, most - done, waits)
            if self.behind or not (data := file.peek(size)):
                break
            self.write(data)
            file.passed(len(data))
            done += len(data)
        if file.error is not None:
            self.fail(file.error)
        if file.place != begun:
            note_place(self._folder, file)
        return done

    def finish(self, file: Followed) -> None:
        """The rest, up to its end as it is now: somebody else may still write to it."""
        left = file.waiting()
        while left > 0 and (done := self.follow(file, min(left, 8 * AT_ONCE))):
            left -= done

    def _rotate(self) -> None:
        """Without a new name for the old part nothing more is kept: the cap holds also where the folder is gone."""
        fd, self._fd = self._fd, None
        self._next_try = time.monotonic() + 1.0
        if fd is not None:
            os.close(fd)
        first = f"{self._folder}/{OUTPUT_FIRST}"
        target = f"{self._folder}/{OUTPUT_BEFORE}" if os.path.exists(first) else first
        os.rename(f"{self._folder}/{OUTPUT}", target)
        self._fd = self._open()

    def close(self) -> None:
        if self._backlog:
            self._next_try = 0.0
            self.write(b"")
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def note_place(folder: str, file: Followed) -> None:
    """For whoever follows it on when nobody is left who holds it."""
    with contextlib.suppress(OSError):
        fd = os.open(f"{folder}/{OUTPUT_PLACES}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            row = f"{file.letter} {file.place:020d}\n".encode()
            os.pwrite(fd, row, "OE".index(file.letter) * len(row))
        finally:
            os.close(fd)


def noted_place(folder: str, letter: str) -> int | None:
    with contextlib.suppress(OSError, ValueError), open(f"{folder}/{OUTPUT_PLACES}", "rb") as file:
        for row in file.read().split(b"\n"):
            if row.lstrip(b"\0").startswith(letter.encode()):
                return int(row.split()[1])
    return None


def sync_at_intervals(path: str) -> None:
    """In a thread: what was printed shall outlive a power cut, and no disk may hold the job up for it."""
    synced: tuple[int, int] | None = None
    while True:
        time.sleep(5.0)
        with contextlib.suppress(OSError):  # no output yet, or no folder any more
            status = os.stat(path)
            if (status.st_ino, status.st_size) != synced:
                synced = (status.st_ino, status.st_size)
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    sync(fd)
                finally:
                    os.close(fd)
