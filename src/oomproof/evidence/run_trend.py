"""The trend of one run's memory over hours: what it holds after loading, in seconds, steps and visits of a phase."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, floor, inf, isfinite
from pathlib import Path

from oomproof.evidence.heap_growth import (
    HeapGrowth,
    growing_phase,
    grown_mappings,
    growth_per_step,
    heap_growth,
    newest_trace,
    not_a_leak,
    steps_between,
    warm_since,
)
from oomproof.evidence.planned_end import PlannedEnd, planned_end
from oomproof.recording.phase_spans import spans_of
from oomproof.recording.samples import Samples
from oomproof.recording.series import HostRow, JobRow, PhaseMark, Series
from oomproof.recording.spill_record import pinned_at
from oomproof.recording.traced_lines import Trace
from oomproof.records import dataclass, replace
from oomproof.trend.leaks import GROWING, GROWS, STEPS, UNKNOWN, Range, Trend, slice_points, trend_of

_SLICES = 720
_LATELY = 60.0  # seconds: how old the newest row of the machine may be
_MOSTLY = 0.6  # of the growth: then it is the workers'
_OWN = 0.3  # of the growth: less was not the training's
_VISITS = 5  # of a phase, before its cycle is a period
_FEW_VISITS = 3  # ... before its growth is told by the visit
_LEAST, _LEAST_SHARE = 16 << 20, 0.05  # a rise of less, or of less of what is held, may be anything
_FAREWELL, _FAREWELL_SHARE = 3.0, 0.05  # seconds, and share of all, that a script may take to end
_ONE_EPOCH = 0.02  # of its steps: then a cycle is an epoch


@dataclass(frozen=True, slots=True)
class Cycle:
    """What comes back: a phase, or the epoch that it comes once in."""

    name: str
    phase: str
    seconds: float  # from one visit to the next
    visits: int  # since the growth began


@dataclass(frozen=True, slots=True)
class RunTrend:
    trend: Trend
    limit: float | None
    limit_from: str  # "its limit", "what the machine had left", "--limit"
    end: float  # seconds since boot: the last sample
    seen: float  # seconds of samples behind it
    phase: str  # in which nearly all of it grew; empty: in several, or none was told
    bytes_per_step: float | None
    seconds_per_step: float | None
    cycle: Cycle | None  # whose visits it is told by
    heap: HeapGrowth | None = None  # what kind of memory it is, where the agent told
    workers: tuple[int, int] | None = None  # how many, and what they grew by, where most of it is theirs
    ends: PlannedEnd | None = None  # when it ends by itself, where that is known
    files: int = 0  # bytes of files it mapped or read, which the kernel takes back: no part of the trend
    files_grown: int = 0
    trace: Trace | None = None  # the lines that allocated it, where a tracer looked
    proof: str = ""  # that it is no leak: what malloc_trim gave back
    mappings: str = ""  # a kind of mapping that became more

    @property
    def full_in_steps(self) -> Range | None:
        return counted_in(self.trend.full_in, self.seconds_per_step)

    @property
    def full_in_cycles(self) -> Range | None:
        return counted_in(self.trend.full_in, self.cycle.seconds if self.cycle else None)

    @property
    def is_full_first(self) -> bool | None:
        """Whether memory may be full before it ends by itself, by the early bound; None: its end is not known."""
        if self.ends is None or self.ends.seconds is None:
            return None
        return self.trend.full_in is not None and self.trend.full_in.low < self.ends.seconds


def counted_in(full: Range | None, seconds_each: float | None) -> Range | None:
    if full is None or not seconds_each:
        return None
    low, expected = floor(full.low / seconds_each), full.expected / seconds_each
    return Range(low, expected, ceil(full.high / seconds_each) if isfinite(full.high) else inf)


def run_trend(series: Series, limit: int | None = None, outputs: Sequence[Path] = ()) -> RunTrend | None:
    """None where the run has no samples after loading. ``outputs``: what it printed, for its progress bar."""
    use, marks = series.use, series.phase_marks()
    begin = max(warm_since(marks), pinned_at(series))
    if not use or begin >= use.end:
        return None
    begin = max(begin, use.begin)
    level, level_from = (float(limit), "--limit") if limit is not None else _capacity(series)
    starts = _visits(series, begin)
    trend = trend_of(slices(use, begin), level, _period(starts))
    if trend.kind == UNKNOWN and trend.since is None and starts:
        trend = _risen(use, begin, trend)
    ends = planned_end(series, marks, use.end, outputs)
    phase, cycle, heap, workers = "", None, None, None
    per_step = growth_per_step(trend, marks, use.end)
    if trend.since is not None:
        phase = growing_phase(series, marks, trend.since, use.end)
    if trend.kind in GROWS and trend.since is not None and trend.rate is not None:
        workers = _in_workers(series, trend.since, use.end, trend.grown)
        heap = heap_growth(series, begin, use.end) if workers is None else None  # that is the training's own
        if heap is not None and heap.grown < _OWN * trend.grown:  # it is another process that grew
            heap = None
    if trend.since is not None:
        cycle = _cycle(starts, trend, phase, marks, ends)
        if cycle is not None and cycle.phase == phase and trend.kind == GROWING:
            trend = replace(trend, kind=STEPS)
    files, files_grown = _files(series, begin, use.end)
    return RunTrend(
        trend, level, level_from, use.end, use.end - begin, phase, *per_step, cycle, heap, workers, ends, files,
        files_grown, newest_trace(series, begin), not_a_leak(series), grown_mappings(series),
    )  # fmt: skip


def _risen(use: Samples, begin: float, trend: Trend) -> Trend:
    """Of a few visits nobody knows how it continues; by how much it has risen since the first is worth a word."""
    quarter = (use.end - begin) / 4
    first, last = use.between(begin, begin + quarter), use.between(use.end - quarter, use.end)
    rise = last[0] - first[0] if first is not None and last is not None else 0.0
    return replace(trend, since=begin, grown=rise) if rise > max(_LEAST, _LEAST_SHARE * trend.held) else trend


def _in_workers(series: Series, begin: float, end: float, grown: float) -> tuple[int, int] | None:
    """Loaders and other children, which may be started anew for each epoch: all that they hold together."""
    soon = begin + min(_LATELY, (end - begin) / 4)
    before, after = (
        [row for row in series.living(at - _LATELY, at) if row.role == "worker"] for at in (soon, end)
    )
    if not before or not after:
        return None
    rise = sum(row.use for row in after) - sum(row.use for row in before)
    # a process is written down when it changed, or each half minute: the job's growth in that time is what it compares with
    use, first, last = series.use, max(row.t for row in before), max(row.t for row in after)
    meanwhile = min(grown, use.at(last) - use.at(first))
    return (len(after), rise) if rise >= _MOSTLY * meanwhile > 0 else None


def _files(series: Series, begin: float, end: float) -> tuple[int, int]:
    """Bytes of files in the page cache that are the job's: at the end, and by how much more than at the beginning."""
    before = [
        row.file for row in series.between(JobRow, begin, min(begin + _LATELY, end)) if row.file is not None
    ]
    after = [row.file for row in series.newest(JobRow, _LATELY) if row.file is not None]
    return (after[-1], after[-1] - before[0]) if before and after else (0, 0)


def _capacity(series: Series) -> tuple[float | None, str]:
    """What it can hold at most, as its last samples tell: up to its limit, or all that the machine had left."""
    jobs, hosts = series.newest(JobRow, _LATELY), series.newest(HostRow, _LATELY)
    if not jobs:
        return None, ""
    use, headroom = jobs[-1].use, jobs[-1].headroom
    free = hosts[-1].mem_available if hosts else None
    if headroom is not None and (free is None or headroom <= free):
        return float(use + headroom), "its limit"
    return (float(use + free), "what the machine had left") if free is not None else (None, "")


def slices(use: Samples, begin: float) -> list[tuple[float, float]]:
    """The lowest and the highest of each slice: a day's recording has millions of rows."""
    width = (use.end - begin) / _SLICES
    samples = []
    for number in range(_SLICES):
        at = begin + number * width
        if width > 0 and (found := use.between(at, at + width)) is not None:
            samples += slice_points(at, width, *found)
    return _without_farewell(samples)


def _without_farewell(samples: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without the very end, where it holds less than half: a script that is over gives back what it kept, and takes a moment
    to end."""
    if not samples:
        return samples
    highest, end = max(value for _, value in samples), samples[-1][0]
    longest = max(_FAREWELL, _FAREWELL_SHARE * (end - samples[0][0]))
    last = len(samples)
    while last > 1 and samples[last - 1][1] < highest / 2:
        last -= 1
    return samples[:last] if end - samples[last - 1][0] <= longest else samples


def _visits(series: Series, begin: float) -> dict[str, list[float]]:
    """When each phase but training was entered. Entered again without a step between, it is the same visit."""
    starts: dict[str, list[float]] = {}
    steps: dict[str, int] = {}
    for span in spans_of(series):
        if span.begin < begin or span.name in ("train", "load", "unknown"):
            continue
        is_same = span.first_step is not None and steps.get(span.name) == span.first_step
        if span.first_step is not None:
            steps[span.name] = span.first_step
        if not is_same:
            starts.setdefault(span.name, []).append(span.begin)
    return starts


def _gap(starts: Sequence[float]) -> float:
    """Seconds from one visit to the next: the median."""
    return sorted(later - earlier for earlier, later in pairwise(starts))[(len(starts) - 1) // 2]


def _period(starts: dict[str, list[float]]) -> float | None:
    """Between two visits of a phase; of several phases, of the rarest."""
    return max((_gap(at) for at in starts.values() if len(at) >= _VISITS), default=None)


def _cycle(
    starts: dict[str, list[float]],
    trend: Trend,
    phase: str,
    marks: Sequence[PhaseMark],
    ends: PlannedEnd | None,
) -> Cycle | None:
    """The phase that keeps memory, where it was visited often enough; else the one whose visits are the period."""
    own = starts.get(phase, [])
    since = trend.since or 0.0
    least = 2 if trend.kind == UNKNOWN else _FEW_VISITS
    name = phase if len(own) >= least else next(
        (name for name, at in starts.items() if len(at) >= _VISITS and _gap(at) == trend.period), ""
    )  # fmt: skip
    at = starts.get(name, [])
    if not name or len(at) < 2:
        return None
    seconds = _gap(at)
    visits = sum(begin >= since - seconds / 2 for begin in at)
    between = sorted(steps_between(marks, *pair) for pair in pairwise(at[-20:]))
    epoch_steps = ends.epoch_steps if ends is not None else None
    is_epoch = epoch_steps is not None and abs(between[len(between) // 2] - epoch_steps) <= max(
        1, _ONE_EPOCH * epoch_steps
    )
    return Cycle("epoch" if is_epoch else name, name, seconds, visits)
