"""The record in which a job's process keeps its phase and step, readable after SIGKILL."""

from __future__ import annotations

import math
from pathlib import Path

from oomproof.leaf.attempt_names import NOW
from oomproof.recording.state_files import read_small
from oomproof.records import dataclass

_WHOLE = 400  # bytes of phase and place, as the agent writes them


@dataclass(frozen=True, slots=True)
class PositionRecord:
    pid: int
    t: float  # boottime of the last step or change of phase
    step: int | None
    rank: int | None
    phase: str
    place: str = ""  # the line of the user's code that made the last step
    loading: bool = False  # before the first step: inside a call that loads weights or a file


def read_position(path: Path) -> PositionRecord | None:
    """None for what is absent, cut or not ours."""
    try:
        kept = read_small(path, _WHOLE + 8)
        line, _, place = kept[:_WHOLE].decode("utf-8", "replace").partition("\n")
        words = line.split(None, 4)
        pid = int(path.name.split("-")[0])
        version, t, step, rank, phase = words
        if version != "1" or not math.isfinite(float(t)):
            return None
        return PositionRecord(
            pid,
            float(t),
            int(step) if int(step) >= 0 else None,
            int(rank) if int(rank) >= 0 else None,
            phase.strip(),
            place.strip("\0 \n"),
            kept[_WHOLE:].startswith(b"loading"),
        )
    except (OSError, ValueError):
        return None


def progress(phase: str, step: int | None) -> int:
    """How far a process has come: a launcher only loads, the one that makes steps trains."""
    return 2 if step is not None else 1 if phase not in ("load", "unknown") else 0


def best(positions: list[PositionRecord]) -> PositionRecord | None:
    """The one that speaks for the job: rank 0, then who has come furthest, then the newest."""
    return max(
        positions,
        key=lambda position: (not position.rank, progress(position.phase, position.step), position.t),
        default=None,
    )


def read_all(folder: Path) -> list[PositionRecord]:
    try:
        paths = sorted(folder.glob(f"*-{NOW}"))
    except OSError:
        return []
    return [now for path in paths if (now := read_position(path)) is not None]
