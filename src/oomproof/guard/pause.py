"""One job's pause with all that belongs to it: the mark on disk, the way out to swap, a word about what may time out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oomproof.guard import freezing
from oomproof.guard.actions import Errands
from oomproof.guard.job import Job
from oomproof.recording import runs
from oomproof.units import format_size

# Most runs are never paused: what only a pause needs is imported then, off the guard's thread.
if TYPE_CHECKING:
    from oomproof.guard.push_out import PushOut


class Pause:
    """Begun and ended by the guard; ``look`` notices what `oomproof freeze` and `thaw` did meanwhile."""

    def __init__(
        self,
        job: Job,
        attempt: Path,
        errands: Errands,
        say: Callable[[str], None],
        argv: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._job, self._attempt, self._errands, self._say = job, attempt, errands, say
        self._argv, self._environment = argv, environment or {}
        self._path = str(attempt / runs.FROZEN)
        self._push: PushOut | None = None
        self.can_push = job.reclaim is not None and os.access(job.reclaim, os.W_OK)
        self._known = self._key()
        self.by = "hand" if freezing.read_mark(attempt).get("by") == "user" else ""
        self.limit: float | None = None  # seconds: something in the job counts them

    def begin(self, why: str, until: float, push: bool) -> None:
        """After the job was frozen. ``until`` is a wall time."""
        self.by, self.limit = "guard", None
        self._errands.do(lambda: self._mark(why, until))
        if push:
            self._errands.do(self._push_out)
        self._errands.do(lambda: self._look_for_timeouts(why, until))

    def end(self) -> None:
        self.by, self.limit = "", None
        self._stop_pushing()
        self._errands.do(lambda: freezing.remove_mark(self._attempt))

    def look(self) -> None:
        """Cheap enough for every row: one stat."""
        key = self._key()
        if key == self._known:
            return
        self._known = key
        if key is None:
            self._stop_pushing()
            self.by = ""
        elif freezing.read_mark(self._attempt).get("by") == "user":
            self.by = "hand"

    def _key(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _mark(self, why: str, until: float) -> None:
        freezing.write_mark(self._attempt, "guard", why, until)
        if self.by == "guard":
            self._known = self._key()

    def _push_out(self) -> None:
        from oomproof.guard.push_out import PushOut

        if self.by == "guard":
            self._push = self._push or PushOut(self._job.reclaim)
            self._push.start(self._job.memory, self._pushed)

    def _stop_pushing(self) -> None:
        if self._push is not None:
            self._push.stop()

    def _pushed(self, freed: int) -> None:
        if freed:
            self._say(f"pushed {format_size(freed)} of the paused job out to swap")

    def _look_for_timeouts(self, why: str, until: float) -> None:
        from oomproof.guard import timeouts

        found = timeouts.look(self._job.pids(), self._argv, self._environment)
        limits = [one.seconds for one in found if one.seconds is not None]
        if limits and self.by == "guard":
            self.limit = min(limits)
            self._mark(why, min(until, time.time() + self.limit))
        for one in found:
            self._say(f"while it is paused: {one.text}")

    def close(self) -> None:
        if self._push is not None:
            self._push.close()
