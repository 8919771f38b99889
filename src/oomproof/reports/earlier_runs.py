"""What the history knows of this command: its last good run, and how often it ended in this way before."""

from __future__ import annotations

from pathlib import Path

from oomproof.diagnosis.conclusion import stored_verdict
from oomproof.recording.run_folders import Run, list_runs
from oomproof.records import dataclass

_MOST = 200  # earlier runs of one command that are looked at


@dataclass(frozen=True, slots=True)
class Earlier:
    compared: Run | None = None  # the last good one; the newest of all where none was good
    good: bool = False
    times: int = 0  # how often it ended so before
    first: float | None = None
    last: float | None = None


def earlier_runs(run: Run, cause: str) -> Earlier:
    """From what was judged when they ended: nothing is judged here."""
    newest: Run | None = None
    good: Run | None = None
    walls: list[float] = []
    for other in _same_command(run):
        verdict = stored_verdict(other.attempt)
        if verdict is None:
            continue
        newest = newest or other
        if good is None and verdict.cause == "finished":
            good = other
        if verdict.cause == cause and not verdict.kind.good:
            walls.append(other.created)
    return Earlier(
        good or newest, good is not None, len(walls), min(walls, default=None), max(walls, default=None)
    )


def _same_command(run: Run) -> list[Run]:
    """Those before it of the same script, or of the same first words in the same place; newest first."""
    script = (run.info.get("code") or {}).get("script")
    found: list[Run] = []
    for other in list_runs():
        if other.id == run.id or (other.created, other.id) >= (run.created, run.id):
            continue
        same = script and (other.info.get("code") or {}).get("script") == script
        if same or (not script and other.argv[:2] == run.argv[:2] and _cwd(other) == _cwd(run)):
            found.append(other)
        if len(found) >= _MOST:
            break
    return found


def _cwd(run: Run) -> Path:
    return Path(str(run.info.get("cwd") or "."))
