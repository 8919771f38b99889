"""The trend of one run's memory over hours: what it holds after loading, in seconds, steps and visits of a phase."""

from __future__ import annotations

from itertools import pairwise

from oomproof.evidence.heap_growth import HeapGrowth, heap_growth
from oomproof.evidence.memory_growth import growing_phase, steps_between, warm_since
from oomproof.evidence.witnesses import grown_mappings, newest_trace, not_a_leak
from oomproof.recording.phase_spans import spans_of
from oomproof.recording.series import HostRow, JobRow, Series
from oomproof.recording.traced_lines import Trace
from oomproof.records import dataclass
from oomproof.trend.leaks import GROWING, SLOWING, Trend, slice_points, trend_of

_SLICES = 720
_LATELY = 60.0  # seconds: how old the newest row of the machine may be
_MOSTLY = 0.6  # of the growth: then it is the workers'
_OWN = 0.3  # of the growth: less was not the training's
_VISITS = 5  # of a phase, before its cycle is a period


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
    cycle: str  # the phase whose visits are the period; empty: found in the series, or none
    heap: HeapGrowth | None = None  # what kind of memory it is, where the agent told
    workers: tuple[int, int] | None = None  # how many, and what they grew by, where most of it is theirs
    trace: Trace | None = None  # the lines that allocated it, where a tracer looked
    proof: str = ""  # that it is no leak: what malloc_trim gave back
    mappings: str = ""  # a kind of mapping that became more


def run_trend(series: Series, limit: int | None = None) -> RunTrend | None:
    """None where the run has no samples after loading."""
    use, marks = series.use, series.phase_marks()
    begin = warm_since(marks)
    if begin is None or not use or begin >= use.end:
        return None
    begin = max(begin, use.begin)
    level, level_from = (float(limit), "--limit") if limit is not None else _capacity(series)
    cycle, period = _cycle(series, begin)
    samples = _samples(series, begin)
    trend = trend_of(samples, level, period)
    steps = seconds = None
    phase, heap, workers = "", None, None
    if trend.kind in (GROWING, SLOWING) and trend.since is not None and trend.rate is not None:
        made = steps_between(marks, trend.since, use.end)
        if made > 1:
            seconds = (use.end - trend.since) / made
            steps = trend.rate.expected * seconds
        phase = growing_phase(series, marks, trend.since, use.end)
        workers = _in_workers(series, trend.since, use.end, trend.grown)
        heap = heap_growth(series, begin, use.end) if workers is None else None  # that is the training's own
        if heap is not None and heap.grown < _OWN * trend.grown:  # it is another process that grew
            heap = None
    return RunTrend(
        trend, level, level_from, use.end, use.end - begin, phase, steps, seconds, cycle, heap, workers,
        trace=newest_trace(series, begin), proof=not_a_leak(series), mappings=grown_mappings(series),
    )  # fmt: skip


def _in_workers(series: Series, begin: float, end: float, grown: float) -> tuple[int, int] | None:
    """Loaders and other children, which may be started anew for each epoch: all that they hold together."""
    soon = begin + min(
        _LATELY, (end - begin) / 4
    )  # a process is written down when it changed, or each half minute
    before, after = (
        [row for row in series.living(at - _LATELY, at) if row.role == "worker"] for at in (soon, end)
    )
    rise = sum(row.use for row in after) - sum(row.use for row in before)
    return (len(after), rise) if before and after and rise >= _MOSTLY * grown > 0 else None


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


def _samples(series: Series, begin: float) -> list[tuple[float, float]]:
    """The lowest and the highest of each slice: a day's recording has millions of rows."""
    use = series.use
    width = (use.end - begin) / _SLICES
    samples = []
    for number in range(_SLICES):
        at = begin + number * width
        if width > 0 and (found := use.between(at, at + width)) is not None:
            samples += slice_points(at, width, *found)
    return samples


def _cycle(series: Series, begin: float) -> tuple[str, float | None]:
    """The phase that comes back, and the seconds between two of its visits; of several, the rarest."""
    starts: dict[str, list[float]] = {}
    for span in spans_of(series):
        if span.begin >= begin and span.name not in ("train", "load", "unknown"):
            starts.setdefault(span.name, []).append(span.begin)
    cycles = {
        name: sorted(later - earlier for earlier, later in pairwise(at))[(len(at) - 1) // 2]
        for name, at in starts.items()
        if len(at) >= _VISITS
    }
    if not cycles:
        return "", None
    name = max(cycles, key=lambda name: cycles[name])
    return name, cycles[name]
