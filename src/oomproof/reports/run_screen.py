"""One run in full: what it was, how it went, a chart, the verdict."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from oomproof.diagnosis.conclusion import conclusion_of
from oomproof.evidence.gpu_oom import last_oom
from oomproof.leaf.attempt_names import FAULT, LISTENS
from oomproof.machine.clock import boottime
from oomproof.printable import printable
from oomproof.recording import spill_record
from oomproof.recording.phase_spans import PhaseRow, phase_rows, with_last_step
from oomproof.recording.position_record import best, read_all
from oomproof.recording.profile_files import profile_of
from oomproof.recording.run_folders import Run, to_type
from oomproof.recording.run_summary import Summary, paused_seconds
from oomproof.recording.series import Event, told_kind, told_text
from oomproof.reports import gpu_account, timeline
from oomproof.reports.alongside import Alongside
from oomproof.reports.chart import draw
from oomproof.reports.run_comparison import step_pace
from oomproof.reports.run_tables import (
    attempt_lines,
    clock,
    cut_off,
    painted,
    peak_text,
    state_text,
    summarize,
)
from oomproof.reports.table_text import folded, table
from oomproof.reports.trend_text import trend_rows
from oomproof.reports.verdict_text import three_lines
from oomproof.units import format_duration, format_size, format_time, sizes_json

_EVENTS = 20  # of the newest


def show(run: Run, width: int = 80, colour: bool = False) -> str:
    """One run in full: what it was, how it went, a chart, the verdict."""
    columns = max(20, min(100, width - 22))
    trend, drawn = Alongside(lambda: trend_rows(run)), Alongside(lambda: _drawn(run, columns))
    told = conclusion_of(run)
    summary, recording = summarize(run, told), run.attempt.recording()
    settings = run.info.get("settings") or {}
    code = run.info.get("code") or {}
    rows: list[tuple[str, str]] = [
        ("run", f"{run.id}" + (f" ({summary.name})" if summary.name != run.id else "")),
        ("command", summary.command),
        ("in", str(run.info.get("cwd", "-"))),
        ("started", format_time(summary.began)),
        *([("lasted", format_duration(summary.seconds))] if summary.state != "waiting" else []),
        ("state", state_text(summary)),
        ("limit", _limit_text(run, settings.get("limit"))),
    ]
    waiting = summary.state == "waiting"
    if waiting:  # nothing was started: there is neither a job nor a recording
        rows += [("waits", "; ".join(run.waits_for()) or "for memory")]
    else:
        rows += [("peak", peak_text(summary.peaks, spill_record.pinned(run.attempt)))]
        rows += [("trend", "")]
    if summary.peaks.gpu:
        rows.append(("GPU peak", format_size(summary.peaks.gpu)))
    if settings.get("spill") and not waiting:
        record = spill_record.read(run.attempt)
        rows.append(("spill", spill_record.text_of(record) if record else "none: the job started no CUDA"))
    if len(attempts := run.attempts()) > 1:
        rows.insert(1, ("attempt", f"{run.attempt.number} of {len(attempts)}"))
    if resumed := run.info.get("resumed_from"):
        rows.append(("resumed", f"from {resumed}"))
    if run.retries():
        rows += [("retry", told_off)] if (told_off := cut_off(run)) else []
    if not waiting and (agent := agent_text(run)) is not None:
        rows.append(("agent", agent))
    if (profile := profile_of(run.attempt)) is not None:
        rows.append(("profile", f"{profile.page} ({profile.profiler})"))
    if summary.paused:
        rows.append(("paused", _paused_text(run, summary)))
    if code.get("git_commit"):
        dirty = " with changes not committed" if code.get("git_dirty") else ""
        rows.append(("commit", f"{code['git_commit'][:12]}{dirty}"))
    if summary.script_changed:
        rows.append(("script", f"{code.get('script')} was changed after this run started"))
    if recording.meta.get("trouble"):
        rows.append(("missing", recording.meta["trouble"]))
    for problem in {recording.problem, summary.problem} - {None} if not waiting else ():
        rows.append(("missing", str(problem)))
    samples, phases, events = drawn.result()
    lines = []
    for name, value in rows:
        for text in trend.result() if name == "trend" else [value]:
            part = folded(f"{name:>8}  ", text, width)
            lines += [painted(line, summary) for line in part] if colour and name == "state" else part
    if len(attempts) > 1:
        lines += ["", *(f"  {line}" for line in attempt_lines(run, width - 2))]
    if samples:
        lines += ["", "  memory of the job (anonymous + shared + swapped)"]
        lines.append(draw(samples, width=columns, limit=settings.get("limit")))
    oom = last_oom(run.attempt)
    if oom is not None and summary.cause == "cuda-oom":
        lines += ["", *map(printable, gpu_account.lines(oom, width))]
    lines += _phase_table(phases, width)
    if events:
        lines += ["", "  what happened"]
        for event in events:
            head = f"  {clock(event.t + recording.wall_offset)}  "
            lines += folded(head, f"{told_kind(event.kind)}: {told_text(event.kind, event.text)}", width)
    lines.append("")
    if told is not None:
        lines.append(three_lines(told.verdict, colour=colour, width=width))
    elif summary.state == "unguarded":
        lines.append(f"next: oomproof watch {to_type(run)}   (the job runs unguarded; this guards it again)")
    elif waiting:
        lines.append(f"next: it starts by itself; to take it out of the queue: oomproof stop {to_type(run)}")
    else:
        lines.append(f"next: oomproof logs -f {to_type(run)}")
    return "\n".join(lines)


def _drawn(run: Run, columns: int) -> tuple[list[tuple[float, float]], list[PhaseRow], list[Event]]:
    with run.attempt.recording().series() as series:
        events = series.events(words_only=True, last=_EVENTS, besides="agent")
        rows = with_last_step(phase_rows(series), run.attempt.agent_folder)
        return series.use.highest(columns), rows, events


def agent_text(run: Run) -> str | None:
    """Whether anybody inside the job told of it; None for runs from before there was an agent."""
    wanted = (run.info.get("settings") or {}).get("agent")
    if wanted is None or run.info.get("adopted"):
        return None
    if not wanted:
        return "off (--no-agent)"
    recording = run.attempt.recording()
    with recording.series() as series:
        told = next((event.text for event in series.events("agent", last=1)), "")
        marks = series.phase_marks()
        names = [row.name or "" for _, row in series.processes().values()]
    folder = run.attempt.agent_folder
    if not told and (count := len(list(folder.glob(f"*-{FAULT}")))):
        told = f"in {count} Python {'process' if count == 1 else 'processes'}"
    if not told:
        return _no_agent(recording.problem, [*names, *map(os.path.basename, run.argv[:1])])
    now = best(read_all(folder))
    if now is not None and now.step is not None:
        told += f"; phase {now.phase}, step {now.step}"
        if (pace := step_pace(marks)) is not None:
            told += f", {pace} a step"
    listeners = {words[1] for path in folder.glob(f"*-{LISTENS}") if len(words := _lines(path)) > 1}
    return told + (f"; {', '.join(sorted(listeners))} answers requests" if listeners else "")


def _no_agent(problem: str | None, programs: Iterable[str]) -> str:
    """``problem``: why the recording cannot be read, where it would tell of one."""
    if any(program.startswith("python") for program in programs):
        return "absent (Python ran with -I, -E or -S, or the disk was full)"
    if problem is not None:
        return "not known: it would be in the recording"
    return "absent (no Python, or one that ran with -I, -E or -S)"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("utf-8", "replace").split("\n")
    except OSError:
        return []


def phases_json(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "phase": row.name,
            "entered": row.entered,
            "seconds": round(row.seconds, 3),
            **sizes_json(row, "entry", "peak", "exit", "floor"),
            "peak_gpu_bytes": row.gpu_peak,
            "last_step": row.last_step,
        }
        for row in timeline.load_phases(run.attempt)
    ]


def _phase_table(rows: list[PhaseRow], width: int) -> list[str]:
    if not rows:
        return []
    gpu = any(row.gpu_peak for row in rows)
    cells = [
        ["phase", "entered", "time in it", "at entry", "peak", "at exit", "floor", "GPU peak", "last step"]
    ]
    for row in rows:
        sizes = (row.entry, row.peak, row.exit, row.floor, row.gpu_peak)
        cells.append(
            [
                row.name,
                str(row.entered),
                format_duration(row.seconds),
                *(format_size(size) if size is not None else "-" for size in sizes),
                str(row.last_step) if row.last_step is not None else "-",
            ]
        )
    if not gpu:
        cells = [[*row[:7], row[8]] for row in cells]
    return ["", "  phases", *(f"  {line}" for line in table(cells, width - 2, drop=(6, 3, 1, 5)))]


def _limit_text(run: Run, asked: int | None) -> str:
    if (run.info.get("settings") or {}).get("watch_only"):
        return f"{format_size(asked)}, not enforced (--watch-only)" if asked else "none (--watch-only)"
    if not (enforcer := run.limit_enforcer()):
        return format_size(asked) if asked else "-"
    size = format_size(run.limit) if run.limit else "the machine's floor"
    floor = "" if asked or not run.limit else " (the machine keeps its floor)"
    return f"{size}{floor}, enforced by {enforcer}"


def _paused_text(run: Run, summary: Summary) -> str:
    total = format_duration(paused_seconds(list(summary.paused), boottime()))
    count = len(summary.paused)
    words = f"{total} in {count} pauses" if count > 1 else total
    mark = run.pause_mark() if summary.state == "paused" else {}
    if not mark:
        return words
    if mark.get("by") == "user":
        return f"{words}, by you; oomproof resume {run.name}"
    until = mark.get("until")
    latest = f", at the latest until {format_time(float(until))}" if until else ""
    return f"{words}: {mark.get('why')}{latest}; oomproof resume {run.name}"
