"""Tables of runs: the history, one run in full, two side by side."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from oomproof.causes import cause_of
from oomproof.diagnosis.conclusion import Conclusion, conclusion_of
from oomproof.diagnosis.rules.machine_down import ORDERLY
from oomproof.evidence.gpu_oom import last_oom
from oomproof.leaf.attempt_names import FAULT, LISTENS
from oomproof.machine.clock import boottime
from oomproof.printable import one_line, printable
from oomproof.recording import run_summary, spill_record
from oomproof.recording.phase_spans import PhaseRow, phase_rows, seconds_per_step, with_last_step
from oomproof.recording.position_record import best, read_all
from oomproof.recording.profile_files import profile_of
from oomproof.recording.reader import Peaks
from oomproof.recording.run_folders import ELSEWHERE, Run, easy_to_type, newest_runs, to_type
from oomproof.recording.run_peak import SAMPLES, SOURCES
from oomproof.recording.run_summary import Summary
from oomproof.recording.series import Event, PhaseMark, told_kind, told_text
from oomproof.records import replace
from oomproof.reports import gpu_account, timeline
from oomproof.reports.alongside import Alongside
from oomproof.reports.chart import draw
from oomproof.reports.table_text import cut, folded, table
from oomproof.reports.trend_text import trend_rows
from oomproof.reports.verdict_text import COLOURS, three_lines
from oomproof.runner.code_identity import hash_file
from oomproof.units import format_duration, format_size, format_time

_EVENTS = 20  # of the newest, in `runs show`


def summaries_of(listed: Iterable[Run], failed_only: bool = False) -> Iterator[Summary]:
    """Each run on its own: one whose files are damaged is listed as such, with what can be told."""
    for run in listed:
        summary = _summary_of(run)
        if not failed_only or _failed(summary):
            yield summary


def _failed(summary: Summary) -> bool:
    """It is over, and not as it should be."""
    if summary.cause is None:
        return summary.state in ("machine went down", "vanished", "failed to start", "damaged")
    cause = cause_of(summary.cause)
    return not cause.good and cause.stopped_by != "person"


def _summary_of(run: Run) -> Summary:
    try:
        return summarize(run)
    except Exception as error:  # whatever a damaged file makes us do: the others are to be listed
        if os.environ.get("OOMPROOF_DEBUG"):
            raise
        problem = run.damage() or f"damaged: {type(error).__name__}: {error}"
        return Summary(
            run.id, run.name, shlex.join(run.argv), run.place[0], "damaged", None, Peaks(), None, None, None,
            None, None, False, problem,
        )  # fmt: skip


def summarize(run: Run, told: Conclusion | None = None) -> Summary:
    """``told`` where the caller has it. Of a run that was judged the line is cached beside its recording: a history of
    thousands is not read anew each time. What is judged here for want of a verdict is stored nowhere."""
    kept = run_summary.read(run)
    if kept is None:
        told = told or conclusion_of(run)
        kept = run_summary.make(run, told.as_json if told else None)
        if told is not None and told.stored:
            run_summary.keep(run, kept)
    code = run.info.get("code") or {}
    before = code.get("script_sha256")
    now = _hash_now(code.get("script"))
    changed = before is not None and now is not None and before != now
    return replace(kept, script_changed=changed)


def _clock(wall: float) -> str:
    """Short, for the rows of a table; local, as all times are."""
    today = time.strftime("%F") == time.strftime("%F", time.localtime(wall))
    return time.strftime("%H:%M:%S" if today else "%d %b %H:%M", time.localtime(wall))


def _state_text(summary: Summary) -> str:
    return f"on {summary.elsewhere}, not visible from here" if summary.state == ELSEWHERE else summary.state


def _hash_now(path: str | None) -> str | None:
    """A history has many runs of one script: it is read once, until it changes."""
    try:
        stat = os.stat(path) if path else None
    except (OSError, ValueError):
        stat = None
    return _hash(str(path), stat.st_mtime_ns, stat.st_size) if stat is not None else None


@lru_cache(maxsize=512)
def _hash(path: str, _changed: int, _size: int) -> str | None:
    return hash_file(path)


_RAISED = re.compile(r"failed with (?:\w+\.)*(\w{1,40}(?:Error|Exception|Failure|Fault|Exit))\b")


def end_text(summary: Summary) -> str:
    if (summary.problem or "").startswith("damaged"):
        return "damaged"
    if summary.cause == "machine-down":
        return "machine shut down" if (summary.headline or "").startswith(ORDERLY) else "machine went down"
    if summary.state != "ended":
        return _state_text(summary)
    if summary.cause == "other-error" and (raised := _RAISED.match(summary.headline or "")):
        return raised[1]
    return cause_of(summary.cause).title if summary.cause else "ended"


def _painted(text: str, summary: Summary) -> str:
    """In the colour of how it ended; of one that lives, only where something is the matter."""
    if summary.cause is not None:
        tone = cause_of(summary.cause).tone
    else:
        tone = "bad" if _failed(summary) else "ours" if summary.state in _MATTERS else "good"
    return f"\x1b[{COLOURS[tone]}m{text}\x1b[0m"


_MATTERS = ("paused", "unguarded", "waiting", ELSEWHERE)


def history(summaries: list[Summary], width: int = 100, colour: bool = False) -> str:
    """Newest first, one line each; where the machine itself went down, when that was and how it stood then."""
    if not summaries:
        return "no runs yet; start one: oomproof run -- python train.py"
    fitted = _history_table(summaries, width, colour)
    unnamed = [summary.id for summary in summaries if summary.name == summary.id]
    if any(
        all(run_id not in line for line in fitted) for run_id in unnamed
    ):  # cut off: all ids of a day begin alike
        fitted = _history_table(summaries, width, colour, id_ends=True)
    lines = fitted[:1]
    for line, of in zip(fitted[1:], summaries, strict=True):
        lines.append(line)
        if of.cause == "machine-down":
            lines += [part for text in (of.headline, of.why) if text for part in folded("    ", text, width)]
    if any(summary.script_changed for summary in summaries):
        lines.append("* the script was changed after this run started")
    if damaged := [summary for summary in summaries if end_text(summary) == "damaged"]:
        told = f"some of its files cannot be read; what can: oomproof runs show {damaged[0].id}"
        lines += folded("damaged: ", told, width)
    lines.append("")
    first = summaries[0]
    newest = next(iter(newest_runs(1)), None)  # of --failed the first may have a newer one of its name
    named = newest is not None and newest.id == first.id and easy_to_type(first.name)
    called = first.name if named else first.id
    lines.append(f"next: oomproof runs show {one_line(called)}")
    return "\n".join(lines)


def _history_table(summaries: list[Summary], width: int, colour: bool, id_ends: bool = False) -> list[str]:
    """``id_ends``: of an id what follows the day, which a command takes for it too."""
    rows = [("RUN", "STARTED", "LASTED", "PEAK", "END", "COMMAND")]
    for summary in summaries:
        label = summary.name
        if id_ends and label == summary.id:
            label = label.partition("-")[2] or label
        label += f"/{summary.attempt}" if summary.attempt > 1 else ""
        mark = " *" if summary.script_changed else ""
        rows.append(
            (
                cut(label, 24),
                _clock(summary.began),
                format_duration(summary.seconds) if summary.seconds is not None else "-",
                format_size(summary.peaks.use) if summary.peaks.use is not None else "-",
                end_text(summary) + mark,
                summary.command,
            )
        )

    def paint(row: int, column: int, text: str) -> str:
        return _painted(text, summaries[row - 1]) if colour and row and column == 4 else text

    return table(rows, width, shrink={5: 16, 0: 12, 4: 14}, drop=(5, 2, 1), paint=paint)


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
        ("state", _state_text(summary)),
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
        from oomproof.reports.attempt_table import cut_off

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
            lines += [_painted(line, summary) for line in part] if colour and name == "state" else part
    if len(attempts) > 1:
        from oomproof.reports.attempt_table import attempt_lines

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
            head = f"  {_clock(event.t + recording.wall_offset)}  "
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
        if (pace := _step_pace(marks)) is not None:
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


def _pace(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else format_duration(seconds)


def phases_json(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "phase": row.name,
            "entered": row.entered,
            "seconds": round(row.seconds, 3),
            "entry_bytes": row.entry,
            "peak_bytes": row.peak,
            "exit_bytes": row.exit,
            "floor_bytes": row.floor,
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
    total = format_duration(run_summary.paused_seconds(list(summary.paused), boottime()))
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


def peak_text(peaks: Peaks, spill: int = 0) -> str:
    """What it held at most, and of what where a sample shows it; else how that is known. ``spill``: bytes pinned for the card."""
    if peaks.use is None:
        return "no sample was taken"
    parts = [f"by {SOURCES[peaks.source]}"]
    if peaks.source == SAMPLES:
        parts = [f"anonymous {format_size(peaks.anon)}", f"shared {format_size(peaks.shmem)}"]
        parts += [f"swapped {format_size(peaks.swap)}"] if peaks.swap else []
    parts += [f"{format_size(spill)} of it pinned by --spill"] if spill else []
    return f"{format_size(peaks.use)} ({', '.join(parts)})"


def differing_arguments(left: list[str], right: list[str]) -> list[tuple[str, str, str]]:
    """Arguments that differ, as (name, in the first, in the second)."""
    first, second = _options(left), _options(right)
    names = list(dict.fromkeys([*first, *second]))
    return [
        (name, first.get(name, "-"), second.get(name, "-"))
        for name in names
        if first.get(name) != second.get(name)
    ]


def _options(argv: list[str]) -> dict[str, str]:
    """``--batch 64``, ``--batch=64`` and ``batch=64`` by name; other words by place."""
    options: dict[str, str] = {}
    index = position = 0
    while index < len(argv):
        word = argv[index]
        name, equals, value = word.partition("=")
        if equals:
            options[name.lstrip("-")] = value
        elif word.startswith("-") and index + 1 < len(argv) and _is_value(argv[index + 1]):
            options[word.lstrip("-")] = argv[index + 1]
            index += 1
        elif word.startswith("-"):
            options[word.lstrip("-")] = "yes"
        else:
            options[f"word {position}"] = word
            position += 1
        index += 1
    return options


def _is_value(word: str) -> bool:
    """What may stand behind a flag: no flag, no name=value; a negative number may."""
    return "=" not in word and (not word.startswith("-") or word[1:2].isdigit() or word[1:2] == ".")


def compare_rows(left: Run, right: Run) -> list[tuple[str, str, str]]:
    """What people put into a before/after table."""
    a, b = summarize(left), summarize(right)
    rows = [
        ("peak", format_size(a.peaks.use), format_size(b.peaks.use)),
        ("peak, anonymous", format_size(a.peaks.anon), format_size(b.peaks.anon)),
        ("peak, shared", format_size(a.peaks.shmem), format_size(b.peaks.shmem)),
        ("lowest available", format_size(a.peaks.lowest_available), format_size(b.peaks.lowest_available)),
        ("lasted", format_duration(a.seconds), format_duration(b.seconds)),
        ("end", end_text(a), end_text(b)),
    ]
    if a.peaks.gpu or b.peaks.gpu:
        rows.insert(3, ("peak, GPU", format_size(a.peaks.gpu), format_size(b.peaks.gpu)))
    if a.peaks.swap or b.peaks.swap:
        rows.insert(3, ("peak, swapped", format_size(a.peaks.swap), format_size(b.peaks.swap)))
    rows += _phase_rows(left, right)
    rows += differing_arguments(left.argv, right.argv)
    for name in ("limit", "margin", "floor"):
        first, second = ((run.info.get("settings") or {}).get(name) for run in (left, right))
        if first != second:
            rows.append(
                (f"--{name}", format_size(first) if first else "-", format_size(second) if second else "-")
            )
    for name, label in (
        ("git_commit", "commit"),
        ("git_diff_sha256", "changes"),
        ("script_sha256", "script"),
    ):
        first, second = ((run.info.get("code") or {}).get(name) for run in (left, right))
        if first != second:
            rows.append((label, (first or "-")[:12], (second or "-")[:12]))
    env_one, env_two = left.info.get("env") or {}, right.info.get("env") or {}
    for name in sorted({*env_one, *env_two}):
        if env_one.get(name) != env_two.get(name):
            rows.append((f"${name}", env_one.get(name, "-"), env_two.get(name, "-")))
    return rows


def _phase_rows(left: Run, right: Run) -> list[tuple[str, str, str]]:
    """Peak per phase and time per step, for runs whose job told its phases."""
    first, second = (_phases(run) for run in (left, right))
    return [(name, first.get(name, "-"), second.get(name, "-")) for name in dict.fromkeys([*first, *second])]


def _phases(run: Run) -> dict[str, str]:
    highest: dict[str, int] = {}
    with run.attempt.recording().series() as series:
        marks = series.phase_marks()
        if not marks:
            return {}
        ends = [*(mark.t for mark in marks[1:]), max(series.use.end if series.use else 0.0, marks[-1].t)]
        for mark, end in zip(marks, ends, strict=True):
            if (inside := series.use.between(mark.t, end)) is not None:
                highest[mark.name] = max(highest.get(mark.name, 0), int(inside[1]))
    by_phase = {f"peak in {name}": format_size(size) for name, size in highest.items()}
    if (pace := _step_pace(marks)) is not None:
        by_phase["per step"] = pace
    return by_phase


def _step_pace(marks: list[PhaseMark]) -> str | None:
    seconds = seconds_per_step(marks)
    return _pace(seconds) if seconds is not None else None


def compare(left: Run, right: Run, width: int = 100) -> str:
    heads = (left.name, right.name) if left.name != right.name else (left.id, right.id)
    rows = [("", *heads), *compare_rows(left, right)]
    half = max(12, (width - max(len(row[0]) for row in rows) - 4) // 2)
    return "\n".join(table(rows, width, shrink={2: half, 1: half, 0: 12}))
