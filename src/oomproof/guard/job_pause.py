"""One job's pause with all that belongs to it: the mark on disk, the way out to swap, a word about what may time out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oomproof.guard import freezer
from oomproof.guard.guard_actions import TaskThread
from oomproof.guard.job_handle import Job
from oomproof.recording.attempt import Attempt
from oomproof.units import format_size

# Most runs are never paused: what only a pause needs is imported then, off the guard's thread.
if TYPE_CHECKING:
    from oomproof.guard.swap_out import PushOut


class Pause:
    """Begun and ended by the guard; ``look`` notices what `oomproof pause` and `resume` did meanwhile."""

    def __init__(
        self,
        job: Job,
        attempt: Attempt,
        task_thread: TaskThread,
        say: Callable[[str], None],
        argv: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._job, self._attempt, self._task_thread, self._say = job, attempt, task_thread, say
        self._argv, self._environment = argv, environment or {}
        self._path = str(attempt.paused_file)
        self._push: PushOut | None = None
        self.can_push = job.reclaim is not None and os.access(job.reclaim, os.W_OK)
        self._known = self._key()
        mark = freezer.read_mark(attempt)
        self.by = "hand" if mark.get("by") == "user" else ""
        self._id = _id_of(mark) if self.by else ""  # of the pause that is on
        self._marked = ""  # the guard's pause whose mark was written
        # the user's pause moves GPU memory first: the job must run for it
        self.moving = bool(mark.get("moving"))
        self.limit: float | None = None  # seconds: something in the job counts them

    def begin(self, why: str, until: float, push: bool) -> None:
        """After the job was paused. ``until`` is a wall time."""
        self._id = pause = freezer.new_id()
        self.by, self.limit = "guard", None
        self._task_thread.do(lambda: self._mark(pause, why, until))
        if push:
            self._task_thread.do(lambda: self._push_out(pause))
        self._task_thread.do(lambda: self._look_for_timeouts(pause, why, until))

    def end(self) -> None:
        """After it was resumed. A mark of the user's that came meanwhile stays: it is another pause."""
        pause, by, self._id = self._id, self.by, ""
        self.by, self.limit = "", None
        self._stop_pushing()
        if by:
            self._task_thread.do(lambda: freezer.remove_mark(self._attempt, pause))

    def look(self) -> None:
        """What `oomproof pause` and `resume` did meanwhile. Cheap enough for every row: one stat."""
        if self.by == "guard" and self._job.freezer.resumed_by_others():
            self._resumed_by_hand()
            return
        key = self._key()
        if key is None:
            # The mark that was there has been removed. One that was never written, or an earlier pause's that is only
            # now removed, says nothing about this pause.
            if self.by == "hand" or (self.by == "guard" and self._marked == self._id):
                self._resumed_by_hand()
        elif key != self._known:
            mark = freezer.read_mark(self._attempt)
            if mark:  # else it cannot be read now: looked at again
                self._known = key
                if mark.get("by") == "user":
                    self.by, self._id = "hand", _id_of(mark)
                    self.moving = bool(mark.get("moving"))

    def _resumed_by_hand(self) -> None:
        self._stop_pushing()
        self.by, self._id = "", ""

    def _key(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _mark(self, pause: str, why: str, until: float) -> None:
        if self._id == pause and freezer.write_mark(self._attempt, "guard", why, until, pause):
            self._marked = pause

    def _push_out(self, pause: str) -> None:
        from oomproof.guard.swap_out import PushOut

        if self._id == pause:
            self._push = self._push or PushOut(self._job.reclaim)
            self._push.start(self._job.memory, self._pushed)

    def _stop_pushing(self) -> None:
        if self._push is not None:
            self._push.stop()

    def _pushed(self, freed: int) -> None:
        if freed:
            self._say(f"pushed {format_size(freed)} of the paused job out to swap")

    def _look_for_timeouts(self, pause: str, why: str, until: float) -> None:
        from oomproof.guard import pause_timeouts

        timeouts = pause_timeouts.look(self._job.pids(), self._argv, self._environment)
        limits = [timeout.seconds for timeout in timeouts if timeout.seconds is not None]
        if self._id != pause:
            return
        if limits:
            self.limit = min(limits)
            self._mark(pause, why, min(until, time.time() + self.limit))
        for timeout in timeouts:
            self._say(f"while it is paused: {timeout.text}")

    def close(self) -> None:
        if self._push is not None:
            self._push.close()


def _id_of(mark: dict[str, Any]) -> str:
    return str(mark.get("id") or "")
