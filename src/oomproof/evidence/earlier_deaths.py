"""The limits at which earlier runs of the same command died for memory."""

from __future__ import annotations

from typing import Any

from oomproof.causes import CAUSES
from oomproof.evidence.json_files import integer, part, string
from oomproof.recording.run_folders import newest_runs
from oomproof.recording.state_files import load

_LOOKED_AT = 50  # runs, the newest: each costs a file or two


def died_at(run: dict[str, Any]) -> tuple[int, ...]:
    """Ascending. ``run`` as run.json has it; only what was judged counts."""
    limits = set()
    runs = newest_runs(_LOOKED_AT)
    for other in (run.at(attempt.number) for run in runs for attempt in run.attempts()):
        info = other.info
        same = (info.get("argv"), info.get("cwd")) == (run.get("argv"), run.get("cwd"))
        limit = integer(part(info, "settings").get("limit"))
        if not same or limit is None or other.id == run.get("id"):
            continue
        verdict, _ = load(other.attempt.verdict_file)
        cause = CAUSES.get(string(part(verdict, "verdict").get("cause")) or "")
        if cause is not None and cause.memory:
            limits.add(limit)
    return tuple(sorted(limits))
