"""A file of the user's that the job writes to itself: when the job gets it, and what is new in it, for output.log.

Faster than a pipe through us, and with nobody left but the job its output still arrives. The price: who else writes to
the file cannot be told from the job. So it is done only with a file that nobody shares as far as can be seen; see
docs/decisions.md. Standard library and ``leaf`` only: the keeper follows it too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat

from oomproof.leaf.proc_files import ancestors

AT_ONCE = 1 << 20  # bytes


def open_to_follow(numbers: list[int]) -> dict[int, int]:
    """Which of our streams the job can have itself: number → descriptor that reads it from where it will write.

    Both are one file (`> FILE 2>&1`): they have one descriptor. Not: a file opened for appending, which is how several
    write to one; one that a process above us has open, whose other children write to it; one we may not read.
    """
    readers: dict[int, int] = {}
    for number in numbers:
        same = next((other for other in readers if file_id(other) == file_id(number)), None)
        if same is not None:
            if not _share_place(same, number):  # `> FILE 2> FILE`: they would write over each other
                os.close(readers.pop(same))
            else:
                readers[number] = readers[same]
        elif (fd := _open_to_read(number)) is not None:
            readers[number] = fd
    return readers


def _open_to_read(number: int) -> int | None:
    try:
        if not is_file(number) or fcntl.fcntl(number, fcntl.F_GETFL) & os.O_APPEND or _is_above(number):
            return None
        fd = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # closed, write-only for us, or no /proc
        return None
    try:
        if file_id(fd) == file_id(number):
            os.lseek(fd, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
            return fd
    except OSError:
        pass
    os.close(fd)
    return None


def is_file(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)


def file_id(fd: int) -> tuple[int, int]:
    """Zeros for one that is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def _share_place(one: int, other: int) -> bool:
    """Whether both write at the same place, as after `2>&1`."""
    try:
        place = os.lseek(one, 0, os.SEEK_CUR)
        os.lseek(one, place + 1, os.SEEK_SET)
        moved = os.lseek(other, 0, os.SEEK_CUR)
        os.lseek(one, place, os.SEEK_SET)
    except OSError:
        return False
    return moved == place + 1


def _is_above(number: int) -> bool:
    """By name, which waits for no file system: a script whose whole output goes there, `timeout`, a program that starts us."""
    name = os.readlink(f"/proc/self/fd/{number}")
    for pid in ancestors(os.getpid()):
        with contextlib.suppress(OSError):
            for entry in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{entry}") == name:
                        return True
    return False


def followed(held: dict[str, int]) -> list[Followed]:
    """Those of the streams, by letter, that are files."""
    return [Followed(fd, letter) for letter, fd in held.items() if letter in "OE" and is_file(fd)]


class Followed:
    """Where reading stands is the descriptor's own place, which all who hold it share: whoever reads on begins there."""

    def __init__(self, fd: int, letter: str) -> None:
        self.fd, self.letter = fd, letter
        # why nothing can be read now: a network that is gone, a broken disk
        self.error: OSError | None = None
        self._own: list[tuple[int, int]] = []  # where our own lines are, not read yet

    @property
    def place(self) -> int:
        return os.lseek(self.fd, 0, os.SEEK_CUR)

    def waiting(self) -> int:
        """Bytes not read yet. A file that was cut short begins anew."""
        place = self.place
        try:
            size = os.fstat(self.fd).st_size
        except OSError as error:
            self.error = error
            return 0
        if size < place:
            self._own.clear()
            place = self._go(0)
        while self._own and self._own[0][0] <= place:
            place = self._go(max(place, self._own.pop(0)[1]))
        return max(0, size - place)

    def peek(self, most: int = AT_ONCE) -> bytes:
        """The next bytes of the job's; ``passed`` when they are kept. A hole, left by a cut, is passed over."""
        place = self.place
        if self._own:
            most = min(most, self._own[0][0] - place)
        try:
            data = os.pread(self.fd, most, place)
            if data.startswith(b"\0"):
                with contextlib.suppress(OSError):  # nothing but a hole to the end
                    data = os.pread(self.fd, most, os.lseek(self.fd, place, os.SEEK_DATA))
        except OSError as error:
            self.error = error
            return b""
        self.error = None
        return data

    def passed(self, size: int) -> None:
        self._go(self.place + size)

    def _go(self, place: int) -> int:
        return os.lseek(self.fd, place, os.SEEK_SET)

    def has_no_space(self) -> bool:
        """Whether its disk is full: the job's own writes failed, and perhaps the words it had for that too."""
        try:
            disk = os.fstatvfs(self.fd)
        except OSError:
            return False
        return (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail) * disk.f_frsize < 4096

    def write_own(self, number: int, data: bytes) -> None:
        """A line of ours to the same file, between the job's: it is no output of the job's."""
        with contextlib.suppress(OSError):  # a full disk costs the line
            before = os.lseek(number, 0, os.SEEK_CUR)
            written = os.write(number, data)
            after = os.lseek(number, 0, os.SEEK_CUR)
            place = os.pread(self.fd, min(after - before, 16 * AT_ONCE), before).find(data[:written])
            if place >= 0:
                self._own.append((before + place, before + place + written))

    def is_where(self, number: int) -> bool:
        return file_id(self.fd) == file_id(number)
