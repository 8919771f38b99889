"""The selected job, closer: what it held by time, its phases, its last lines. Read for one job at a time."""

from __future__ import annotations

import os
import re

from oomproof.live.live_reader import LiveReader
from oomproof.live.live_snapshot import JobState
from oomproof.live.run_reader import SPAN
from oomproof.machine.clock import boottime
from oomproof.printable import one_line
from oomproof.recording.attempt import Attempt
from oomproof.recording.phase_spans import Span, spans_of
from oomproof.recording.series import GpuRow
from oomproof.records import dataclass, replace

_TAIL = 16 << 10  # bytes of the output in which the last lines are looked for
_LINES = 12
_CARD_ROWS, _MARKS = 2400, 1500  # of the newest: ten minutes of four cards, and of steps
# a job's own; every other control character is shown as text
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

Points = tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class JobDetail:
    """Times are seconds since boot; ``begin`` to ``end`` is what the axis shows."""

    id: str
    begin: float
    end: float
    host: Points = ()
    card: Points = ()
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


def _of_cards(rows: list[GpuRow]) -> Points:
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
