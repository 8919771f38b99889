"""How memory grew before the end, from a recording: the job as a whole, which of its processes, who else. Facts only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import pairwise

from oomproof.evidence.case_file import Growth, OtherJob, ProcessGrowth
from oomproof.evidence.heap_growth import PYTHON, heap_growth
from oomproof.evidence.witnesses import traced_growth
from oomproof.recording.phase_spans import spans_of
from oomproof.recording.series import HostRow, OtherJobRow, PhaseMark, ProcessRow, Series
from oomproof.trend import growth

_SLICES = 240  # of the time that is looked at: a day's recording has millions of rows
_TEARDOWN = 0.5  # of the peak: what is below at the end is a job that is being ended
_LEAST, _LEAST_SHARE = (
    16 << 20,
    0.05,
)  # growth below this, or this share of what was held, is not what filled memory
_STEPS, _SECONDS = (
    8,
    20.0,
)  # over so many steps, or seconds of a job that tells none: a shorter line may be loading
_STRAIGHT = 8.0  # ... or so many of a straight line: a batch loads in jumps
_OFF_THE_LINE = 0.15  # of all it grew: steps and pauses are within
_VISITS, _VISIT_SLICES = 200, 8  # visits of phases that are looked at, the last ones, and slices of each
_ONE_PHASE = 0.8  # of all growth: then it is that phase's
_LATELY = 60.0  # seconds before the end in which processes are compared
_AT_THE_END = (
    8.0  # ... and the highest of one that grew to the end is not older: processes are sampled every 4 s
)
_LAST = 12.0  # seconds before the end in which most of the job's growth must be that process's: three samples
_OTHERS = 180.0  # ... and other jobs, which are looked at once a minute while all is calm
_TICKS = os.sysconf("SC_CLK_TCK")


def job_growth(series: Series, wall_offset: float = 0.0) -> Growth | None:
    """Growth that went on to the end, after loading and the first steps; None where it levelled off or was too short to
    tell: such a job is simply large."""
    marks = series.phase_marks()
    points = _floors(series, warm_since(marks))
    rate = growth.lasting_rate(points)
    if rate is None:
        return None
    end, after = max(points, key=lambda point: point[1])
    begin, before = _on_the_line(points, rate, end, after)
    grown = after - before
    if grown < max(_LEAST, after * _LEAST_SHARE) or end <= begin:
        return None
    steps = steps_between(marks, begin, end)
    line = [point for point in points if begin <= point[0] <= end]
    least = _STRAIGHT if _is_straight(line) else _SECONDS
    if steps < _STEPS and (steps or end - begin < least):
        return None
    return Growth(
        kind="growing",
        phase=growing_phase(series, marks, begin, end),
        bytes_per_second=grown / (end - begin),
        bytes_per_step=grown / steps if steps else None,
        steps=steps or None,
        seconds=end - begin,
        from_bytes=before,
        to_bytes=after,
        kept_in=_kept_in(series, begin, end, wall_offset),
        **traced_growth(series, begin, wall_offset),
    )


def _kept_in(series: Series, begin: float, end: float, wall_offset: float) -> str:
    heap = heap_growth(series, begin, end)
    if heap is None or not heap.containers:
        return ""
    from oomproof.evidence.growing_line import container_text, growing_line  # brings ast along

    container = heap.containers[0]
    if (
        not container.is_large and heap.kind != PYTHON
    ):  # a list of notes grows with each step too, and is not what fills memory
        return ""
    return container_text(container, growing_line(container, series.use.begin + wall_offset))


def _on_the_line(points: list[tuple[float, int]], rate: float, end: float, after: int) -> tuple[float, int]:
    """The first point that stands on the line to the end: what was loaded in a moment before it is no growth."""
    slack = _OFF_THE_LINE * rate * (end - points[0][0])
    return next((point for point in points if point[1] >= after - rate * (end - point[0]) - slack), points[0])


def _is_straight(line: list[tuple[float, int]]) -> bool:
    (begin, before), (end, after) = line[0], line[-1]
    rate = (after - before) / (end - begin)
    slack = _OFF_THE_LINE * (after - before)
    return all(abs(value - before - rate * (at - begin)) <= slack for at, value in line)


def warm_since(marks: Iterable[PhaseMark]) -> float | None:
    """When loading and the first steps were over; None: never. A job that tells no phase has none to wait for."""
    warm_up, told = growth.WarmUp(), False
    for mark in marks:
        told = True
        warm_up.note(mark.name, mark.step, mark.t)
        if warm_up.is_over(mark.t):
            return mark.t
    return None if told else float("-inf")


def _floors(series: Series, begin: float | None) -> list[tuple[float, int]]:
    use = series.use
    if begin is None or not use or begin >= use.end:
        return []
    begin = max(begin, use.begin)
    width = (use.end - begin) / _SLICES
    points = []
    for number in range(_SLICES):
        at = begin + number * width
        found = use.between(at, at + width)
        if found is not None and width > 0:
            points.append((at, int(found[0])))
    highest = max((value for _, value in points), default=0)
    while points and points[-1][1] < highest * _TEARDOWN:
        points.pop()
    return points


def steps_between(marks: Iterable[PhaseMark], begin: float, end: float) -> int:
    told = [mark.step for mark in marks if begin <= mark.t <= end and mark.step is not None]
    return max(told) - min(told) if told else 0


def growing_phase(series: Series, marks: Sequence[PhaseMark], begin: float, end: float) -> str:
    """The phase in which nearly all of it grew; empty where it grew in several, or none was told."""
    grown: dict[str, float] = {}
    for name, rise in _told_rises(marks, begin, end) or _sampled_rises(series, begin, end):
        grown[name] = grown.get(name, 0.0) + rise
    total = sum(max(0.0, rise) for rise in grown.values())
    most = max(grown, key=lambda name: grown[name], default="")
    return most if most != "unknown" and total > 0 and grown[most] >= total * _ONE_PHASE else ""


def _told_rises(marks: Sequence[PhaseMark], begin: float, end: float) -> list[tuple[str, float]]:
    """By what the job itself held where each phase began: an evaluation may be shorter than a sample is apart."""
    told = [mark for mark in marks if begin <= mark.t <= end and mark.anon is not None]
    return [(mark.name, (after.anon or 0) - (mark.anon or 0)) for mark, after in pairwise(told)]


def _sampled_rises(series: Series, begin: float, end: float) -> list[tuple[str, float]]:
    """Along the line through each phase's lowest points: what a phase takes and gives back is no growth of it. What changes
    from training to another phase and back is the other's."""
    spans = [(span.name, max(span.begin, begin), min(span.end, end)) for span in spans_of(series)]
    lines = [(name, *_ends(series, first, last)) for name, first, last in spans[-_VISITS:] if last > first]
    rises = [(name, left - entered) for name, entered, left in lines]
    for (name, _, left), (next_name, entered, _) in pairwise(lines):
        rises.append((next_name if name == "train" else name, entered - left))
    return rises


def _ends(series: Series, begin: float, end: float) -> tuple[float, float]:
    """What was held where a phase began and where it ended, by the line through the lowest points of its slices."""
    width = (end - begin) / _VISIT_SLICES
    points: list[tuple[float, float]] = []
    for number in range(_VISIT_SLICES):
        at = begin + number * width
        if (found := series.use.between(at, at + width * 0.999)) is not None:
            points.append((at + width / 2, found[0]))
    if not points:
        return series.use.at(begin), series.use.at(end)
    rate = growth.slope(points)
    levels = sorted(value - rate * (t - begin) for t, value in points)
    entered = levels[len(levels) // 2]
    return entered, entered + rate * (end - begin)


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
        if highest.use - lowest.use >= _LEAST and late and _is_most(series, seen, highest):
            grown.append(
                ProcessGrowth(
                    pid, highest.name or "", highest.role or "", lowest.use, highest.use, highest.t - lowest.t
                )
            )
    return tuple(sorted(grown, key=lambda process: process.before - process.after))


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
        if (
            start is not None and first.t - start / _TICKS <= _LATELY
        ):  # it began a moment before: with nothing
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
