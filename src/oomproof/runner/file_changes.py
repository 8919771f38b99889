"""Tells that a file has grown: inotify, once for each time it is asked, so that a job pays nothing for each line."""

from __future__ import annotations

import ctypes
import os

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
