"""How a process ended that is no child of ours: the zombie shows it until its parent looks; since Linux 6.15 a pidfd does after."""

from __future__ import annotations

import fcntl
import struct
import time

from oomproof.machine.processes import stat_fields

# struct pidfd_info of <linux/pidfd.h>, first version: mask, cgroup id, eleven ids, exit code
_SIZE = 64
_GET_INFO = (3 << 30) | (_SIZE << 16) | (0xFF << 8) | 11  # _IOWR(0xFF, 11, struct pidfd_info)
_EXIT = 1 << 3


def wait_status(pid: int, pidfd: int, proc: str = "/proc", patience: float = 0.5) -> int | None:
    """The status its parent gets from wait(), of a process that has just ended; None where nobody tells us."""
    end = time.monotonic() + patience
    while True:
        status = _of_zombie(pid, proc)
        status = _of_pidfd(pidfd) if status is None else status
        if status is not None or time.monotonic() > end:
            return status
        time.sleep(0.01)


def _of_zombie(pid: int, proc: str) -> int | None:
    fields = stat_fields(pid, proc)
    return int(fields[49]) if fields and len(fields) > 49 and fields[0] == b"Z" else None


def _of_pidfd(pidfd: int) -> int | None:
    info = bytearray(_SIZE)
    struct.pack_into("=Q", info, 0, _EXIT)
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:
        return None
    (mask,) = struct.unpack_from("=Q", info, 0)
    return int(struct.unpack_from("=i", info, _SIZE - 4)[0]) if mask & _EXIT else None
