"""The attempts of one run side by side: with which settings each ran, how long, what it held, how it ended."""

from __future__ import annotations

from typing import Any

from oomproof.causes import cause_of
from oomproof.printable import one_line
from oomproof.recording.run_folders import Run
from oomproof.recording.run_summary import Summary
from oomproof.recording.state_files import read_json
from oomproof.reports.run_tables import end_text, summarize
from oomproof.reports.table_text import table
from oomproof.units import format_duration, format_size


def attempt_lines(run: Run, width: int) -> list[str]:
    """A table with a line for each; empty for a run of one attempt."""
    attempts = _attempts(run)
    if len(attempts) < 2:
        return []
    rows = [("ATTEMPT", "WITH", "BEGAN", "LASTED", "PEAK", "END")]
    for number, info, summary in attempts:
        resumed = info.get("resumed_from")
        rows.append(
            (
                str(number),
                _plan_text(info),
                f"at {resumed.rpartition('/')[2]}" if resumed else "at the beginning",
                format_duration(summary.seconds) if summary.seconds is not None else "-",
                format_size(summary.peaks.use) if summary.peaks.use is not None else "-",
                end_text(summary),
            )
        )
    return table(rows, width, shrink={1: 16, 5: 14, 2: 10}, drop=(2, 3))


def cut_off(run: Run) -> str:
    """Where another attempt would have followed, had `oomproof run` not been killed; empty where none would."""
    if not run.retries() or run.is_earlier() or run.guard_lives() or not run.attempt.has_ended():
        return ""
    killed = "its oomproof run was killed"
    if run.waiting_file.exists():
        planned = read_json(run.waiting_file).get("reasons")
        planned = one_line(str(planned[0])) if isinstance(planned, list) and planned else ""
        return f"{killed} before it was tried again" + (f" ({planned})" if planned else "")
    lost = any(line.get("event") == "guard-lost" for line in run.attempt.keeper_events())
    cause = (run.attempt.verdict().get("verdict") or {}).get("cause")
    memory = isinstance(cause, str) and cause_of(cause).memory
    return f"{killed}, so it was not tried again" if lost and memory else ""


def attempts_json(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "attempt": number,
            "plan": info.get("plan"),
            "change": info.get("change"),
            "resumed_from": info.get("resumed_from"),
            "command": summary.command,
            "seconds": summary.seconds,
            "peak_bytes": summary.peaks.use,
            "peak_gpu_bytes": summary.peaks.gpu,
            "code": summary.code,
            "signal": summary.signal,
            "cause": summary.cause,
            "headline": summary.headline,
        }
        for number, info, summary in _attempts(run)
    ]


def _attempts(run: Run) -> list[tuple[int, dict[str, Any], Summary]]:
    seen = [run.at(attempt.number) for attempt in run.attempts()]
    return [(of_attempt.number or 1, of_attempt.info, summarize(of_attempt)) for of_attempt in seen]


def _plan_text(info: dict[str, Any]) -> str:
    """Each setting as the command line calls it."""
    names = info.get("names") or {}
    plan = info.get("plan") or {}
    return " ".join(f"{names.get(name, name)} {value or 'none'}" for name, value in plan.items()) or "-"
