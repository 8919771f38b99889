"""How memory grew before the end, from a recording: the job as a whole, which of its processes, who else. Facts only."""

from __future__ import annotations

import os

from oomproof.evidence.case_file import Growth, OtherJob, ProcessGrowth
from oomproof.evidence.heap_growth import PYTHON, HeapGrowth, steps_between, traced_growth
from oomproof.evidence.run_trend import run_trend
from oomproof.recording.series import HostRow, JobRow, OtherJobRow, ProcessRow, Series
from oomproof.trend.leaks import GROWS, SLOWING, STEPS

# growth below this, or this share of what was held, is not what filled memory
_LEAST, _LEAST_SHARE = 16 << 20, 0.05
# over so many steps, or seconds of a job that tells none: a shorter line may be loading
_STEPS, _SECONDS = 8, 8.0
_STILL = 1 / 3  # of its mean rate: what grows slower at the end has levelled off
_LATELY = 60.0  # seconds before the end in which processes are compared
# ... and the highest of one that grew to the end is not older: processes are sampled every 4 s
_AT_THE_END = 8.0
_LAST = 12.0  # seconds before the end in which most of the job's growth must be that process's: three samples
_OTHERS = 180.0  # ... and other jobs, which are looked at once a minute while all is calm
_TICKS = os.sysconf("SC_CLK_TCK")


def job_growth(series: Series, wall_offset: float = 0.0) -> Growth | None:
    """Growth that went on to the end, after loading and the first steps, as `oomproof trend` tells it; None where it levelled
    off or was too short to tell: such a job is simply large."""
    of_run = run_trend(series)
    if of_run is None or of_run.trend.kind not in GROWS:
        return None
    trend = of_run.trend
    if trend.rate is None or trend.since is None:
        return None
    seconds, after = of_run.end - trend.since, int(trend.held)
    if trend.grown < max(_LEAST, after * _LEAST_SHARE) or seconds <= 0:
        return None
    if trend.kind == SLOWING and trend.rate.expected < _STILL * trend.grown / seconds:
        return None
    steps = steps_between(series.phase_marks(), trend.since, of_run.end)
    if steps < _STEPS and (steps or seconds < _SECONDS):
        return None
    started = series.use.begin + wall_offset
    workers, workers_bytes = of_run.workers or (0, 0)
    return Growth(
        kind=trend.kind,
        phase=of_run.phase,
        bytes_per_second=trend.rate.expected,
        bytes_per_step=of_run.bytes_per_step,
        steps=steps or None,
        seconds=seconds,
        from_bytes=after - int(trend.grown),
        to_bytes=after,
        kept_in=_kept_in(of_run.heap, started),
        cycle=of_run.cycle.name if of_run.cycle is not None and trend.kind == STEPS else "",
        bytes_per_cycle=trend.rate.expected * of_run.cycle.seconds
        if of_run.cycle is not None and trend.kind == STEPS
        else None,
        workers=workers,
        workers_bytes=workers_bytes,
        **traced_growth(of_run.trace, of_run.proof, started),
    )


def _kept_in(heap: HeapGrowth | None, started: float) -> str:
    if heap is None or not heap.containers:
        return ""
    from oomproof.evidence.heap_growth import container_text, growing_line  # brings ast along

    container = heap.containers[0]
    # a list of notes grows with each step too, and is not what fills memory
    if not container.is_large and heap.kind != PYTHON:
        return ""
    return container_text(container, growing_line(container, started))


def grown_processes(series: Series) -> tuple[ProcessGrowth, ...]:
    """Processes of the job that grew to its end, most first: from their lowest of the last minute to their highest. None
    where most of what the job grew by in its last seconds came after they were looked at, or was another's."""
    end = series.end()
    rows: dict[int, list[ProcessRow]] = {}
    for row in series.newest(ProcessRow, _LATELY):
        rows.setdefault(row.pid, []).append(row)
    grown = []
    for pid, seen in rows.items():
        highest = max(seen, key=lambda row: row.use)
        lowest = min((row for row in seen if row.t <= highest.t), key=lambda row: row.use)
        late = end is None or end - highest.t <= _AT_THE_END
        still = _grows_still(seen, lowest, highest)
        if highest.use - lowest.use >= _LEAST and late and still and _is_most(series, seen, highest):
            after, until = _alone(series, highest) if len(rows) == 1 else (highest.use, highest.t)
            grown.append(
                ProcessGrowth(
                    pid, highest.name or "", highest.role or "", lowest.use, after, until - lowest.t
                )
            )
    return tuple(sorted(grown, key=lambda process: process.before - process.after))


def _alone(series: Series, highest: ProcessRow) -> tuple[int, float]:
    """(bytes, when) of the only process: what the job held is what it held, and the job was looked at more often."""
    end, jobs = series.end(), series.newest(JobRow, _LATELY)
    last = jobs[-1] if jobs else None
    if end is None or last is None or last.processes != 1 or last.t <= highest.t or last.use <= highest.use:
        return highest.use, highest.t
    return last.use, last.t


def _grows_still(seen: list[ProcessRow], lowest: ProcessRow, highest: ProcessRow) -> bool:
    """At its end not much slower than on the whole: one that loaded half a minute ago breathes a little ever since."""
    before = next((row for row in reversed(seen) if row.t <= highest.t - _LAST), None)
    if before is None or before.t <= lowest.t:
        return True
    mean = (highest.use - lowest.use) / (highest.t - lowest.t)
    return (highest.use - before.use) / (highest.t - before.t) >= _STILL * mean


def _is_most(series: Series, seen: list[ProcessRow], highest: ProcessRow) -> bool:
    """Whether its growth is most of the job's in the last seconds, as far as it was seen."""
    end, use = series.end(), series.use
    if end is None or not use:
        return True
    begin = max(end - _LAST, use.begin)
    found = use.between(begin, end)
    most = found[1] if found is not None else use.at(end)
    before = next((row for row in reversed(seen) if row.t <= begin), seen[0])
    grew = highest.use - before.use
    unseen = most - use.at(highest.t)  # by whom, nobody knows
    return grew > 0 and 2 * grew >= most - use.at(begin) and 2 * unseen <= grew


def other_jobs(series: Series, until: float | None) -> tuple[OtherJob, ...]:
    """The largest other jobs as last seen before the end, with what they grew by since they were first seen lately."""
    rows: dict[tuple[int, int | None], list[OtherJobRow]] = {}
    for row in series.newest(OtherJobRow, _OTHERS):
        if until is None or until - row.t <= _OTHERS:
            rows.setdefault((row.pid, row.start), []).append(row)
    found = []
    for (pid, start), seen in rows.items():
        first, last = seen[0], seen[-1]
        begin, before = first.t, first.use
        # it began a moment before: with nothing
        if start is not None and first.t - start / _TICKS <= _LATELY:
            begin, before = start / _TICKS, 0
        job_grew, taken = _meanwhile(series, begin)
        found.append(
            OtherJob(
                pid,
                last.name or "?",
                last.uid,
                bool(last.managed),
                last.use,
                last.swap or 0,
                max(0, last.use - before),
                max(0.0, last.t - begin),
                last.t,
                job_grew,
                taken,
            )
        )
    return tuple(sorted(found, key=lambda job: -job.held))


def _meanwhile(series: Series, begin: float) -> tuple[int, int | None]:
    """From then to the end: by how much the job itself grew, and how much memory the machine lost."""
    use, end = series.use, series.end()
    if end is None:
        return 0, None
    held = use.between(begin, end) if use else None
    grew = int(held[1] - use.at(begin)) if held is not None else 0
    left = [
        row.mem_available + (row.swap_free or 0)
        for row in series.between(HostRow, begin, end + 1.0)
        if row.mem_available is not None
    ]
    return max(0, grew), left[0] - min(left) if left else None
