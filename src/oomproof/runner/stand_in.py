"""Keeps a job whose keeper was killed, in a process of its own: its output, its end, its folder.

Started by the front that took a job over, so that the job outlives that front as well; and by `oomproof resume`, `watch`
and `stop` for a job that has lost both. It is not the job's parent: the exit status is the kernel's to tell (Linux 6.15).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from oomproof.errors import OomproofError
from oomproof.machine import processes, wait_status
from oomproof.recording import run_folders, state_files
from oomproof.recording.spare_files import spare_folders
from oomproof.records import fields
from oomproof.runner import limit_backends
from oomproof.runner.followed_file import followed
from oomproof.runner.output_log import OUTPUT_CAP, Output, noted_place
from oomproof.runner.run_flags import from_json
from oomproof.runner.takeover import TakenOver

_READY_SECONDS = 10.0
GOODBYE = b"D"  # of a front that has seen the job to its end; what it tells before that is JSON


def revive(run: run_folders.Run) -> None:
    """A keeper for a job that has none. Returns when it is there."""
    _spawn(run.folder, {})
    end = time.monotonic() + _READY_SECONDS
    while not run.keeper_lives() and not run.exit():
        if time.monotonic() > end:
            raise OomproofError(
                f"no new keeper could be started for {run.name}", "see keeper.err in its folder"
            )
        time.sleep(0.02)


def stand_by(folder: Path, held: dict[str, int]) -> socket.socket:
    """For the front that keeps a job: somebody who holds its streams too, and takes over when the socket closes."""
    ours, theirs = socket.socketpair()
    try:
        _spawn(folder, {**held, "front": theirs.fileno()})
    finally:
        theirs.close()
    return ours


def _spawn(folder: Path, held: dict[str, int]) -> None:
    words = [f"{name}={fd}" for name, fd in held.items()]
    with contextlib.ExitStack() as stack:
        try:
            log: Any = stack.enter_context(open(run_folders.Run(folder).attempt.keeper_errors_file, "ab"))
        except OSError:
            log = subprocess.DEVNULL
        subprocess.Popen(
            [sys.executable, "-P", "-m", "oomproof.runner.stand_in", str(folder), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            pass_fds=list(held.values()),
            start_new_session=True,
        )


def reopen(started: dict[str, Any], pids: list[int]) -> dict[str, int]:
    """The readable ends of the job's pipes and files, found in the job by their inode. A pty cannot be had again."""
    pipes = {f"pipe:[{inode}]": letter for letter, inode in (started.get("streams") or {}).items()}
    files = {
        tuple(place[:2]): letter for letter, place in (started.get("files") or {}).items() if len(place) == 3
    }
    by_stream: dict[str, int] = {}
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            path = f"/proc/{pid}/fd/{name}"
            with contextlib.suppress(OSError):
                letter = pipes.get(os.readlink(path))
                if letter is None and files:
                    status = os.stat(path)
                    letter = files.get((status.st_dev, status.st_ino))
                if letter is not None and letter not in by_stream:
                    by_stream[letter] = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return by_stream


def read_on(started: dict[str, Any], held: dict[str, int], folder: str) -> None:
    """Where whoever followed the job's files had got to."""
    for file in followed(held):
        start = started["files"][file.letter][2]
        os.lseek(file.fd, noted_place(folder, file.letter) or start, os.SEEK_SET)


def with_mark(run_id: str) -> list[int]:
    """Processes that carry this run's name in their environment, which every process of the job inherits."""
    mark = re.compile(rb"(^|\0)OOMPROOF_RUN=" + re.escape(run_id.encode()) + rb"(\0|$)")
    pids = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if mark.search(file.read()):
                    pids.append(int(name))
    return pids


def spec_of(run: run_folders.Run, started: dict[str, Any]) -> dict[str, Any]:
    """What a keeper is told, from what the run's folder says."""
    kept = started.get("backend")
    names = {field.name for field in fields(limit_backends.LimitBackend)}
    backend = limit_backends.LimitBackend(
        **{"name": limit_backends.WATCH, **{k: v for k, v in (kept or {}).items() if k in names}}
    )
    return {
        "folder": str(run.attempt),
        "spares": spare_folders(run.attempt.folder),
        "env": {"OOMPROOF_RUN": run.id},
        "procs": backend.procs,
        "kill": backend.kill,
        "freezer": backend.freezer,
        "remove": backend.remove,
        "counters": backend.counters(),
        "grace": from_json(run.info.get("settings") or {}).grace,
        "output_cap": OUTPUT_CAP,
    }


class StandIn(TakenOver):
    def __init__(
        self,
        run: run_folders.Run,
        started: dict[str, Any],
        lock: int | None,
        held: dict[str, int],
        pidfd: int | None,
        told: dict[str, Any],
    ) -> None:
        """``pidfd``: of the job's leader, opened while it lived. ``told``: how it ended, where the front had got so far."""
        super().__init__(
            spec_of(run, started), started, told, lock, "another process keeps the job from now on"
        )
        self._run_id = run.id
        self._pidfd = pidfd
        self.slave = held.get("slave")
        if self.ended and self.slave is not None:  # as note_end does
            os.close(self.slave)
            self.slave = None
        self.streams = {held[letter]: letter.encode() for letter in "TOE" if letter in held}
        self.files = followed(held)
        self.output = Output(self.folder, self.spec["output_cap"])

    def prepare(self) -> None:
        super().prepare()
        self.watch_streams()
        if self._pidfd is not None and not self.ended:
            self.selector.register(self._pidfd, selectors.EVENT_READ)

    def step(self) -> bool:
        self.reap()  # no SIGCHLD tells us
        return super().step()

    def roots(self) -> list[int]:
        return [pid for pid in with_mark(self._run_id) if pid != os.getpid()]

    def reap(self) -> None:
        if self.helper is not None:
            self.reap_helper()
        if not self.ended and not processes.is_alive(self.leader, self.leader_start):
            status = wait_status.wait_status(self.leader, self._pidfd) if self._pidfd is not None else None
            if self._pidfd is not None:
                self.selector.unregister(self._pidfd)
            self.note_end(status)


def open_leader(started: dict[str, Any]) -> int | None:
    """Before anybody can wait for it: the kernel tells its status through this even afterwards (Linux 6.15)."""
    job = started.get("job") or {}
    pid = int(job.get("pid") or 0)
    if not pid or not hasattr(os, "pidfd_open"):
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    if processes.is_alive(pid, job.get("start")):
        return pidfd
    os.close(pidfd)  # the number may be somebody else's
    return None


def news_of_front(fd: int) -> dict[str, Any] | None:
    """Waits for the front's end: how the job ended, where it had learnt that; None: it has seen everything to its end."""
    data = b""
    while part := os.read(fd, 4096):
        data += part
        if data.endswith(GOODBYE):
            return None
    try:
        told = json.loads(data or b"{}")
    except ValueError:  # killed while it told
        return {}
    return told if isinstance(told, dict) else {}


def main(arguments: list[str]) -> int:
    run = run_folders.Run(Path(arguments[0]))
    held = {name: int(fd) for name, _, fd in (word.partition("=") for word in arguments[1:])}
    for fd in held.values():
        os.set_inheritable(fd, False)
    front = held.pop("front", None)
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    started = run.started()
    job = started.get("job") or {}
    pidfd = open_leader(started)
    told: dict[str, Any] | None = {}
    if front is not None and ((told := news_of_front(front)) is None or run.exit()):
        return 0
    if front is None and not run.job_lives():
        return 1
    lock = held.get("lock")
    if front is None:
        held = reopen(started, [int(job["pid"]), *with_mark(run.id)])
        read_on(started, held, str(run.attempt))
        lock = state_files.take_lock(run.keeper_lock)
        if lock is None:
            return 0  # somebody else was faster
    keeper = StandIn(run, run.started() or started, lock, held, pidfd, told or {})
    keeper.prepare()
    keeper.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
