"""`oomproof trend` in words."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any

from oomproof.diagnosis.verdict import plain
from oomproof.evidence.gpu_trend import ALLOCATED, OUTSIDE, RESERVED, USED, GpuTrend, gpu_trends
from oomproof.evidence.heap_growth import (
    ARROW,
    MAPPED,
    NATIVE,
    PYTHON,
    RETAINED,
    HeapGrowth,
    container_text,
    growing_line,
    places,
)
from oomproof.evidence.run_trend import RunTrend, counted_in, run_trend
from oomproof.recording.run_folders import ALIVE, Run
from oomproof.recording.traced_lines import trace_text
from oomproof.records import dataclass
from oomproof.trend.leaks import FLAT, GROWING, GROWS, SLOWING, STEPS, Range, Trend
from oomproof.units import format_duration, format_exact, format_rate, format_size, format_time

_FILES = 64 << 20  # bytes of page cache that a reader of `top` may take for growth
_WITHOUT_STEPS = 60.0  # seconds: a script that tells no steps and grows for less only loads
_BREATHES = 1.05  # times its lowest: what repeats itself in less is of no interest
_SENTENCES = {
    FLAT: "flat: what it holds comes and goes, and does not grow",
    GROWING: "growing: a leak, or a cache without bound",
    SLOWING: "slowing down: it may level off, or leak slowly",
    STEPS: "growing in steps: each {phase} keeps something, a leak or a cache without bound",
}
_MANY = 1000  # steps: a forecast of more has three digits that mean something


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


def full_text(
    full: Range,
    end_wall: float | None,
    of_run: RunTrend | None = None,
    seconds_per_step: float | None = None,
) -> str:
    """``in 9 to 11 epochs, 3,100 to 3,400 steps, 45 min to 55 min (14:20:10 to 15:05:00)``."""
    low, high = format_duration(full.low), format_duration(full.high)
    counted = []
    if of_run is not None and of_run.trend.kind == STEPS and of_run.cycle is not None:
        counted.append(count_text(of_run.full_in_cycles, of_run.cycle.name))
    seconds_per_step = of_run.seconds_per_step if of_run is not None else seconds_per_step
    if (steps := counted_in(full, seconds_per_step)) is not None:
        counted.append(count_text(steps, "step"))
    text = f"in {', '.join([*counted, _from_to(low, high, isfinite(full.high))])}"
    if end_wall is None or not isfinite(full.high) or full.high > 1e7:
        return text
    days = full.high > 43200
    begin, end = (format_time(end_wall + seconds, date=days, zone=False) for seconds in (full.low, full.high))
    return f"{text} ({begin} to {end})" if begin != end else f"{text} ({begin})"


def _from_to(low: str, high: str, is_known: bool) -> str:
    if not is_known:
        return f"{low} at the earliest"
    return f"{low} to {high}" if low != high else low


def count_text(count: Range | None, name: str) -> str:
    """``9 to 11 epochs``, ``3,100 to 3,410 steps``."""
    if count is None:
        return ""

    def rounded(number: float) -> str:
        digits = 10 ** max(0, len(str(int(number))) - 3) if isfinite(number) and number >= _MANY else 1
        return f"{round(number / digits) * digits:,}" if isfinite(number) else ""

    plural = "" if count.high == 1 else "s"
    return f"{_from_to(rounded(count.low), rounded(count.high), isfinite(count.high))} {name}{plural}"


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
    gpus: tuple[GpuTrend, ...] = ()
    run_limit: int | None = None  # as it was given or made; ``limit`` is what of it the job itself can hold


def answer_of(run: Run, limit: int | None = None, gpu_limit: int | None = None) -> Answer | None:
    """None where the run has no samples after loading."""
    recording = run.attempt.recording()
    with recording.series() as series:
        of_run = run_trend(series, limit, run.attempt.outputs)
        gpus = gpu_trends(series, gpu_limit) if of_run is not None else []
    if of_run is None:
        return None
    end_wall = of_run.end + recording.wall_offset
    is_over = run.state() not in ALIVE
    facts = (of_run.trend, of_run.limit, of_run.limit_from, of_run.seen, end_wall)
    return Answer(*facts, of_run, is_over, run.place[0], tuple(gpus), run.limit)


def trend_lines(name: str, answer: Answer) -> list[str]:
    trend, of_run = answer.trend, answer.of_run
    sentence = _SENTENCES.get(trend.kind) or _too_short(trend, answer.seen, of_run)
    only_kept = bool(of_run and of_run.heap and of_run.heap.kind == RETAINED and of_run.proof)
    if only_kept:
        sentence = "growing, but no leak: the C library keeps what was freed"
    lines = [f"{name}: {sentence.format(phase=of_run.phase if of_run else '')}"]
    grows = trend.kind in GROWS and trend.rate is not None
    if grows and trend.rate is not None and trend.since is not None:
        lines.append(f"  grows    {growth_rate(trend, of_run)}; {format_size(trend.grown)} so far")
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
    if grows and of_run is not None and not answer.is_over:
        lines.append(f"  ends     {_end(of_run)}")
    if trend.period and trend.top > trend.held * _BREATHES and not (of_run and of_run.cycle):
        lines.append(f"  repeats  itself every {format_duration(trend.period)}: the lowest of each counts")
    lines += gpu_lines(answer)
    if of_run is not None and of_run.files_grown > max(trend.grown, _FILES):
        lines.append(
            f"  files    {format_size(of_run.files)} that it mapped or read, {format_size(of_run.files_grown)} more than at first: "
            "no growth, the kernel takes them back"
        )
    return lines


_ON_CARD = {
    ALLOCATED: "growing: tensors that are kept on the card",
    RESERVED: "fragmentation: PyTorch reserves ever more, and tensors use no more of it. "
    "expandable_segments:True in PYTORCH_ALLOC_CONF (before PyTorch 2.11: PYTORCH_CUDA_ALLOC_CONF) helps, and so do fewer lengths",
    OUTSIDE: "growing beside PyTorch: buffers of another library in this process",
    USED: "growing: a leak, or a cache without bound (all that the process holds, as the driver counts it)",
}


def gpu_lines(answer: Answer) -> list[str]:
    """A line for each card, and more for one that fills."""
    lines = []
    for card in answer.gpus:
        trend = card.trend
        name = f"GPU {card.device}"
        holds = format_size(trend.held)
        if card.allocated is not None and card.reserved is not None:
            holds = f"{format_size(card.allocated)} in tensors, {format_size(card.reserved)} reserved"
        if trend.kind not in GROWS or trend.rate is None:
            lines.append(f"{name}: {trend.kind}, {holds}")
            continue
        sentence = _SENTENCES[SLOWING] if trend.kind == SLOWING else _ON_CARD[card.what]
        per_step = f", +{format_exact(card.bytes_per_step)} a step" if card.bytes_per_step is not None else ""
        lines.append(f"{name}: {sentence}")
        lines.append(
            f"  grows    +{format_rate(trend.rate.expected)}{per_step}; {format_size(trend.grown)} so far"
        )
        lines.append(f"  holds    {holds}")
        if card.limit is not None and trend.full_in is not None:
            wall = answer.end_wall if not answer.is_over else None
            when = full_text(trend.full_in, wall, seconds_per_step=card.seconds_per_step)
            would = "would have been reached " if answer.is_over else ""
            lines.append(
                f"  full     {format_size(card.limit)} ({card.limit_from}) {would}{when}, 4 times in 5"
            )
    return lines


def trend_rows(run: Run) -> list[str]:
    """In one line each, where memory grows: of the host, and of each card."""
    answer = answer_of(run)
    if answer is None:
        return []
    rows = []
    has_steps = answer.of_run is not None and answer.of_run.bytes_per_step is not None
    long_enough = has_steps or answer.seen >= _WITHOUT_STEPS
    if answer.trend.kind in GROWS and answer.trend.rate is not None and long_enough:
        full = answer.trend.full_in
        when = (
            f"; full {full_text(full, answer.end_wall, answer.of_run)}" if full and not answer.is_over else ""
        )
        rows.append(f"{answer.trend.kind}, {growth_rate(answer.trend, answer.of_run)}{when}")
    for card in answer.gpus:
        if card.trend.kind in GROWS and card.trend.rate is not None:
            kind = "fragmentation" if card.is_fragmentation else card.trend.kind
            rows.append(f"GPU {card.device}: {kind}, +{format_rate(card.trend.rate.expected)}")
    return rows


def growth_rate(trend: Trend, of_run: RunTrend | None) -> str:
    """``+29 MiB/min, +1.0 MiB a step, in train``."""
    rate = trend.rate.expected if trend.rate is not None else 0.0
    parts = [f"+{format_rate(rate)}"]
    if of_run is None:
        return parts[0]
    if of_run.cycle is not None:
        size = format_exact(rate * of_run.cycle.seconds)
        if trend.kind == STEPS:
            return f"+{size} per {of_run.cycle.name} in {of_run.phase} ({parts[0]})"
        parts.append(f"+{size} from one {of_run.cycle.name} to the next")
    if of_run.bytes_per_step is not None:
        parts.insert(1, f"+{format_exact(of_run.bytes_per_step)} a step")
    return ", ".join([*parts, *([f"in {of_run.phase}"] if of_run.phase else [])])


def _end(of_run: RunTrend) -> str:
    """Beside the time to full: whether the run is over before."""
    ends = of_run.ends
    if ends is None:
        return "unknown: the total of its steps is not known"
    where = f"at step {ends.total:,} ({ends.step:,} made, as {ends.told_by} tells)"
    if ends.seconds is None:
        return where
    full = of_run.trend.full_in
    if full is None or full.low >= ends.seconds:
        said = "before memory is full"
    else:
        said = "memory is full before" if full.high <= ends.seconds else "memory may be full before"
    return f"in about {format_duration(ends.seconds)}, {where}: {said}"


def _too_short(trend: Trend, seen: float, of_run: RunTrend | None) -> str:
    if trend.since is not None:
        how = "at once or in a few steps"
        if (
            of_run is not None
            and of_run.phase
            and of_run.cycle is not None
            and of_run.cycle.phase == of_run.phase
        ):
            how = f"all in {of_run.phase}, which came {of_run.cycle.visits} times"
        return f"too short to tell: it rose by {format_size(trend.grown)} lately, {how}"
    return f"too short to tell: {format_duration(seen)}" + (" after loading" if of_run is not None else "")


def _full(answer: Answer, limit: float) -> str:
    trend, at = answer.trend, _capacity_text(answer, limit)
    if trend.full_in is None:
        return f"{at} is not reached by this"
    if trend.top >= limit:
        return f"it has reached {at} already"
    if trend.kind == SLOWING:
        return f"{at}, if it does not level off: {full_text(trend.full_in, None if answer.is_over else answer.end_wall)}"
    text = full_text(trend.full_in, answer.end_wall, answer.of_run)
    return f"{at} {'would have been reached ' if answer.is_over else ''}{text}, 4 times in 5"


def _capacity_text(answer: Answer, limit: float) -> str:
    """By the figure that the user knows it by: of a limit of 600 MiB the job itself can hold a little less."""
    if not answer.limit_from or answer.limit_from == "--limit":
        return format_size(limit)
    if answer.limit_from != "its limit" or answer.run_limit is None:
        return f"{format_size(limit)} ({answer.limit_from})"
    rest = max(0, answer.run_limit - round(limit))
    also = (
        f"; {format_size(rest)} of it not the job's own: page cache and the kernel's"
        if rest * 20 > limit
        else ""
    )
    return f"{format_size(answer.run_limit)} ({answer.limit_from}{also})"


def alert_text(answer: Answer) -> str | None:
    """What a run tells of its own growth while it lasts; None where there is none, or the run ends before memory is full."""
    trend, of_run = answer.trend, answer.of_run
    if (
        of_run is not None
        and trend.kind in (GROWING, STEPS)
        and trend.full_in is not None
        and of_run.is_full_first is not False
    ):
        since = format_duration(of_run.end - trend.since) if trend.since is not None else ""
        rate = growth_rate(trend, of_run).lstrip("+")
        if trend.kind == STEPS:
            rate = rate.split(" (")[0]
        ends = "" if of_run.ends is not None else "; when it ends by itself is unknown"
        return (
            f"memory has grown by {rate} for {since}: at this rate it is full "
            f"{full_text(trend.full_in, answer.end_wall, of_run)}{ends} (oomproof trend tells more)"
        )
    for card in answer.gpus:
        trend, ends_in = (
            card.trend,
            of_run.ends.seconds if of_run is not None and of_run.ends is not None else None,
        )
        if trend.kind != GROWING or trend.full_in is None or trend.rate is None:
            continue
        if ends_in is not None and trend.full_in.low >= ends_in:
            continue
        what = {ALLOCATED: "memory in tensors", RESERVED: "reserved memory, not what tensors use of it,"}.get(
            card.what, "memory"
        )
        when = full_text(trend.full_in, answer.end_wall, seconds_per_step=card.seconds_per_step)
        return (
            f"GPU {card.device}: {what} has grown by {format_rate(trend.rate.expected)}: at this rate it is full {when} "
            "(oomproof trend tells more)"
        )
    return None


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
        "last_sample_boottime": of_run.end if of_run else None,
        "phase": (of_run.phase or None) if of_run else None,
        **_counts_json(of_run),
        "bytes_per_step": of_run.bytes_per_step if of_run else None,
        "seconds_per_step": of_run.seconds_per_step if of_run else None,
        "workers": {"count": workers[0], "grown_bytes": workers[1]} if workers else None,
        "heap": _heap_json(of_run.heap) if of_run and of_run.heap else None,
        "where": [plain(place) for place in places(of_run.trace)] if of_run and of_run.trace else [],
        "mappings": (of_run.mappings or None) if of_run else None,
        "not_a_leak": (of_run.proof or None) if of_run else None,
        "gpus": [_gpu_json(card) for card in answer.gpus],
        "alert": alert_text(answer),
    }


def _gpu_json(card: GpuTrend) -> dict[str, Any]:
    trend = card.trend
    return {
        "index": card.device,
        "of": card.what,
        "kind": trend.kind,
        "fragmentation": card.is_fragmentation,
        "bytes_per_second": trend.rate.expected if trend.rate else None,
        "full_in_seconds": _range(trend.full_in),
        "limit_bytes": _whole(card.limit),
        "limit_from": card.limit_from,
        "held_bytes": _whole(trend.held),
        "grown_bytes": _whole(trend.grown),
        "allocated_bytes": _whole(card.allocated),
        "reserved_bytes": _whole(card.reserved),
        "bytes_per_step": card.bytes_per_step,
        "seen_seconds": card.seen,
    }


def _counts_json(of_run: RunTrend | None) -> dict[str, Any]:
    cycle, ends = (of_run.cycle, of_run.ends) if of_run else (None, None)
    rate = of_run.trend.rate if of_run else None
    return {
        "cycle": {"name": cycle.name, "phase": cycle.phase, "seconds": cycle.seconds} if cycle else None,
        "bytes_per_cycle": rate.expected * cycle.seconds if cycle and rate else None,
        "full_in_cycles": _range(of_run.full_in_cycles) if of_run else None,
        "full_in_steps": _range(of_run.full_in_steps) if of_run else None,
        "ends": {
            "step": ends.step,
            "total_steps": ends.total,
            "in_seconds": ends.seconds,
            "told_by": ends.told_by,
            "full_before": of_run.is_full_first if of_run else None,
        }
        if ends
        else None,
        "file_bytes": of_run.files if of_run else None,
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
