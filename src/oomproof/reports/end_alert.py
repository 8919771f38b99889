"""The last message of a run: how it ended, and whether that is an alert, news or nobody's business but the terminal's."""

from __future__ import annotations

from typing import Any

from oomproof.alerts.alert import ALERT, END, NEWS, QUIET, Alert
from oomproof.causes import Cause
from oomproof.diagnosis.conclusion import Conclusion
from oomproof.recording.run_folders import Run, to_type

LONG = 300.0  # seconds: who started something shorter still sits there


def end_alert(run: Run, conclusion: Conclusion | None, status: int) -> Alert:
    called = to_type(run)
    if conclusion is None:
        return Alert(
            END, run.name, f"exit status {status}; there is no verdict", run=run.id, level=NEWS if status else QUIET,
            command=f"oomproof why {called}", exit_status=status,
        )  # fmt: skip
    verdict = conclusion.verdict
    kind = verdict.kind
    text = verdict.why if verdict.all_well else f"{verdict.headline}. {verdict.why}"
    if len(attempts := run.attempts()) > 1:
        text += f" (attempt {attempts[-1].number})"
    return Alert(
        END,
        run.name,
        text,
        title=title(kind),
        run=run.id,
        next="" if verdict.all_well else verdict.next,
        command=f"oomproof why {called}",
        level=level(kind, verdict.all_well, _seconds(run.started(), run.exit())),
        cause=verdict.cause,
        exit_status=status,
    )


def title(kind: Cause) -> str:
    if kind.good:
        return "finished"
    if kind.stopped_by == "guard":
        return "stopped for lack of memory"
    return f"ran out of memory ({kind.title})" if kind.memory else f"ended: {kind.title}"


def level(kind: Cause, all_well: bool, seconds: float) -> str:
    """A death of memory is an alert, any other failure is news; so is a good end that somebody waited for."""
    if kind.memory or kind.stopped_by == "guard":
        return ALERT
    if kind.stopped_by == "person":
        return QUIET
    return QUIET if all_well and seconds < LONG else NEWS


def _seconds(started: dict[str, Any], ended: dict[str, Any]) -> float:
    begin, end = started.get("boottime"), ended.get("boottime")
    return float(end) - float(begin) if begin and end else 0.0
