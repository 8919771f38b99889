"""Two runs side by side; what the history knows of a command: its last good run, and how often it ended in this way."""

from __future__ import annotations

from pathlib import Path

from oomproof.diagnosis.conclusion import stored_verdict
from oomproof.recording.phase_spans import seconds_per_step
from oomproof.recording.run_folders import Run, list_runs
from oomproof.recording.series import PhaseMark
from oomproof.records import dataclass
from oomproof.reports.run_tables import end_text, summarize
from oomproof.reports.table_text import table
from oomproof.units import format_duration, format_size

_MOST = 200  # earlier runs of one command that are looked at


@dataclass(frozen=True, slots=True)
class Earlier:
    compared: Run | None = None  # the last good one; the newest of all where none was good
    good: bool = False
    times: int = 0  # how often it ended so before
    first: float | None = None
    last: float | None = None


def earlier_runs(run: Run, cause: str) -> Earlier:
    """From what was judged when they ended: nothing is judged here."""
    newest: Run | None = None
    good: Run | None = None
    walls: list[float] = []
    for other in _same_command(run):
        verdict = stored_verdict(other.attempt)
        if verdict is None:
            continue
        newest = newest or other
        if good is None and verdict.cause == "finished":
            good = other
        if verdict.cause == cause and not verdict.kind.good:
            walls.append(other.created)
    return Earlier(
        good or newest, good is not None, len(walls), min(walls, default=None), max(walls, default=None)
    )


def _same_command(run: Run) -> list[Run]:
    """Those before it of the same script, or of the same first words in the same place; newest first."""
    script = (run.info.get("code") or {}).get("script")
    found: list[Run] = []
    for other in list_runs():
        if other.id == run.id or (other.created, other.id) >= (run.created, run.id):
            continue
        same = script and (other.info.get("code") or {}).get("script") == script
        if same or (not script and other.argv[:2] == run.argv[:2] and _cwd(other) == _cwd(run)):
            found.append(other)
        if len(found) >= _MOST:
            break
    return found


def _cwd(run: Run) -> Path:
    return Path(str(run.info.get("cwd") or "."))


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
    if (pace := step_pace(marks)) is not None:
        by_phase["per step"] = pace
    return by_phase


def step_pace(marks: list[PhaseMark]) -> str | None:
    seconds = seconds_per_step(marks)
    return _pace(seconds) if seconds is not None else None


def compare(left: Run, right: Run, width: int = 100) -> str:
    heads = (left.name, right.name) if left.name != right.name else (left.id, right.id)
    rows = [("", *heads), *compare_rows(left, right)]
    half = max(12, (width - max(len(row[0]) for row in rows) - 4) // 2)
    return "\n".join(table(rows, width, shrink={2: half, 1: half, 0: 12}))


def _pace(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else format_duration(seconds)
