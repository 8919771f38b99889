"""The verdict of an attempt: the one that was written down, else judged now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oomproof.diagnosis.judge import judge
from oomproof.diagnosis.verdict import Verdict, from_json
from oomproof.evidence.case_collector import collect
from oomproof.recording.attempt import Attempt
from oomproof.recording.run_folders import Run


def verdict_of(attempt: Attempt) -> Verdict:
    kept = attempt.verdict()
    if kept.get("verdict") and not is_mistaken(kept, attempt):
        try:
            return from_json(kept)
        except (KeyError, TypeError, ValueError, AttributeError):
            pass  # damaged, or written by another version
    return judge(collect(attempt))


def is_mistaken(kept: Mapping[str, Any], attempt: Attempt) -> bool:
    """Whether another host than the run's wrote down that its machine went down: that only its own can know."""
    head = kept.get("verdict")
    if not isinstance(head, dict) or head.get("cause") != "machine-down":
        return False
    run = Run(attempt.run_folder)
    return run.elsewhere() is not None and kept.get("host") != run.info.get("host")
