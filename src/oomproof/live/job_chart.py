"""The selected job: host and card on one time axis, the limit, the phases, what the guard said, what the job printed."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.live.job_detail import JobDetail
from oomproof.live.job_table import full_text, peak_text, rate_text, waits_for
from oomproof.live.live_snapshot import JobState
from oomproof.recording.phase_spans import Span
from oomproof.reports.styled_lines import Line
from oomproof.reports.table_text import cut
from oomproof.units import format_duration, format_size

_BLOCKS = " ▁▂▃▄▅▆▇█"
_LABEL = 10  # columns left of a chart
_TALLEST = 8  # rows of one chart
_HIGH = 12  # lines: with fewer, the chart has all but one of the log's

Points = Sequence[tuple[float, int]]


def highest(points: Points, begin: float, end: float, width: int) -> list[int | None]:
    """Of each of ``width`` slices of the time from ``begin`` to ``end`` the highest; a slice without a sample holds what was
    before it."""
    slots: list[int | None] = [None] * width
    step = max(end - begin, 1e-9) / width
    before: int | None = None
    for t, value in points:
        if t < begin:
            before = value
            continue
        slot = min(width - 1, int((t - begin) / step))
        seen = slots[slot]
        slots[slot] = value if seen is None else max(seen, value)
    for index, seen in enumerate(slots):
        before = seen if seen is not None else before
        slots[index] = before
    return slots


def chart_lines(
    values: Sequence[int | None], height: int, limit: int | None, style: str, label: str
) -> list[Line]:
    """Blocks; a limit within three times of what was held is the top and a line, else the highest is the top."""
    most = max((value for value in values if value is not None), default=0)
    shown = limit if limit is not None and limit < 3 * max(1, most) else None
    top = max(most, shown or 0, 1)
    lines: list[Line] = []
    for row in range(height, 0, -1):
        upper, lower = top * row / height, top * (row - 1) / height
        at_limit = shown is not None and lower < shown <= upper
        cells = []
        for value in values:
            filled = ((value or 0) - lower) / (upper - lower)
            block = _BLOCKS[max(0, min(8, round(filled * 8)))]
            cells.append("┄" if at_limit and block == " " else block)
        size = format_size(shown if at_limit else upper) if row == height or at_limit else ""
        name = label if row == 1 else size
        lines.append(
            [
                (f"{name:>{_LABEL - 1}} ", "dim"),
                ("".join(cells), "limit" if at_limit and most < upper * 0.9 else style),
            ]
        )
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
        values = highest(points, detail.begin, detail.end, cells)
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
