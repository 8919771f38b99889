"""One job's pause with all that belongs to it: the mark on disk, the way out to swap, a word about what may time out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oomproof.guard import freezing
from oomproof.guard.actions import Errands
from oomproof.guard.job import Job
from oomproof.recording.attempt import Attempt
from oomproof.units import format_size

# Most runs are never paused: what only a pause needs is imported then, off the guard's thread.
if TYPE_CHECKING:
    from oomproof.guard.push_out import PushOut


class Pause:
    """Begun and ended by the guard; ``look`` notices what `oomproof freeze` and `thaw` did meanwhile."""

    def __init__(
        self,
        job: Job,
        attempt: Attempt,
        errands: Errands,
        say: Callable[[str], None],
        argv: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._job, self._attempt, self._errands, self._say = job, attempt, errands, say
        self._argv, self._environment = argv, environment or {}
        self._path = str(attempt.paused_file)
        self._push: PushOut | None = None
        self.can_push = job.reclaim is not None and os.access(job.reclaim, os.W_OK)
        self._known = self._key()
        mark = freezing.read_mark(attempt)
        self.by = "hand" if mark.get("by") == "user" else ""
        self._id = _id_of(mark) if self.by else ""  # of the pause that is on
        self._marked = ""  # the guard's pause whose mark was written
        self.moving = bool(
            mark.get("moving")
        )  # the user's pause moves GPU memory first: the job must run for it
        self.limit: float | None = None  # seconds: something in the job counts them

    def begin(self, why: str, until: float, push: bool) -> None:
        """After the job was frozen. ``until`` is a wall time."""
        self._id = pause = freezing.new_id()
        self.by, self.limit = "guard", None
        self._errands.do(lambda: self._mark(pause, why, until))
        if push:
            self._errands.do(lambda: self._push_out(pause))
        self._errands.do(lambda: self._look_for_timeouts(pause, why, until))

    def end(self) -> None:
        """After it was let go on. A mark of the user's that came meanwhile stays: it is another pause."""
        pause, by, self._id = self._id, self.by, ""
        self.by, self.limit = "", None
        self._stop_pushing()
        if by:
            self._errands.do(lambda: freezing.remove_mark(self._attempt, pause))

    def look(self) -> None:
        """What `oomproof freeze` and `thaw` did meanwhile. Cheap enough for every row: one stat."""
        if self.by == "guard" and self._job.freezer.let_go_by_others():
            self._gone_by_hand()
            return
        key = self._key()
        if key is None:
            # The mark that was there has been removed. One that was never written, or an earlier pause's that is only
            # now removed, says nothing about this pause.
            if self.by == "hand" or (self.by == "guard" and self._marked == self._id):
                self._gone_by_hand()
        elif key != self._known:
            mark = freezing.read_mark(self._attempt)
            if mark:  # else it cannot be read now: looked at again
                self._known = key
                if mark.get("by") == "user":
                    self.by, self._id = "hand", _id_of(mark)
                    self.moving = bool(mark.get("moving"))

    def _gone_by_hand(self) -> None:
        self._stop_pushing()
        self.by, self._id = "", ""

    def _key(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _mark(self, pause: str, why: str, until: float) -> None:
        if self._id == pause and freezing.write_mark(self._attempt, "guard", why, until, pause):
            self._marked = pause

    def _push_out(self, pause: str) -> None:
        from oomproof.guard.push_out import PushOut

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
        from oomproof.guard import timeouts

        found = timeouts.look(self._job.pids(), self._argv, self._environment)
        limits = [one.seconds for one in found if one.seconds is not None]
        if self._id != pause:
            return
        if limits:
            self.limit = min(limits)
            self._mark(pause, why, min(until, time.time() + self.limit))
        for one in found:
            self._say(f"while it is paused: {one.text}")

    def close(self) -> None:
        if self._push is not None:
            self._push.close()


def _id_of(mark: dict[str, Any]) -> str:
    return str(mark.get("id") or "")
