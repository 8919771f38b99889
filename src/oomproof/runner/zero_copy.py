"""Moves bytes between pipes and files inside the kernel: splice and tee. What it cannot do, the caller copies."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import stat
import struct
import sys
import termios

_MODIFY, _ONE_SHOT = 0x2, 0x80000000  # IN_MODIFY, IN_ONESHOT of <sys/inotify.h>


class FileChanges:
    """``fd`` becomes readable; None where there is no inotify, or no instance left for this user."""

    def __init__(self) -> None:
        self.fd: int | None = None
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            fd = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        except (OSError, AttributeError):
            return
        self.fd = fd if fd >= 0 else None

    def arm(self, fd: int) -> bool:
        """The next write to the file tells."""
        if self.fd is None:
            return False
        mask = ctypes.c_uint32(_MODIFY | _ONE_SHOT)
        return int(self._libc.inotify_add_watch(self.fd, f"/proc/self/fd/{fd}".encode(), mask)) >= 0

    def clear(self) -> None:
        try:
            if self.fd is not None:
                os.read(self.fd, 4096)
        except BlockingIOError:
            pass

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


_NONBLOCK = 2  # SPLICE_F_NONBLOCK
_SET_SIZE = getattr(fcntl, "F_SETPIPE_SZ", 1031)

try:
    _tee = ctypes.CDLL(None, use_errno=True).tee if sys.platform == "linux" else None
except (OSError, AttributeError):
    _tee = None

AVAILABLE = _tee is not None and hasattr(os, "splice")


def tee(source: int, target: int, size: int) -> int:
    """Copies between two pipes without taking anything out of the first; 0 at its end. BlockingIOError: empty, or full."""
    assert _tee is not None
    done = int(_tee(source, target, ctypes.c_size_t(size), _NONBLOCK))
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return done


def move(source: int, target: int, size: int) -> int:
    """Out of a pipe into a file or another pipe; less than asked for when that is all there is, or all it takes."""
    done: int = os.splice(source, target, size, flags=_NONBLOCK)
    return done


def waiting(pipe: int) -> int:
    """Bytes that can be read from it now."""
    (size,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))
    return int(size)


def takes_a_page(pipe: int) -> bool:
    """Whether 4 KiB can be written to it without waiting (or will fail at once)."""
    poller = select.poll()
    poller.register(pipe, select.POLLOUT)
    return bool(poller.poll(0))


def widen(pipe: int, size: int) -> None:
    """Fewer turns for the same bytes. Refused to a user who has many: then it stays as it is."""
    try:
        fcntl.fcntl(pipe, _SET_SIZE, size)
    except OSError:
        pass


def is_pipe(fd: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:
        return False


def takes_splice(fd: int) -> bool:
    """A regular file that is not appended to: into one opened with ``>>`` nothing can be spliced."""
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode) and not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND
    except OSError:
        return False


def goes_nowhere(fd: int) -> bool:
    """/dev/null"""
    try:
        status, null = os.fstat(fd), os.stat(os.devnull)
    except OSError:
        return False
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == null.st_rdev


def cannot(error: OSError) -> bool:
    """Not a failure of the target: the kernel does not do it for such a pair of files."""
    return error.errno in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
