"""What the agent inside the job left behind: the last step of each process, and the stacks of those that crashed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from oomproof.leaf.attempt_names import FAULT
from oomproof.recording import position_record, stack_dumps
from oomproof.records import dataclass

if TYPE_CHECKING:
    from oomproof.recording.census_record import Census

_TAIL = 256 << 10  # bytes of one file: the stacks of some hundred threads


@dataclass(frozen=True, slots=True)
class Crash:
    """A process that Python saw die of a fatal signal."""

    pid: int
    kind: str  # as faulthandler calls it: "Segmentation fault", "Aborted", "Bus error", …
    wall: float | None  # when its file was last written
    frames: tuple[stack_dumps.Frame, ...] = ()

    @property
    def where(self) -> str:
        return stack_dumps.where(self.frames)

    @property
    def line(self) -> str | None:
        """The user's own line: `train.py:12`."""
        frame = stack_dumps.users_frame(self.frames)
        return None if frame is None else f"{frame.file}:{frame.line}"


@dataclass(frozen=True, slots=True)
class AgentMessage:
    """An event that came from inside the job, or that we saw of its processes."""

    t: float
    kind: str  # exception, saved, stacks, worker-lost, mappings
    text: str


def position(folder: Path) -> position_record.PositionRecord | None:
    """Where the job stood; None when no agent was there to tell."""
    return position_record.best(position_record.read_all(folder))


def is_seen(folder: Path) -> bool:
    """Whether it was inside any process of the job."""
    try:
        return any(folder.glob(f"*-{FAULT}"))
    except OSError:
        return False


def crashes(folder: Path) -> tuple[Crash, ...]:
    crashed = [Crash(pid, dump.fatal, wall, dump.frames) for pid, wall, dump in _dumps(folder) if dump.fatal]
    return tuple(sorted(crashed, key=lambda crash: crash.wall or 0.0))


def newest_stack(folder: Path) -> stack_dumps.Dump | None:
    """The last one that was asked for while the job lived."""
    asked = [dump for _, _, dump in _dumps(folder) if not dump.fatal and dump.frames]
    return max(asked, key=lambda dump: dump.time or 0.0, default=None)


def censuses(folder: Path) -> tuple[Census, ...]:
    """Of the process that was looked at last, oldest first."""
    from oomproof.recording import census_record  # not for a run that ended well

    taken = census_record.read_all(folder)
    return tuple(census for census in taken if census.pid == taken[-1].pid)


def _dumps(folder: Path) -> Iterator[tuple[int, float, stack_dumps.Dump]]:
    """(pid, when its file was last written, a stack in it)."""
    try:
        paths = sorted(path for path in folder.glob(f"*-{FAULT}") if path.is_file())
    except OSError:
        return
    for path in paths:
        try:
            with open(path, "rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _TAIL))
                text = file.read(_TAIL).decode("utf-8", "replace")
            wall = path.stat().st_mtime
            pid = int(path.name.split("-")[0])
        except (OSError, ValueError):
            continue
        for dump in stack_dumps.parse(text):
            yield pid, wall, dump
