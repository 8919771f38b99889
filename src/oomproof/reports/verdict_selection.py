"""What of a verdict is shown, in which order: the same in the terminal, in Markdown and on the page."""

from __future__ import annotations

from oomproof.diagnosis.verdict import RankedCause, Remedy, Verdict
from oomproof.evidence.case_file import Evidence

_NOTICED = 0.01  # of probability: a cause below stands in the JSON only


def decisive_first(verdict: Verdict) -> tuple[list[Evidence], list[Evidence]]:
    """The evidence that the first cause rests on, and what was seen beside it."""
    cited = set(verdict.causes[0].evidence) if verdict.causes else set()
    decided = [item for item in verdict.evidence if item.id in cited]
    beside = [item for item in verdict.evidence if item.id not in cited]
    return (decided, beside) if decided else (beside, [])


def notable(verdict: Verdict) -> list[RankedCause]:
    return [cause for cause in verdict.causes if cause.probability >= _NOTICED]


def how(remedy: Remedy) -> str | None:
    """The exact change in one line to type or to look for; None where it differs from job to job."""
    change = remedy.change
    if remedy.command is not None or change is None or change.after is None:
        return remedy.command
    if change.kind == "env":
        return f"{change.key}={change.after}"
    location = f"{change.file}: " if change.file else ""
    values = " → ".join(value for value in (change.before, change.after) if value)
    return f"{location}{change.key}: {values}"
