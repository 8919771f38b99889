"""What was asked of the job: to save, to save and stop. With several ranks, all of them answer in the same step.

Asked by a file: OOMPROOF_STOP_FILE, OOMPROOF_SAVE_FILE. Ranks read at different moments, so rank 0 alone looks for
it and writes down the step in which all shall act, some steps ahead: no rank can be there yet, because each step of
theirs waits for rank 0. On a GPU the host runs ahead of the card, by a queue of about a thousand launches: a few steps.
"""

from __future__ import annotations

import os
import sys
import time

from ...leaf.attempt_names import LISTENS
from ..agent_core import process_group
from ..agent_start import touch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..agent_core import Agent

_AHEAD = 4  # steps, on the CPU
_AHEAD_CUDA = 20
_LOOK = 0.1  # seconds between two looks of a job with one process


class Request:
    """One kind of request, looked for once a step."""

    def __init__(self, agent: Agent, name: str) -> None:
        self._agent = agent
        self._path = os.environ.get(f"OOMPROOF_{name.upper()}_FILE") or ""
        self._at_path = os.path.join(agent.folder, name + ".at")
        self._taken_path, self._taken = os.path.join(agent.folder, name + ".taken"), False
        self._at: int | None = None
        self._done_at: int | None = None
        self._looked = 0.0
        self._there = False

    def due(self, count: int) -> bool:
        """Whether all ranks shall do it now. ``count``: this rank's step, the same number on every rank."""
        if not self._path:
            return False
        try:
            ranks = world_size()
            if ranks < 2:
                due = self._exists()
            else:
                if self._at is None:
                    self._at = self._agreed(count)
                due = self._at is not None and count >= self._at
            if due and not self._taken:
                self._taken = True  # told by a file: the guard may no longer take the request back
                touch(self._taken_path)
            return due
        except Exception as error:
            self._agent.failed("request", error)
            return False

    def done(self) -> None:
        """It was carried out. The request is taken away, so that it is not carried out again."""
        self._done_at, self._at, self._there, self._taken = self._at, None, False, False
        if not self._agent.rank:
            for path in (self._path, self._at_path, self._taken_path):
                try:
                    os.unlink(path)
                except OSError:
                    pass

    def _exists(self) -> bool:
        now = time.monotonic()
        # one that is there may be taken back by the guard when there is headroom again
        if self._there or now - self._looked >= _LOOK:
            self._looked, self._there = now, os.path.exists(self._path)
        return self._there

    def _agreed(self, count: int) -> int | None:
        try:
            with open(self._at_path) as file:
                at = int(file.read())
            return None if at == self._done_at else at  # rank 0 is about to take it away
        except (OSError, ValueError):
            pass
        if self._agent.rank or not os.path.exists(self._path):
            return None
        torch = sys.modules.get("torch")
        ahead = _AHEAD_CUDA if torch is not None and torch.cuda.is_initialized() else _AHEAD
        from ...leaf.small_files import replace_file

        replace_file(self._at_path, b"%d" % (count + ahead), synced=False)
        return count + ahead


class Requests:
    """Save and stop, as a trainer answers them at the end of a step."""

    def __init__(self, agent: Agent, trainer: str) -> None:
        self._agent, self._trainer = agent, trainer
        self.save, self.stop = Request(agent, "save"), Request(agent, "stop")

    def due(self, count: int) -> str:
        """ "stop", "save" or nothing; ``count`` as for a `Request`."""
        if on_several_machines():
            return ""
        return "stop" if self.stop.due(count) else "save" if self.save.due(count) else ""

    def announce(self, asked: str, step: int) -> None:
        if not self._agent.rank:
            words = "saves and stops" if asked == "stop" else "saves and continues"
            self._agent.tell(f"{self._trainer} {words} at step {step}")

    def saved(self, path: str, step: int, asked: str) -> None:
        """Where the checkpoint is; ``asked`` is empty for one that the trainer made by itself."""
        if not self._agent.rank:
            self._agent.report("saved", path=os.path.abspath(path), step=step, asked=asked)


def world_size() -> int:
    """Ranks of this job that train together."""
    group = process_group()
    return 1 if group is None else int(group.get_world_size())


def on_several_machines() -> bool:
    """The files are seen on this one only; a rank elsewhere would go on and wait for ever."""
    world, local = os.environ.get("WORLD_SIZE", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    return world.isdigit() and local.isdigit() and int(world) > int(local)


def listen(agent: Agent, what: str, by: str) -> None:
    """Tells the run that requests will be answered, and which: nobody is asked who does not listen."""
    agent.leave_note(LISTENS, f"{what}\n{by}\n")


class _Loop:
    request: tuple[int, Request] | None = None
    calls = 0


def stop_requested(agent: Agent) -> bool:
    """For loops that ask for themselves."""
    if _Loop.request is None or _Loop.request[0] != os.getpid():
        _Loop.request, _Loop.calls = (os.getpid(), Request(agent, "stop")), 0
        listen(agent, "stop", "stop_requested")
    _Loop.calls += 1
    if on_several_machines():
        return False
    return _Loop.request[1].due(_Loop.calls)
