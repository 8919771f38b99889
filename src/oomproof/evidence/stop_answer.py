"""Whether a job acted on the request to save and stop, as far as its files tell."""

from __future__ import annotations

from typing import Any, Literal

from oomproof.evidence.json_files import part
from oomproof.evidence.script_handlers import script_that_ran
from oomproof.guard.guard_actions import UNHEARD
from oomproof.recording.attempt import Attempt

_LOOKS_FOR_IT = (b"OOMPROOF_STOP_FILE", b"oomproof")


def stop_answer(attempt: Attempt, run: dict[str, Any]) -> Literal["heard", "none", "unknown"]:
    """heard: the agent wrote that it acts on it, or the job's own code or settings look for it. none: nothing does."""
    folder = attempt.agent_folder
    if any((folder / f"stop.{mark}").exists() for mark in ("taken", "at")):
        return "heard"
    if any(b"stop" in path.read_bytes().split(b"\n")[0] for path in folder.glob("*-listens.txt")):
        return "none"  # it listened, and ended before it came to it
    settings = part(run, "settings")
    unheard = any(UNHEARD in part(line, "facts") for line in attempt.actions())
    if settings.get("stop_file") or (settings.get("stop_signal") and not unheard):
        return "heard"  # the user's own way to be asked
    words = [str(word).encode("utf-8", "replace") for word in run.get("argv") or ()]
    _, source = script_that_ran(run)
    source = source if source is not None else b"\n".join(words) if b"-c" in words else None
    if source is None:
        return "unknown"
    return "heard" if any(name in source for name in _LOOKS_FOR_IT) else "none"
