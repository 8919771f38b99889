"""Resumes what a guard has paused and can no longer resume: a process of its own that does nothing else.

The guard writes a line for each pause to our standard input before it stops the first process. When that closes, the guard
has ended, however it did, and everything that is still paused runs again. Standard library and the leaf only.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys

from oomproof.leaf.proc_files import boottime, descendants, is_alive
from oomproof.leaf.process_signals import send_signal
from oomproof.leaf.start_by_path import command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_LATE = 5.0  # seconds after a pause should have ended: the guard, which ends it itself, may be busy
_LONGEST_WAIT = 3600.0
_ROUNDS = 3  # a process that forks while it is resumed


def start_command() -> list[str]:
    return command(__file__)


def resume_tree(
    pid: int, start: int, members: Iterable[tuple[int, int]] = (), skip: Iterable[int] = ()
) -> int:
    """SIGCONT to each of them; to how many. Also to one that has not stopped yet, deep in the kernel: it discards the SIGSTOP
    that waits for it. ``skip``: stopped before us, by somebody else."""
    told = set(skip)
    before = len(told)
    for _ in range(_ROUNDS):
        pids = [member for member, since in members if is_alive(member, since)]
        if is_alive(pid, start):
            pids += [pid, *descendants(pid)]
        new = [member for member in dict.fromkeys(pids) if member not in told]
        if not new:
            break
        for member in new:
            send_signal(member, signal.SIGCONT)
        told.update(new)
    return len(told) - before


class _Pauses:
    def __init__(self) -> None:
        self._by_job: dict[tuple[int, int], dict[str, Any]] = {}

    def note(self, line: bytes) -> None:
        try:
            pause = json.loads(line)
            key = (int(pause["pid"]), int(pause["start"]))
        except (ValueError, KeyError, TypeError):
            return
        if pause.get("over"):
            self._by_job.pop(key, None)
        else:
            self._by_job[key] = {**self._by_job.get(key, {}), **pause}

    def wait_seconds(self) -> float:
        ends = [float(pause.get("until") or 0) + _LATE - boottime() for pause in self._by_job.values()]
        return max(0.0, min([_LONGEST_WAIT, *ends]))

    def resume_late(self) -> None:
        now = boottime()
        for key, pause in list(self._by_job.items()):
            if now >= float(pause.get("until") or 0) + _LATE:
                self._resume(key)

    def resume_all(self) -> None:
        for key in list(self._by_job):
            self._resume(key)

    def _resume(self, key: tuple[int, int]) -> None:
        pause = self._by_job.pop(key)
        resume_tree(
            *key, [(int(pid), int(start)) for pid, start in pause.get("members", ())], pause.get("skip", ())
        )
        try:
            os.unlink(str(pause.get("file")))
        except OSError:
            pass


def main(_: list[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)  # a logout ends the guard, and then we have work to do
    pauses, text = _Pauses(), b""
    print("ready", flush=True)
    while True:
        try:
            readable = select.select([0], [], [], pauses.wait_seconds())[0]
        except OSError:
            break
        if readable:
            part = os.read(0, 65536)
            if not part:
                break
            *lines, text = (text + part).split(b"\n")
            for line in lines:
                pauses.note(line)
        pauses.resume_late()
    pauses.resume_all()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
