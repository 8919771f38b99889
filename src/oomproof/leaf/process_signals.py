"""Signals to processes, and what the kernel tells their parent."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>


def send_signal(pid: int, number: int) -> None:
    """Through a pidfd where there is one: never to somebody else who got the pid. One that is gone is no error."""
    try:
        if not hasattr(os, "pidfd_open"):  # macOS
            os.kill(pid, number)
            return
        fd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)
    except OSError:
        pass


def signal_main_thread(pid: int, number: int) -> None:
    """No other thread of it then runs the handler. One that is gone is no error."""
    import ctypes

    try:
        ctypes.CDLL(None).tgkill(pid, pid, number)
    except AttributeError:  # a C library without it
        send_signal(pid, number)


def realtime_signal(behind: int) -> int:
    """SIGRTMIN + that; 0 where there are no such signals: macOS."""
    return signal.SIGRTMIN + behind if hasattr(signal, "SIGRTMIN") else 0


def signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        send_signal(pid, number)


def peek_status(pid: int) -> int | None:
    """The wait status of a child that has ended; it can still be waited for. None while it lives."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return None
    try:
        status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return None
    if status is None:
        return None
    if status.si_code == os.CLD_EXITED:
        return status.si_status << 8
    return status.si_status | (0x80 if status.si_code == os.CLD_DUMPED else 0)


def become_subreaper() -> bool:
    """Orphans below us become our children. Not on macOS."""
    import ctypes

    try:
        return bool(ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False
