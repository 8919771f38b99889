"""The selected job: host and card on one time axis, the limit, the phases, what the guard said, what the job printed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from oomproof.live.job_table import full_text, peak_text, rate_text, waits_for
from oomproof.live.live_reader import LiveReader
from oomproof.live.live_snapshot import JobState
from oomproof.live.run_reader import SPAN
from oomproof.machine.clock import boottime
from oomproof.printable import one_line
from oomproof.recording.attempt import Attempt
from oomproof.recording.phase_spans import Span, spans_of
from oomproof.recording.series import GpuRow
from oomproof.records import dataclass, replace
from oomproof.reports.chart import columns, rows_of_blocks
from oomproof.reports.table_text import Line, cut
from oomproof.units import format_duration, format_size

_TAIL = 16 << 10  # bytes of the output in which the last lines are looked for
_LINES = 12
_CARD_ROWS, _MARKS = 2400, 1500  # of the newest: ten minutes of four cards, and of steps
# a job's own; every other control character is shown as text
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

Samples = tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class JobDetail:
    """Times are seconds since boot; ``begin`` to ``end`` is what the axis shows."""

    id: str
    begin: float
    end: float
    host: Samples = ()
    card: Samples = ()
    card_total: int | None = None
    phases: tuple[Span, ...] = ()
    log: tuple[str, ...] = ()


def read_detail(reader: LiveReader, job: JobState) -> JobDetail:
    now = boottime()
    host = reader.points_of(job)
    if job.use is not None:
        host = (*host, (now, job.use))
    begin = max(now - SPAN, host[0][0]) if host else now - SPAN
    of_run = reader.reader_of(job)
    if of_run is None:
        return JobDetail(job.id, begin, now, host)
    attempt = of_run.run.attempt
    rows, spans = reader.kept((job.id, of_run.stamp), lambda: _read_recording(attempt, now - SPAN))
    phases = spans[:-1] + tuple(replace(span, end=now) for span in spans[-1:])
    return JobDetail(job.id, begin, now, host, _of_cards(rows), _total(rows), phases, _last_lines(attempt))


def _read_recording(attempt: Attempt, begin: float) -> tuple[list[GpuRow], tuple[Span, ...]]:
    with attempt.recording().series() as series:
        rows = [row for row in series.after(GpuRow, 0, _CARD_ROWS)[0] if row.t >= begin]
        spans = spans_of(series, newest=_MARKS)
    return rows, tuple(
        span for number, span in enumerate(spans) if span.end >= begin or number == len(spans) - 1
    )


def _of_cards(rows: list[GpuRow]) -> Samples:
    """All cards together, at each look."""
    looks: dict[float, int] = {}
    for row in rows:
        if row.job_used is not None:
            looks[row.t] = looks.get(row.t, 0) + row.job_used
    return tuple(looks.items()) if any(looks.values()) else ()


def _total(rows: list[GpuRow]) -> int | None:
    totals = {row.idx: row.total for row in rows if row.job_used}
    return sum(totals.values()) or None


def _last_lines(attempt: Attempt) -> tuple[str, ...]:
    """Of a progress bar, which writes over its own line, what one would see."""
    try:
        with open(attempt.output_file, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            text = file.read(_TAIL).decode("utf-8", "replace")
    except OSError:
        return ()
    lines = (line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n"))
    return tuple(one_line(_COLOURS.sub("", line)) for line in lines if line)[-_LINES:]


_REACHED = 0.9  # of the limit: a chart as high as that has its own colour in the row of the limit
_LABEL = 10  # columns left of a chart
_TALLEST = 8  # rows of one chart
_HIGH = 12  # lines: with fewer, the chart has all but one of the log's


def chart_lines(
    values: Sequence[float | None], height: int, limit: int | None, style: str, label: str
) -> list[Line]:
    """The limit's line has a colour of its own where little of it is reached."""
    most = max((value for value in values if value is not None), default=0)
    lines: list[Line] = []
    for row, (size, cells, at_limit) in enumerate(rows_of_blocks(values, height, limit)):
        name = label if row == height - 1 else size
        free = at_limit and limit is not None and most < _REACHED * max(most, limit) * (height - row) / height
        lines.append([(f"{name:>{_LABEL - 1}} ", "dim"), (cells, "limit" if free else style)])
    return lines


def ribbon(phases: Sequence[Span], begin: float, end: float, width: int) -> str:
    """A letter for the phase of each slice of time: lllttttteettt. The shorter phases win: an evaluation is not lost between
    two minutes of training."""
    if not phases:
        return ""
    step = max(end - begin, 1e-9) / width
    cells = [" "] * width
    for span in sorted(phases, key=lambda span: span.begin - span.end):
        if span.name == "unknown":
            continue
        first, last = int((span.begin - begin) / step), int((span.end - begin) / step)
        for cell in range(max(0, first), min(width - 1, last) + 1):
            cells[cell] = span.name[:1]
    return "".join(cells)


def detail_lines(job: JobState, detail: JobDetail | None, width: int, height: int) -> list[Line]:
    """At most ``height`` lines; what matters less is left out first: the log, then the card, then the chart."""
    head = _head(job, width)
    lines = head[: max(1, height)]
    if detail is None or detail.id != job.id or height < len(lines) + 4:
        return _with_log(lines, detail, job, width, height)
    cells = max(10, width - _LABEL)
    phases = ribbon(detail.phases, detail.begin, detail.end, cells).rstrip()
    left = height - len(lines) - 1 - bool(phases) - min(2 if height >= _HIGH else 1, len(detail.log))
    charts = [(detail.host, job.limit or job.cap, "runs", "RAM")]
    if detail.card and left >= 4:
        charts.append((detail.card, detail.card_total, "card", "VRAM"))
    tall = max(1, min(_TALLEST, left // len(charts)))
    for points, limit, style, label in charts:
        values = columns(points, cells, detail.begin, detail.end)
        lines += chart_lines(values, tall, limit, style, label)
    if phases:
        lines.append([(f"{'phase':>{_LABEL - 1}} ", "dim"), (phases, "reserved")])
    span = f"{format_duration(detail.end - detail.begin)} ago"
    lines.append([(" " * _LABEL + span + "now".rjust(max(4, cells - len(span))), "dim")])
    return _with_log(lines, detail, job, width, height)


def _head(job: JobState, width: int) -> list[Line]:
    who = job.name if job.managed else f"{job.name}, unmanaged"
    pid = f" · pid {job.pid}" if job.pid is not None else ""
    since = f" · {format_duration(job.seconds)}" if job.seconds is not None else ""
    lines: list[Line] = [[(cut(f"{who}{pid}{since} · {job.command}", width), "title")]]
    spill = f" ({format_size(job.spill)} of it pinned by --spill)" if job.spill else ""
    parts = [
        f"holds {format_size(job.use)}{spill}",
        f"at most {peak_text(job)}",
        f"{rate_text(job.rate)} MiB/min",
    ]
    if job.full_in is not None:
        parts.append(f"full in {full_text(job.full_in)}")
    if job.limit is not None or job.cap is not None:
        what = (
            f"limit {format_size(job.limit)}"
            if job.limit is not None
            else f"capped at {format_size(job.cap)}"
        )
        parts.append(what + (f" by {job.limit_by}" if job.limit_by else ""))
    if job.reserved:
        parts.append(f"{format_size(job.reserved)} more reserved")
    if job.swap:
        parts.append(f"{format_size(job.swap)} of it in swap")
    lines.append([(cut(" · ".join(parts), width), "")])
    if message := waits_for(job) or _guard_said(job):
        lines.append([(cut(message, width), "warn")])
    return lines


def _guard_said(job: JobState) -> str:
    """With its age: what was said an hour ago may long be over."""
    if not job.message:
        return ""
    age = "" if job.message_age is None else f" {format_duration(job.message_age)} ago"
    return f"guard{age}: {job.message}"


def _with_log(
    lines: list[Line], detail: JobDetail | None, job: JobState, width: int, height: int
) -> list[Line]:
    left = height - len(lines)
    if detail is not None and detail.id == job.id and left > 0:
        lines = [*lines, *([(cut(f"| {text}", width), "dim")] for text in detail.log[-left:])]
    return lines
