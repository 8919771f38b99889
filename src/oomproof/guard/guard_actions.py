"""Carries out the actions of the ladder. The slow parts (files on disk) are run by a background thread."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

try:
    from _queue import SimpleQueue  # without `queue` and `heapq` around it: 0.1 MiB of a guard at rest
except ImportError:  # another interpreter
    from queue import SimpleQueue

from oomproof.errors import OomproofError
from oomproof.guard.best_effort import BestEffort
from oomproof.guard.job_handle import Job
from oomproof.leaf.action_kinds import KILL, PAUSE, REQUEST, RESUME, TERM, WITHDRAW, ActionKind, ActionReason
from oomproof.leaf.small_files import APPEND, append_to
from oomproof.machine.clock import boottime
from oomproof.recording.attempt import Attempt

_UNWRITTEN = 100  # lines kept for a disk that comes back
UNHEARD = "stop_signal_unheard"  # a fact of a request: the stop signal, which nobody would have answered
UNCAUGHT = "sigterm_uncaught"  # a fact of a person's SIGTERM: who is ended by it cannot exit with code 0
STOP_TEXT = "oomproof asks this job to save and stop"  # a stop file that begins so is ours to remove


def action_record(
    by: str, action: str, why: str, facts: dict[str, object] | None = None, **more: object
) -> dict[str, object]:
    """One line of actions.jsonl: who did what to the job now, and why; ``why`` is for people. The guard adds its ``reason``, the
    ``figures`` behind it, its ``scope`` (limit or machine), and ``others_growth``: whether it was another job that grew."""
    line: dict[str, object] = {"boottime": boottime(), "wall": time.time(), "by": by, "action": action}
    return {**line, "why": why, "facts": facts or {}, **more}


class TaskThread:
    """Does what may wait on a disk, so that the guard's loop never does."""

    def __init__(self, tell: Callable[[str], None] = lambda _: None) -> None:
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._best_effort = BestEffort(tell)
        self._thread: threading.Thread | None = None
        self._start()

    def _start(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="tasks", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads
                return False
            self._thread = thread
        return True

    def do(self, task: Callable[[], object]) -> None:
        self._queue.put(task)
        # a slow disk then holds the caller up: better than a stop file that is never written
        if not self._start():
            self._drain()

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            self._run(task)

    def _drain(self) -> None:
        while not self._queue.empty():
            task = self._queue.get()
            if task is not None:
                self._run(task)

    def _run(self, task: Callable[[], object]) -> None:
        try:
            task()
        except (OSError, OomproofError):
            pass  # a full or read-only disk; the action itself did not need it
        except Exception as error:
            self._best_effort.failed("a background task", error, "the guard continues")

    def close(self, timeout: float = 2.0) -> None:
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(timeout)
        else:
            self._drain()


class Actions:
    """Asks, pauses, resumes, ends and kills one job, and writes down who did what and why."""

    def __init__(
        self,
        job: Job,
        attempt: Attempt,
        task_thread: TaskThread,
        stop_files: list[Path],
        stop_signal: int | None = None,
        by: str = "guard",
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._job = job
        self._attempt = attempt
        self._task_thread = task_thread
        self._stop_files = stop_files
        self._stop_signal = stop_signal
        self._by = by
        self._tell = tell
        self.has_ended = False  # told the job to end, or is about to: known before anybody sees it end
        self._unwritten: deque[dict[str, object]] = deque(maxlen=_UNWRITTEN)
        self._open_file: int | None = None

    def keep_file_open(self) -> None:
        """For the time when no descriptor can be had: an act that is not written down is blamed on somebody else."""
        with contextlib.suppress(OSError):
            self._open_file = os.open(self._attempt.actions_file, APPEND, 0o600)

    def take(
        self, kind: ActionKind, why: str, facts: dict[str, object] | None = None, **more: object
    ) -> None:
        """The guard acts first and records then. A person's act is recorded first: the run's guard, another process, judges as
        soon as the job has ended."""
        if kind == REQUEST and self._stop_signal is not None and not self._job.hears(self._stop_signal):
            facts = {**(facts or {}), UNHEARD: self._stop_signal}
            self._tell_unheard(self._stop_signal)
        if kind == TERM and self._by != "guard" and not self._job.hears(signal.SIGTERM):
            facts = {**(facts or {}), UNCAUGHT: True}
        line = action_record(self._by, kind, why, facts, **more)
        if self._by != "guard":
            self._note(line)
            self._act(kind, why)
        else:
            self._act(kind, why)
            self._task_thread.do(lambda: self._note(line))

    def _act(self, kind: ActionKind, why: str) -> None:
        self.has_ended = self.has_ended or kind in (TERM, KILL)
        if kind == REQUEST:
            if self._stop_signal is not None:
                self._job.ask_by_signal(self._stop_signal)
            self._task_thread.do(lambda: self._write_stop_files(why))
        elif kind == PAUSE:
            self._job.freezer.pause()
        elif kind == RESUME:
            self._job.freezer.resume()
        elif kind == TERM:
            self._job.signal_leader(signal.SIGTERM)
            self._job.signal_leader(signal.SIGCONT)  # a stopped job cannot answer
            self._job.freezer.resume()  # after the signal: it is the first thing a paused job then meets
        elif kind == KILL:
            self._job.kill()

    def _tell_unheard(self, number: int) -> None:
        """Once: a job without a handler has none at the next request either."""
        tell, self._tell = self._tell, lambda _: None
        name = next((known.name for known in signal.Signals if known == number), f"signal {number}")
        text = f"did not send {name}: no process of the job handles it, and it would end the job unsaved"
        self._task_thread.do(lambda: tell(text))

    def _note(self, line: dict[str, object]) -> None:
        self._unwritten.append(line)
        self.write_the_rest()

    def write_the_rest(self) -> None:
        """What the disk did not take, or no descriptor was left for: the verdict must not blame somebody else for our act."""
        while self._unwritten and self._append(self._unwritten[0]):
            self._unwritten.popleft()

    def close(self) -> None:
        """After the last of them."""
        self.write_the_rest()
        if self._open_file is not None:
            os.close(self._open_file)
            self._open_file = None

    def _append(self, line: dict[str, object]) -> bool:
        if self._attempt.add_action(line):
            return True
        return self._open_file is not None and append_to(self._open_file, json.dumps(line).encode() + b"\n")

    def withdraw(self, why: str, say: Callable[[str, str], None], reason: ActionReason = "") -> None:
        """Our own request is taken back: a job that looks for the file later was not asked by this moment."""
        self._task_thread.do(lambda: self._remove_stop_files(why, say, reason))

    def _remove_stop_files(self, why: str, say: Callable[[str, str], None], reason: ActionReason) -> None:
        ours = [
            path
            for path in self._stop_files
            if path.exists() and path.read_bytes().startswith(STOP_TEXT.encode())
        ]
        # Only where somebody listens do we know that nobody has read it: else the end of the job may be its answer. Asked before: it may
        # end the moment the file is gone.
        listening = self._attempt.listeners("stop")
        for path in ours:
            path.unlink()
        if ours and self._stop_signal is None and listening and not self._attempt.is_begun("stop"):
            self._note(action_record(self._by, WITHDRAW, why, reason=reason))
            say(WITHDRAW, why)

    def _write_stop_files(self, why: str) -> None:
        for path in self._stop_files:
            path.parent.mkdir(parents=True, exist_ok=True)
            # a file the user already put there is theirs; a link that somebody laid in /tmp is not followed
            with contextlib.suppress(FileExistsError), open(path, "x") as file:
                file.write(f"{STOP_TEXT}: {why}\n")
