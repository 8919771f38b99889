"""`oomproof trend` in words and as JSON."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any

from oomproof.diagnosis.verdict import plain
from oomproof.evidence.growing_line import container_text, growing_line
from oomproof.evidence.heap_growth import ARROW, MAPPED, NATIVE, PYTHON, RETAINED, HeapGrowth
from oomproof.evidence.run_trend import RunTrend
from oomproof.evidence.witnesses import places
from oomproof.recording.traced_lines import trace_text
from oomproof.records import dataclass
from oomproof.trend.leaks import FLAT, GROWING, SLOWING, Range, Trend
from oomproof.units import format_duration, format_exact, format_rate, format_size, format_time

_BREATHES = 1.05  # times its lowest: what repeats itself in less is of no interest
_SENTENCES = {
    FLAT: "flat: what it holds comes and goes, and does not grow",
    GROWING: "growing: a leak, or a cache without bound",
    SLOWING: "slowing down: it may level off, or leak slowly",
}


_KINDS = {
    PYTHON: "Python objects ({objects} more): a list, dict or cache that is never emptied",
    NATIVE: "arrays, tensors or native code (malloc): kept results, losses with their graph, activations",
    RETAINED: "nothing of it is in use: the C library keeps what was freed. MALLOC_ARENA_MAX=2 or jemalloc gives it back",
    ARROW: "Arrow's memory pool: tables that are still referenced, or kept for reuse",
    MAPPED: "memory that a library mapped by itself, beside malloc and Python",
}


_WORKERS = (
    "their dataset keeps what it reads, or Python objects they inherited are copied as they are read (then: NumPy or Arrow "
    "arrays in place of lists and dicts)"
)


def heap_text(heap: HeapGrowth) -> str:
    """What kind of memory it is, and how sure that is: the share of the growth."""
    if not heap.kind:
        parts = sorted(((size, kind) for kind, size in heap.by_kind.items() if size > 0), reverse=True)
        return "of several kinds: " + ", ".join(f"{kind} {format_exact(size)}" for size, kind in parts[:3])
    share = min(1.0, heap.by_kind[heap.kind] / heap.grown)
    return f"{_KINDS[heap.kind].format(objects=f'{heap.objects:,}')} ({share:.0%} of the growth)"


def full_text(full: Range, end_wall: float | None) -> str:
    """``in 2 h 10 to 2 h 40 (14:20 to 14:50)``."""
    low, high = format_duration(full.low), format_duration(full.high)
    if not isfinite(full.high):
        text = f"in {low} at the earliest"
    else:
        text = f"in {low} to {high}" if low != high else f"in {low}"
    if end_wall is None or not isfinite(full.high) or full.high > 1e7:
        return text
    days = full.high > 43200
    begin, end = (format_time(end_wall + seconds, date=days, zone=False) for seconds in (full.low, full.high))
    return f"{text} ({begin} to {end})" if begin != end else f"{text} ({begin})"


@dataclass(frozen=True, slots=True)
class Answer:
    trend: Trend
    limit: float | None
    limit_from: str
    seen: float  # seconds of samples behind it
    end_wall: float | None  # when its last sample was; None: its times are no time of day
    of_run: RunTrend | None = None
    is_over: bool = False
    started: float = inf  # when the run began, seconds since 1970


def trend_lines(name: str, answer: Answer) -> list[str]:
    trend, of_run = answer.trend, answer.of_run
    sentence = _SENTENCES.get(trend.kind) or _too_short(trend, answer.seen, of_run is not None)
    only_kept = bool(of_run and of_run.heap and of_run.heap.kind == RETAINED and of_run.proof)
    if only_kept:
        sentence = "growing, but no leak: the C library keeps what was freed"
    lines = [f"{name}: {sentence}"]
    grows = trend.kind in (GROWING, SLOWING) and trend.rate is not None
    if grows and trend.rate is not None and trend.since is not None:
        parts = [f"+{format_rate(trend.rate.expected)}"]
        if of_run is not None and of_run.bytes_per_step is not None:
            parts.append(f"+{format_exact(of_run.bytes_per_step)} a step")
        if of_run is not None and of_run.cycle and trend.period:
            parts.append(
                f"+{format_exact(trend.rate.expected * trend.period)} from one {of_run.cycle} to the next"
            )
        if of_run is not None and of_run.phase:
            parts.append(f"in {of_run.phase}")
        lines.append(f"  grows    {', '.join(parts)}; {format_size(trend.grown)} so far")
    if of_run is not None and of_run.workers is not None:
        count, rise = of_run.workers
        lines.append(f"  who      its {count} workers, +{format_exact(rise)}: {_WORKERS}")
    if of_run is not None and of_run.heap is not None:
        lines.append(f"  kind     {heap_text(of_run.heap)}")
        for container in of_run.heap.containers if not only_kept else ():
            lines.append(f"  kept in  {container_text(container, growing_line(container, answer.started))}")
    if of_run is not None and of_run.trace is not None:
        lines.append(f"  made at  {trace_text(of_run.trace, answer.started)} ({of_run.trace.witness})")
    if of_run is not None and of_run.mappings:
        lines.append(f"  mapped   {of_run.mappings}")
    if of_run is not None and of_run.proof:
        lines.append(f"  proof    {of_run.proof}")
    if trend.top:
        between = format_size(trend.held)
        lines.append(
            f"  holds    {between}"
            + (f" to {format_size(trend.top)}" if format_size(trend.top) != between else "")
        )
    if trend.kind == SLOWING and trend.plateau is not None:
        lines.append(f"  levels   off at about {format_size(trend.plateau)}, if it continues to slow down")
    if grows and answer.limit is not None:
        lines.append(f"  full     {_full(answer, answer.limit)}")
    elif grows:
        lines.append("  full     give --limit SIZE for the time to full")
    if trend.period and trend.top > trend.held * _BREATHES and not (of_run and of_run.cycle):
        lines.append(f"  repeats  itself every {format_duration(trend.period)}: the lowest of each counts")
    return lines


def _too_short(trend: Trend, seen: float, is_run: bool) -> str:
    if trend.since is not None:
        return f"too short to tell: it rose by {format_size(trend.grown)} lately, at once or in a few steps"
    return f"too short to tell: {format_duration(seen)}" + (" after loading" if is_run else "")


def _full(answer: Answer, limit: float) -> str:
    trend, limit_from = answer.trend, answer.limit_from
    at = f"{format_size(limit)}" + (f" ({limit_from})" if limit_from and limit_from != "--limit" else "")
    if trend.full_in is None:
        return f"{at} is not reached by this"
    if trend.top >= limit:
        return f"it is above {at} already"
    if trend.kind == SLOWING:
        return f"{at}, if it does not level off: {full_text(trend.full_in, None if answer.is_over else answer.end_wall)}"
    text = full_text(trend.full_in, answer.end_wall)
    return f"{at} {'would have been reached ' if answer.is_over else ''}{text}, 4 times in 5"


def trend_json(answer: Answer) -> dict[str, Any]:
    trend, of_run = answer.trend, answer.of_run
    workers = of_run.workers if of_run else None
    return {
        "schema": 1,
        "kind": trend.kind,
        "bytes_per_second": trend.rate.expected if trend.rate else None,
        "bytes_per_second_range": _range(trend.rate),
        "full_in_seconds": _range(trend.full_in),
        "plateau_bytes": _whole(trend.plateau),
        "held_bytes": _whole(trend.held),
        "top_bytes": _whole(trend.top),
        "grown_bytes": _whole(trend.grown),
        "period_seconds": trend.period,
        "limit_bytes": _whole(answer.limit),
        "limit_from": answer.limit_from or None,
        "seen_seconds": answer.seen,
        "last_sample": answer.end_wall,
        "phase": (of_run.phase or None) if of_run else None,
        "bytes_per_step": of_run.bytes_per_step if of_run else None,
        "seconds_per_step": of_run.seconds_per_step if of_run else None,
        "workers": {"count": workers[0], "grown_bytes": workers[1]} if workers else None,
        "heap": _heap_json(of_run.heap) if of_run and of_run.heap else None,
        "where": [plain(place) for place in places(of_run.trace)] if of_run and of_run.trace else [],
        "mappings": (of_run.mappings or None) if of_run else None,
        "not_a_leak": (of_run.proof or None) if of_run else None,
    }


def _heap_json(heap: HeapGrowth) -> dict[str, Any]:
    return {
        "kind": heap.kind or None,
        "grown_bytes": heap.grown,
        "by_kind": heap.by_kind,
        "objects": heap.objects,
        "containers": [plain(container) for container in heap.containers],
    }


def _range(of: Range | None) -> dict[str, float | None] | None:
    if of is None:
        return None
    return {
        name: value if isfinite(value) else None
        for name, value in (("low", of.low), ("expected", of.expected), ("high", of.high))
    }


def _whole(size: float | None) -> int | None:
    return round(size) if size is not None and isfinite(size) else None
