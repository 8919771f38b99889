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
    return stored_verdict(attempt) or judge(collect(attempt))


def stored_verdict(attempt: Attempt) -> Verdict | None:
    """None where nobody has judged, or what was written down is damaged, of another version or mistaken."""
    kept = attempt.verdict()
    if not _is_whole(kept.get("verdict")) or _is_mistaken(kept, attempt):
        return None
    try:
        return from_json(kept)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _is_mistaken(kept: Mapping[str, Any], attempt: Attempt) -> bool:
    """Whether another host than the run's wrote down that its machine went down: that only its own can know."""
    head = kept.get("verdict")
    if not isinstance(head, dict) or head.get("cause") != "machine-down":
        return False
    run = Run(attempt.run_folder)
    return run.elsewhere() is not None and kept.get("host") != run.info.get("host")


def _is_whole(verdict: object) -> bool:
    """What the tables show of a stored verdict is there; a damaged one is judged anew."""
    if not isinstance(verdict, dict):
        return False
    victim = verdict.get("victim")
    sizes = (
        [value for name, value in victim.items() if name.endswith("_bytes")]
        if isinstance(victim, dict)
        else []
    )
    return (
        all(isinstance(verdict.get(name), str) for name in ("cause", "headline", "why"))
        and (victim is None or isinstance(victim, dict))
        and all(size is None or isinstance(size, int) for size in sizes)
    )
