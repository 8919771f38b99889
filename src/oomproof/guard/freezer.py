"""Pauses a job and resumes it: cgroup v2 freezer, v1 freezer, else SIGSTOP to the whole tree.

Who is paused, by whom and until when stands in ``paused.json`` beside the recording: the guard, `oomproof pause`,
`oomproof resume` and the keeper all go by it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from oomproof.leaf.process_signals import send_signal
from oomproof.machine import processes
from oomproof.recording import state_files
from oomproof.recording.attempt import Attempt

BY_CGROUP_V2, BY_CGROUP_V1, BY_SIGNALS = "cgroup v2 freezer", "cgroup v1 freezer", "SIGSTOP"
# A process may fork between our list and our signal; the next round finds the child. A tree of twenty that fork without
# pause is stopped whole well within ten (tests/incidents/test_freeze.py).
_ROUNDS = 10
# D: inside the kernel, and stopped before it runs one more line of its own. A parent in vfork waits so for its stopped
# child, for as long as that is stopped (seen with Python's subprocess).
_STILL = (b"T", b"t", b"D", b"Z", b"X")


class Freezer:
    """Everything it needs is opened at the start: at the bad moment even opening a file may fail."""

    def __init__(self, path: str | None, pids: Callable[[], list[int]], proc: str = "/proc") -> None:
        self._pids, self._proc = pids, proc
        self._fd = _open(path, os.O_RDWR) if path else None
        self._events: int | None = None
        self._asked = False
        self.how = BY_SIGNALS
        if self._fd is not None and path is not None:
            if path.endswith("cgroup.freeze"):
                self.how = BY_CGROUP_V2
                self._events = _open(f"{os.path.dirname(path)}/cgroup.events", os.O_RDONLY)
            else:
                self.how = BY_CGROUP_V1

    def pause(self) -> bool:
        """Returns at once: the kernel stops each process when it next leaves the kernel. ``is_paused`` tells when."""
        self._asked = True
        if self._write(b"1" if self.how == BY_CGROUP_V2 else b"FROZEN"):
            return True
        if self.how != BY_SIGNALS and self._fd is not None:
            return False  # the cgroup is gone, and the job with it
        return self._stop_all()

    def resume(self) -> bool:
        """Harmless for a job that runs."""
        self._asked = False
        if self._write(b"0" if self.how == BY_CGROUP_V2 else b"THAWED"):
            return True
        if self.how != BY_SIGNALS and self._fd is not None:
            return False
        for pid in self._pids():
            send_signal(pid, signal.SIGCONT)
        return True

    def is_paused(self) -> bool:
        """Whether all of it is paused now."""
        if self.how == BY_CGROUP_V2:
            return b"frozen 1" in _pread(self._events)
        if self.how == BY_CGROUP_V1:
            return _pread(self._fd).strip() == b"FROZEN"
        states = [self._state(pid) for pid in self._pids()]
        return bool(states) and all(state in _STILL for state in states)

    def resumed_by_others(self) -> bool:
        """Whether somebody else has resumed it since ``pause``. Only a cgroup remembers what was asked of it."""
        if not self._asked or self.how == BY_SIGNALS:
            return False
        return _pread(self._fd).strip() in (b"0", b"THAWED")

    def wait_paused(self, seconds: float) -> bool:
        """For those who have time: a process deep in the kernel (a slow disk) stops only when it comes out."""
        end = time.monotonic() + seconds
        while not self.is_paused():
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True

    @property
    def kill_needs_resume(self) -> bool:
        """A SIGKILL reaches a job frozen by v2 or stopped by a signal; under the v1 freezer it waits for the resume."""
        return self.how == BY_CGROUP_V1

    def _write(self, value: bytes) -> bool:
        if self._fd is None:
            return False
        try:
            os.pwrite(self._fd, value, 0)
        except OSError:
            return False
        return True

    def _stop_all(self) -> bool:
        """True when a last list shows nobody new: whoever has the signal forks no more, even before it has stopped."""
        told: set[int] = set()
        for _ in range(_ROUNDS):
            new = [pid for pid in self._pids() if pid not in told]
            if not new:
                return True
            for pid in new:
                send_signal(pid, signal.SIGSTOP)
            told.update(new)
        return False

    def _state(self, pid: int) -> bytes:
        if not os.path.isdir(self._proc):  # macOS: what we asked for is all we know
            return b"T" if self._asked else b"R"
        fields = processes.stat_fields(pid, self._proc)
        return fields[0] if fields else b"X"

    def close(self) -> None:
        for fd in (self._fd, self._events):
            if fd is not None:
                os.close(fd)


def _open(path: str, flags: int) -> int | None:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError:
        return None


def _pread(fd: int | None) -> bytes:
    try:
        return os.pread(fd, 256, 0) if fd is not None else b""
    except OSError:
        return b""


# --- the mark on disk -------------------------------------------------------------------------------------------------


def new_id() -> str:
    """Of one pause: a mark that is late, written or removed, must not be taken for another pause's."""
    return f"{os.getpid()}-{time.monotonic_ns():x}"


def write_mark(
    attempt: Attempt, by: str, why: str, until: float | None = None, pause: str = "", moving: bool = False
) -> bool:
    """``by`` is guard or user; ``until`` a wall time, None for as long as the user likes. ``pause`` is its id.

    ``moving``: its own threads still move its GPU memory, so nobody may pause it yet.

    False when nothing was written: the user's mark is never replaced by the guard's.
    """
    value = {"by": by, "why": why, "since": time.time(), "until": until, "id": pause or new_id()}
    if moving:
        value["moving"] = True
    with _one_at_a_time(attempt):
        if by == "guard" and read_mark(attempt).get("by") == "user":
            return False
        state_files.write_json(attempt.paused_file, value)
        return True


def mark_moving(attempt: Attempt, moving: bool) -> None:
    """The pause that is on begins, or ends, to have its GPU memory moved."""
    with _one_at_a_time(attempt):
        if mark := read_mark(attempt):
            state_files.write_json(attempt.paused_file, {**mark, "moving": moving})


def read_mark(attempt: Attempt) -> dict[str, Any]:
    """Empty when the job is not meant to be paused."""
    return state_files.read_json(attempt.paused_file)


def remove_mark(attempt: Attempt, pause: str | None = None) -> None:
    """Whoever resumes the job removes the mark of that pause; without an id, any."""
    with _one_at_a_time(attempt):
        if pause is not None and str(read_mark(attempt).get("id") or "") != pause:
            return
        try:
            os.unlink(attempt.paused_file)
        except OSError:
            pass  # it was never written, or the disk is read-only


@contextmanager
def _one_at_a_time(attempt: Attempt) -> Iterator[None]:
    """Between the guard's background task and the user's command. Nobody waits long: a stopped holder must not block a resume."""
    try:
        fd = os.open(attempt, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # no such folder, no descriptors
        yield
        return
    try:
        for _ in range(20):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.01)
        yield
    finally:
        os.close(fd)
