"""Pauses a job that was not started by us, and resumes it.

It is stopped by signals, for its cgroup is not ours. Before the first is sent, a process that outlives us knows of it
(`resumer`); who is paused, why and until when stands in the runtime folder (`ledger/paused_jobs.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oomproof.guard import resumer
from oomproof.guard.freezer import Freezer
from oomproof.guard.unmanaged_growth import Culprit
from oomproof.guard.view import JobKey, UnmanagedView
from oomproof.leaf.proc_files import is_stopped, name_of, owner_of, stat_fields
from oomproof.leaf.process_signals import signal_all
from oomproof.ledger import paused_jobs
from oomproof.ledger.paused_jobs import PausedJob
from oomproof.machine import processes
from oomproof.machine.clock import boottime
from oomproof.machine.job_ties import member_tie, reads_keys
from oomproof.machine.jobs import LAUNCHERS
from oomproof.printable import printable
from oomproof.recording.state_files import runtime_folder
from oomproof.records import dataclass


def tell_owner(pid: int, text: str, proc: str = "/proc") -> bool:
    """Only where the terminal is that user's and shows lines: a program that draws the whole screen is left alone."""
    terminal = terminal_of(pid, proc)
    try:
        if not terminal or os.stat(terminal).st_uid != os.stat(f"{proc}/{pid}").st_uid:
            return False
        if reads_keys(terminal) and _in_front(pid, proc) not in LAUNCHERS:  # a shell's prompt is only a line
            return False
        fd = os.open(terminal, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(fd, f"\r\noomproof: {printable(text)}\r\n".encode())
        finally:
            os.close(fd)
    except OSError:  # it has ended, the terminal is closed, or nobody reads it
        return False
    return True


def _in_front(pid: int, proc: str) -> str:
    """The program that has its terminal now."""
    fields = stat_fields(pid, proc)
    return name_of(int(fields[5]), proc) if fields and len(fields) > 5 else ""


def terminal_of(pid: int, proc: str = "/proc") -> str:
    """The path of its controlling terminal, where that is a pseudo terminal; else empty."""
    fields = stat_fields(pid, proc)
    number = int(fields[4]) if fields and len(fields) > 4 else 0
    major, minor = number >> 8 & 0xFFF, (number & 0xFF) | (number >> 12 & 0xFFF00)
    return f"/dev/pts/{(major - 136) * 256 + minor}" if 136 <= major <= 143 else ""


NOT_YET = "the process that resumes it after us is not ready yet"
_END_SECONDS = 2.0


@dataclass
class _Pause:
    culprit: Culprit
    members: list[JobKey]  # everybody who was stopped
    skip: list[int]  # who was stopped before us
    until: float  # boottime
    file: Path
    was_stopped: bool = False  # a process deep in the kernel stops when it comes out


class UnmanagedPauses:
    """Those that one guard has paused. ``by`` names it in what is told."""

    def __init__(self, by: str, folder: Callable[[], Path] = runtime_folder, proc: str = "/proc") -> None:
        self._by, self._folder, self._proc = by, folder, proc
        self._resumer: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._lock = threading.Lock()
        self._pauses: dict[JobKey, _Pause] = {}

    def prepare(self) -> None:
        """Starts the process that resumes what we no longer can: early, for at the bad moment it may not start."""
        with self._lock:  # the thread that looks at all processes, and the guard's own
            self._prepare()

    def _prepare(self) -> None:
        if self._resumer is not None and self._resumer.poll() is None:
            return
        self._ready = False
        self._resumer = subprocess.Popen(
            resumer.start_command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        for key, pause in list(self._pauses.items()):  # the one before was killed
            with contextlib.suppress(OSError):
                self._tell_resumer(key, pause)

    def view(self) -> list[UnmanagedView]:
        if self._pauses:
            with contextlib.suppress(OSError):
                self.prepare()  # should the resumer have been killed
        return [self._view(key, pause) for key, pause in self._pauses.items()]

    def _view(self, key: JobKey, pause: _Pause) -> UnmanagedView:
        members = [processes.memory(pid, self._proc) for pid, _ in pause.members]
        swap = sum(member.swap for member in members if member is not None)
        stopped = is_stopped(key[0], self._proc)
        # Once stopped, it runs only if somebody else resumed it, with `fg` or kill -CONT: that counts.
        resumed = not stopped and (pause.was_stopped or not processes.is_alive(*key, self._proc))
        pause.was_stopped |= stopped
        by = "" if resumed else "guard"
        return UnmanagedView(key, pause.culprit.name, pause.culprit.held, swap=swap, paused=by)

    @property
    def any(self) -> bool:
        return bool(self._pauses)

    def has(self, key: JobKey) -> bool:
        return key in self._pauses

    def pause(self, culprit: Culprit, seconds: float) -> str:
        """Why it could not be, in words; nobody is stopped then."""
        key = culprit.key
        if not processes.is_alive(*key, self._proc):
            return "it has ended"
        if not self.is_ready():
            return NOT_YET

        def members() -> list[int]:
            return [key[0], *processes.descendants(key[0], self._proc)]

        if tie := member_tie(members(), culprit.job.uid, self._proc):
            return tie
        skip = [pid for pid in members() if is_stopped(pid, self._proc)]
        pause = _Pause(culprit, [], skip, boottime() + seconds, paused_jobs.file_of(*key, self._folder))
        try:
            self._tell_resumer(key, pause)
        except OSError:  # it was killed; a new one is started
            return NOT_YET
        self._pauses[key] = pause
        try:
            stopped = Freezer(None, members, self._proc).pause()
            starts = ((pid, processes.start_time(pid, self._proc)) for pid in members())
            pause.members = [(pid, start) for pid, start in starts if start is not None]
        except BaseException:
            self.resume(key)
            raise
        if not stopped:
            self.resume(key)
            return "it starts processes faster than they can be stopped"
        with contextlib.suppress(OSError):  # it knows the first process, and finds the others below it
            self._tell_resumer(key, pause)
        return ""

    def write_down(self, key: JobKey, why: str) -> None:
        """For other guards, `oomproof status` and `oomproof resume`. After the pause: it may wait on a disk."""
        pause = self._pauses.get(key)
        if pause is None:
            return  # it was resumed meanwhile
        now, left = time.time(), pause.until - boottime()
        culprit, members = pause.culprit, tuple(pause.members)
        job = PausedJob(
            *key, culprit.name, culprit.held, why, self._by, now, now + left, members, tuple(pause.skip)
        )
        paused_jobs.write(job, pause.file)
        if key not in self._pauses:
            pause.file.unlink(missing_ok=True)

    def resume(self, key: JobKey) -> None:
        if (pause := self._pauses.pop(key, None)) is not None:
            self._wake(key, pause)

    def _wake(self, key: JobKey, pause: _Pause) -> None:
        resumer.resume_tree(*key, pause.members, pause.skip)
        with contextlib.suppress(OSError):
            pause.file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it was killed: then it has nothing to forget
            self._send({"pid": key[0], "start": key[1], "over": True})

    def end(self, culprit: Culprit, number: int) -> None:
        """SIGTERM to its first process, SIGKILL to all of them; then it runs, if it was paused, to meet it. A process that
        has become another user's by now gets no signal."""
        key = culprit.key
        pids = [key[0]] if processes.is_alive(*key, self._proc) else []
        if number == signal.SIGKILL:
            pids += processes.descendants(key[0], self._proc) if pids else []
        signal_all((pid for pid in pids if owner_of(pid, self._proc) == culprit.job.uid), number)
        self.resume(key)

    def close(self) -> None:
        """Everybody runs again, and the resumer ends."""
        for key in list(self._pauses):
            with contextlib.suppress(Exception):  # one that fails must not keep the others stopped
                self.resume(key)
        if self._resumer is not None:
            for stream in (self._resumer.stdin, self._resumer.stdout):
                if stream is not None:
                    stream.close()
            try:
                self._resumer.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._resumer.kill()
            self._resumer = None

    def is_ready(self) -> bool:
        """Whether somebody would resume after us what we pause now; it is seen to that somebody soon does."""
        self.prepare()
        if not self._ready and self._resumer is not None and self._resumer.stdout is not None:
            readable, _, _ = select.select([self._resumer.stdout], [], [], 0)
            self._ready = bool(readable) and os.read(self._resumer.stdout.fileno(), 16).startswith(b"ready")
        return self._ready

    def _tell_resumer(self, key: JobKey, pause: _Pause) -> None:
        self._send(
            {
                "pid": key[0],
                "start": key[1],
                "members": pause.members,
                "skip": pause.skip,
                "until": pause.until,
                "file": str(pause.file),
            }
        )

    def _send(self, message: dict[str, Any]) -> None:
        if self._resumer is not None and self._resumer.stdin is not None:
            os.write(self._resumer.stdin.fileno(), json.dumps(message).encode() + b"\n")
