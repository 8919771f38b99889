"""The jobs part of the screen: a row a job, workers folded; what a paused or waiting one waits for below it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from oomproof.live.live_snapshot import PAUSED, UNMANAGED, WAITING, JobState
from oomproof.live.memory_bars import FREE, RUNS
from oomproof.records import dataclass
from oomproof.reports.table_text import Line, cut, table
from oomproof.trend.leaks import Range
from oomproof.units import MIB, format_duration, format_size

_NOBODY = float("inf")
_BAR = 6  # cells of a limit's bar
_NARROW = 60
_WIDE = 100  # columns of a terminal that has space for the limit's size
_BELOW = "    "  # before the line below a row


@dataclass(frozen=True, slots=True)
class JobRows:
    """``lines[n]`` belongs to the job ``ids[n]``; the heading to none."""

    lines: list[Line]
    ids: list[str]


def full_text(full: Range | None) -> str:
    """`12 to 15 min`."""
    if full is None:
        return "–"
    low, high = format_duration(full.low), format_duration(full.high)
    if full.high == _NOBODY or high == "years":
        return f"over {low}"
    if low == high:
        return low
    same = low.rpartition(" ")[2] == high.rpartition(" ")[2] and low.count(" ") == high.count(" ") == 1
    return f"{low.rpartition(' ')[0]} to {high}" if same else f"{low} to {high}"


def rate_text(rate: float | None) -> str:
    if rate is None:
        return "–"
    a_minute = rate * 60 / MIB
    return "0" if abs(a_minute) < 0.5 else f"{a_minute:+.0f}"


def _use(job: JobState) -> str:
    if job.state == WAITING:
        return f"({format_size(job.need)})" if job.need is not None else "–"
    return ("" if job.exact else "~") + format_size(job.use)


def _position(job: JobState) -> str:
    if not job.phase or job.phase == "unknown":
        return "–" if job.step is None else f"step {job.step:,}"
    return job.phase if job.step is None else f"{job.phase} {job.step:,}"


def _limit(job: JobState) -> str:
    bar = _limit_bar(job)
    return bar if job.limit is None else f"{bar} {format_size(job.limit)}"


def _limit_bar(job: JobState) -> str:
    """How full it is; the size of the limit stands with the selected job."""
    if job.limit is None or job.use is None:
        return "–"
    full = min(_BAR, round(_BAR * job.use / max(1, job.limit)))
    return f"{RUNS * full}{FREE * (_BAR - full)}"


def _card(job: JobState) -> str:
    """What PyTorch uses of what it has reserved; else what the driver counts."""
    if job.gpu_given_back:
        return "given back"
    if job.gpu_allocated is not None and job.gpu_reserved is not None:
        return f"{format_size(job.gpu_allocated)} / {format_size(job.gpu_reserved)}"
    return "–" if job.gpu_used is None else format_size(job.gpu_used)


def peak_text(job: JobState) -> str:
    """`3.1 GiB (+12 %)`: beside what this command held at most the last time."""
    if job.peak is None:
        return "–"
    if not job.peak_before:
        return format_size(job.peak)
    own = max(0, job.peak - job.spill)
    more = round(100 * (own - job.peak_before) / job.peak_before)
    return format_size(job.peak) + (f" ({more:+}%)" if more else " (as before)")


def _name(job: JobState) -> str:
    mark = "* " if job.protected else ""
    return f"{mark}{job.name}"


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    cell: Callable[[JobState], str]
    right: bool = True


_COLUMNS = (
    Column("job", _name, right=False),
    Column("pid", lambda job: "–" if job.pid is None else str(job.pid)),
    Column("state", lambda job: job.state, right=False),
    Column("phase, step", _position, right=False),
    Column("RAM", _use),
    Column("VRAM used/reserved", _card),
    Column("limit", _limit, right=False),
    Column("MiB/min", lambda job: rate_text(job.rate)),
    Column("full in", lambda job: full_text(job.full_in)),
    Column("peak (last)", peak_text),
    Column("reserved", lambda job: format_size(job.reserved) if job.reserved else "–"),
    Column("procs", lambda job: "–" if job.processes is None else str(job.processes)),
)
_DROPPED_FIRST = (
    "procs", "pid", "reserved", "peak (last)", "VRAM used/reserved", "limit", "phase, step", "MiB/min", "state",
)  # fmt: skip

# --- order and filter -------------------------------------------------------------------------------------------------


def _soonest(job: JobState) -> float:
    return job.full_in.low if job.full_in is not None else _NOBODY


ORDERS: dict[str, Callable[[JobState], object]] = {
    "memory": lambda job: (-(job.use or 0), job.name),
    "growth": lambda job: (-(job.rate or 0.0), job.name),
    "time to full": lambda job: (_soonest(job), job.name),
    "newest": lambda job: (job.seconds if job.seconds is not None else -1.0, job.name),
    "name": lambda job: job.name,
}


def arranged(jobs: Sequence[JobState], order: str = "memory", wanted: str = "") -> list[JobState]:
    """Runs first, then unmanaged jobs; ``wanted``: only those whose name, command or state has it."""
    text = wanted.lower()
    shown = [job for job in jobs if text in f"{job.name} {job.command} {job.state}".lower()]
    by_order = ORDERS[order]
    return sorted(shown, key=lambda job: (not job.managed, job.state == WAITING, by_order(job)))


# --- lines ------------------------------------------------------------------------------------------------------------


def job_rows(jobs: Sequence[JobState], width: int, selected: str = "", below: bool = True) -> JobRows:
    """The heading, then each job. Columns that do not fit are left out, the least telling first."""
    narrow = Column("limit", _limit_bar, right=False)
    columns = [narrow if column.cell is _limit and width < _WIDE else column for column in _COLUMNS]
    columns = [column for column in columns if _tells(column, jobs)]
    rows = [[column.title for column in columns], *([column.cell(job) for column in columns] for job in jobs)]
    titles = [column.title for column in columns]
    texts = table(
        rows,
        width - 2,
        shrink={0: 16 if width >= _NARROW else 10},
        drop=[titles.index(title) for title in _DROPPED_FIRST if title in titles],
        right=[number for number, column in enumerate(columns) if column.right],
    )
    lines: list[Line] = [[(f"  {texts[0]}", "title")]]
    ids = [""]
    for job, text in zip(jobs, texts[1:], strict=True):
        chosen = job.id == selected
        style = "selected" if chosen else _style(job)
        lines.append([("› " if chosen else "  ", style), (text.ljust(width - 2) if chosen else text, style)])
        ids.append(job.id)
        if below and (reason := waits_for(job)):
            lines.append([(cut(f"{_BELOW}{reason}", width), "dim")])
            ids.append(job.id)
    return JobRows(lines, ids)


def _tells(column: Column, jobs: Sequence[JobState]) -> bool:
    """A column of dashes is left out, but for the first ones, which are always there."""
    return column.title not in _DROPPED_FIRST or any(column.cell(job) != "–" for job in jobs)


def _style(job: JobState) -> str:
    if job.state == UNMANAGED or not job.mine:
        return "dim"
    if job.full_in is not None and job.full_in.low < 900:  # as the guard warns
        return "bad"
    return "" if job.state == "running" else "warn"


def waits_for(job: JobState) -> str:
    if job.state == WAITING:
        return f"waits: {'; '.join(job.reasons) or 'for memory'}"
    if job.paused_by or job.state == PAUSED:
        return paused_text(job)
    return (
        "unguarded: its oomproof was killed; guard it again: oomproof watch " + job.id
        if job.state == "unguarded"
        else ""
    )


def paused_text(job: JobState) -> str:
    why = f" ({job.reasons[0]})" if job.reasons and job.paused_by == "guard" else ""
    if job.paused_by == "guard":
        until = (
            time.strftime("%H:%M:%S", time.localtime(job.paused_until))
            if job.paused_until
            else "there is memory"
        )
        return f"paused by the guard until {until} at the latest{why}"
    card = ", its GPU memory given back" if job.gpu_given_back else ""
    return f"paused by you{card}; it stays so until you resume it"
