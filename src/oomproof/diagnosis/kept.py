"""The verdict of an attempt: the one that was written down, else judged now."""

from __future__ import annotations

from pathlib import Path

from oomproof.diagnosis.judge import judge
from oomproof.diagnosis.verdict import Verdict, from_json
from oomproof.evidence.collect import collect
from oomproof.recording.runs import read_json


def verdict_of(attempt: Path) -> Verdict:
    kept = read_json(attempt / "verdict.json")
    if kept.get("verdict"):
        try:
            return from_json(kept)
        except (KeyError, TypeError, ValueError, AttributeError):
            pass  # damaged, or written by another version
    return judge(collect(attempt))
