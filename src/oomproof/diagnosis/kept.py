"""The verdict of an attempt: the one that was written down, else judged now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oomproof.diagnosis.judge import judge
from oomproof.diagnosis.verdict import Verdict, from_json
from oomproof.evidence.collect import collect
from oomproof.recording.runs import Run, read_json


def verdict_of(attempt: Path) -> Verdict:
    kept = read_json(attempt / "verdict.json")
    if kept.get("verdict") and not mistaken(kept, attempt):
        try:
            return from_json(kept)
        except (KeyError, TypeError, ValueError, AttributeError):
            pass  # damaged, or written by another version
    return judge(collect(attempt))


def mistaken(kept: Mapping[str, Any], attempt: Path) -> bool:
    """Whether another host than the run's wrote down that its machine went down: that only its own can know."""
    head = kept.get("verdict")
    if not isinstance(head, dict) or head.get("cause") != "machine-down":
        return False
    run = Run(attempt.parent)
    return run.elsewhere() is not None and kept.get("host") != run.info.get("host")


def fullest_verdict(attempt: Path) -> Verdict:
    """The stored one, judged again if a log was closed to whoever judged it and may be open now. What was seen then and
    is gone since (a twin, a neighbour) is not given up for it."""
    stored = verdict_of(attempt)
    if not any(gap.how_to_grant for gap in stored.missing):
        return stored
    case = collect(attempt)
    again = judge(case)
    return again if case.elsewhere is None and again.knows_more_than(stored) else stored
