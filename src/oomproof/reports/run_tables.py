"""Tables of runs: the history, the attempts of one run, what `runs prune` removed."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from oomproof.causes import cause_of
from oomproof.diagnosis.conclusion import Conclusion, conclusion_of
from oomproof.diagnosis.rules.machine_down import ORDERLY
from oomproof.printable import one_line
from oomproof.recording import run_summary
from oomproof.recording.prune import Stored
from oomproof.recording.reader import Peaks
from oomproof.recording.run_folders import ELSEWHERE, Run, easy_to_type, newest_runs
from oomproof.recording.run_peak import SAMPLES, SOURCES
from oomproof.recording.run_summary import Summary
from oomproof.recording.state_files import read_json
from oomproof.records import replace
from oomproof.reports.table_text import cut, folded, table
from oomproof.reports.verdict_text import COLOURS
from oomproof.runner.code_identity import hash_file
from oomproof.units import format_duration, format_size, format_time


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


def clock(wall: float) -> str:
    """Short, for the rows of a table; local, as all times are."""
    today = time.strftime("%F") == time.strftime("%F", time.localtime(wall))
    return time.strftime("%H:%M:%S" if today else "%d %b %H:%M", time.localtime(wall))


def state_text(summary: Summary) -> str:
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
        return state_text(summary)
    if summary.cause == "other-error" and (raised := _RAISED.match(summary.headline or "")):
        return raised[1]
    return cause_of(summary.cause).title if summary.cause else "ended"


def painted(text: str, summary: Summary) -> str:
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
                clock(summary.began),
                format_duration(summary.seconds) if summary.seconds is not None else "-",
                format_size(summary.peaks.use) if summary.peaks.use is not None else "-",
                end_text(summary) + mark,
                summary.command,
            )
        )

    def paint(row: int, column: int, text: str) -> str:
        return painted(text, summaries[row - 1]) if colour and row and column == 4 else text

    return table(rows, width, shrink={5: 16, 0: 12, 4: 14}, drop=(5, 2, 1), paint=paint)


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


def pruned(
    going: Sequence[Stored],
    failed: Mapping[str, str],
    runs: int,
    used: int,
    freed: int,
    done: bool,
    no_rule: bool,
) -> str:
    """``failed``: run id → why it is still there. ``no_rule``: nothing was said about what may go."""
    if no_rule:
        return (
            f"{runs} runs take {format_size(used)}; nothing is removed without a rule\n"
            "for example: oomproof runs prune --keep 50    or --older-than 30d    or --total 2G"
        )
    if not going:
        return f"nothing to remove: {runs} runs take {format_size(used)}, and all of them stay"
    what = "removed" if done else "would be removed"
    kept = runs - len(going) + len(failed)
    gone = len(going) - len(failed)
    lines = _rows(going, failed)
    lines.append(f"{gone} of {runs} runs {what}, {format_size(freed)} of {format_size(used)}; {kept} stay")
    if not done:
        lines.append("nothing has been removed yet: the same command with --yes does it")
    return "\n".join(lines)


def removed(chosen: Sequence[Stored], failed: Mapping[str, str], done: bool) -> str:
    """What `runs rm` removed, or would remove."""
    gone = [stored for stored in chosen if stored.run.id not in failed]
    what = "removed" if done else "would be removed"
    size = format_size(sum(stored.size for stored in gone))
    return "\n".join([*_rows(chosen, failed), f"{len(gone)} run{'s' * (len(gone) != 1)} {what}, {size}"])


def _rows(going: Sequence[Stored], failed: Mapping[str, str]) -> list[str]:
    rows = [("RUN", "ID", "STARTED", "SIZE", "")]
    for stored in going:
        day = format_time(stored.created) if stored.created else "?"
        why = f"stays: {failed[stored.run.id]}" if stored.run.id in failed else ""
        rows.append((stored.run.name, stored.run.id, day, format_size(stored.size), why))
    return table(rows)
