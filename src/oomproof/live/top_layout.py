"""The whole screen of `oomproof top` as lines: a pure function of what was read, what is chosen and the terminal's size."""

from __future__ import annotations

import time

from oomproof.live.job_chart import JobDetail, detail_lines
from oomproof.live.job_table import JobRows, arranged, job_rows
from oomproof.live.live_snapshot import PAUSED, WAITING, JobState, LiveSnapshot
from oomproof.live.memory_bars import machine_lines, pressure_part
from oomproof.printable import one_line
from oomproof.records import dataclass
from oomproof.reports.table_text import Line

KEYS = "p pause  P +card  s save  x stop  w why  o order  / filter  ? help  q quit"
_SHORT_KEYS = "p P s x w o / ? q"
_LEAST_WIDTH, _LEAST_HEIGHT = 24, 5
_LOW = 16  # rows: below that no legend, no selected job
_LEAST_DETAIL = 8


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user has chosen; kept by the screen."""

    selected: str = ""
    order: str = "memory"
    wanted: str = ""  # the filter
    message: str = ""  # what the last action said
    offset: int = 0  # rows of the table above the first that is shown


@dataclass(frozen=True, slots=True)
class Layout:
    lines: list[Line]
    rows: dict[int, str]  # line → the job that is drawn there
    offset: int


def chosen_job(jobs: list[JobState], choice: Choice) -> JobState | None:
    """The one that was selected; the first one when it has gone."""
    return next((job for job in jobs if job.id == choice.selected), jobs[0] if jobs else None)


def lay_out(
    snapshot: LiveSnapshot, detail: JobDetail | None, choice: Choice, width: int, height: int
) -> Layout:
    """Exactly ``height`` lines of at most ``width`` characters."""
    if width < _LEAST_WIDTH or height < _LEAST_HEIGHT:
        lines: list[Line] = [[("too small", "warn")], [("oomproof top -1", "")]]
        return Layout([_fitted(line, width) for line in _filled(lines[:height], height)], {}, 0)
    low = height < _LOW
    jobs = arranged(snapshot.jobs, choice.order, choice.wanted)
    job = chosen_job(jobs, choice)
    top = [_title(snapshot, choice), *machine_lines(snapshot, width, legend=not low)]
    if not low:
        top += [[(f"! {text}", "warn")] for text in snapshot.troubles]
        top.append([])
    top = top[: height - 4]  # of sixteen cards some are below the edge; the jobs are not
    left = height - len(top) - 1
    rows = job_rows(jobs, width, job.id if job else "", below=not low)
    many = len(rows.lines)
    share = left if low or job is None else max(min(many, left - _LEAST_DETAIL - 1), min(many, left // 2))
    shown, offset, more = _window(rows, share, job.id if job else "", choice.offset)
    lines = [*top, *shown.lines]
    at = {len(top) + number: id for number, id in enumerate(shown.ids) if id}
    if not jobs:
        lines.append([(_nothing(choice), "dim")])
    free = height - len(lines) - 1
    if job is not None and not low and free >= 3:
        lines.append([(f"  {more} more below" if more else "", "dim")])
        lines += detail_lines(job, detail, width, free - 1)
    lines = [*_filled(lines[: height - 1], height - 1), _footer(choice, width)]
    return Layout([_fitted(line, width) for line in lines], at, offset)


def _filled(lines: list[Line], height: int) -> list[Line]:
    return [*lines, *([] for _ in range(height - len(lines)))]


def _title(snapshot: LiveSnapshot, choice: Choice) -> Line:
    mine = [job for job in snapshot.jobs if job.managed and job.mine]
    runs = sum(job.state != WAITING for job in mine)
    counts = [f"{runs} run{'' if runs == 1 else 's'}"]
    for state in (PAUSED, WAITING):
        if number := sum(job.state == state for job in mine):
            counts.append(f"{number} {state}")
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.wall))
    parts = [f"oomproof top  {clock}  {', '.join(counts)}"]
    if choice.order != "memory":
        parts.append(f"by {choice.order}")
    if choice.wanted:
        parts.append(f"only {choice.wanted!r}")
    text, style = pressure_part(snapshot.machine)
    return [("  ".join(parts), "title"), (f"  {text}", style)]


def _nothing(choice: Choice) -> str:
    if choice.wanted:
        return f"  no job has {choice.wanted!r} in its name, command or state (Esc shows all)"
    return "  no run, and no other job of 64 MiB or more; start one: oomproof run -- python train.py"


def _window(rows: JobRows, height: int, selected: str, offset: int) -> tuple[JobRows, int, int]:
    """The heading and as many rows as fit, with the selected one among them; and how many jobs are below."""
    lines, ids = rows.lines[1:], rows.ids[1:]
    space = max(1, height - 1)
    if selected in ids:
        first = ids.index(selected)
        last = first + ids.count(selected) - 1
        offset = min(max(offset, last - space + 1), first)
    offset = max(0, min(offset, len(lines) - space))
    end = offset + space
    more = len(set(ids[end:]) - set(ids[:end]))
    return JobRows([rows.lines[0], *lines[offset:end]], ["", *ids[offset:end]]), offset, more


def _footer(choice: Choice, width: int) -> Line:
    if choice.message:
        return [(choice.message, "mark")]
    return [(KEYS if len(KEYS) <= width else _SHORT_KEYS, "dim")]


def once(snapshot: LiveSnapshot, width: int) -> list[Line]:
    """`top -1`: everything but the selected job, as long as it gets."""
    jobs = arranged(snapshot.jobs)
    lines = [_title(snapshot, Choice()), *machine_lines(snapshot, width)]
    lines += [[(f"! {text}", "warn")] for text in snapshot.troubles]
    lines.append([])
    lines += job_rows(jobs, width).lines if jobs else [[(_nothing(Choice()), "dim")]]
    return [_fitted(line, width) for line in lines]


def _fitted(line: Line, width: int) -> Line:
    """Printable, on one line, and no longer than that."""
    parts: Line = []
    left = width
    for text, style in line:
        text = one_line(text)
        if len(text) > left:
            parts.append((text[: max(0, left - 1)] + "…" if left > 0 else "", style))
            return parts
        parts.append((text, style))
        left -= len(text)
    return parts
