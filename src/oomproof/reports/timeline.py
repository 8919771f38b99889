"""A recording as plain values to draw and tell: samples, phases, events, and who held what at the end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from oomproof.recording.reader import Recording, open_recording

WINDOW = 600.0  # seconds: the last ten minutes
POINTS = 700  # of the window, and as many of the whole run: more than a screen shows, 100 KB of paths
_GONE = 45.0  # a living process leaves a row every 30 s at least (the sampler's sign of life), looked for every 4 s

Point = TypeVar("Point", "HostPoint", "GpuPoint")


@dataclass(frozen=True, slots=True)
class HostPoint:
    """The job's host memory at one moment, in bytes. ``t`` is in seconds before the end: 0 is the end."""

    t: float
    main: int
    workers: int
    other: int
    shared: int
    swap: int
    cache: int
    available: int | None = None  # of the whole machine

    @property
    def use(self) -> int:
        return self.main + self.workers + self.other + self.shared + self.swap


@dataclass(frozen=True, slots=True)
class GpuPoint:
    t: float
    used: int
    total: int
    job: int | None  # None: the driver does not say whose it is

    @property
    def use(self) -> int:
        return self.used


@dataclass(frozen=True, slots=True)
class Span:
    """A phase from its first to its last mark; steps where the job told them."""

    begin: float
    end: float
    name: str
    first_step: int | None = None
    last_step: int | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    t: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Holder:
    """A process as last seen. ``seen`` is that moment; shared pages stand with each process that maps them."""

    pid: int
    role: str
    name: str
    seen: float
    anon: int
    shared: int
    swap: int
    file: int
    pss: int | None


@dataclass(frozen=True)
class Timeline:
    """Times are seconds before the end of the recording (negative), ``end_wall`` is that end on the clock."""

    begin: float = 0.0
    end_wall: float = 0.0
    host: tuple[HostPoint, ...] = ()
    gpus: dict[int, tuple[GpuPoint, ...]] | None = None
    phases: tuple[Span, ...] = ()
    events: tuple[Mark, ...] = ()
    holders: tuple[Holder, ...] = ()
    problem: str | None = None

    @property
    def window(self) -> float:
        """Where the last ten minutes begin, or the run when it was shorter."""
        return max(self.begin, -WINDOW)

    def wall(self, t: float) -> float:
        return self.end_wall + t


def load(attempt: Path) -> Timeline:
    """The whole recording of an attempt; empty with its ``problem`` when there is nothing to draw."""
    recording = open_recording(attempt / "recording.sqlite")
    if recording.problem:
        return Timeline(problem=recording.problem)
    end = _newest(recording)
    if end is None:
        return Timeline(problem="no sample was taken: the job ended at once")
    events = tuple(
        Mark(float(t) - end, str(kind), str(text or ""))
        for t, kind, text in _rows(recording, "SELECT t, kind, text FROM event WHERE t IS NOT NULL ORDER BY t")
    )
    host = tuple(_host(recording, end))
    gpus = _gpus(recording, end)
    firsts = [series[0].t for series in (host, *gpus.values()) if series]
    return Timeline(
        begin=min([*firsts, *(mark.t for mark in events), 0.0]),
        end_wall=end + recording.wall_offset,
        host=host,
        gpus=gpus,
        phases=tuple(_phases(recording, end)),
        events=events,
        holders=tuple(_holders(recording, end)),
        problem=recording.meta.get("trouble"),
    )


def thin(points: Sequence[Point], begin: float, end: float, count: int = POINTS) -> list[Point]:
    """At most ``count`` moments (and the ends) between two times: of each slice the one with the highest use.

    A moment is kept whole, so that a drawn stack was once true; no peak of the sum is lost."""
    inside = [point for point in points if begin <= point.t <= end]
    if len(inside) <= count:
        return inside
    step = max(end - begin, 1e-9) / count
    highest: dict[int, Point] = {}
    for point in inside:
        slot = min(count - 1, int((point.t - begin) / step))
        if slot not in highest or point.use > highest[slot].use:
            highest[slot] = point
    kept = list(highest.values())
    return [
        *([inside[0]] if kept[0] is not inside[0] else []),
        *kept,
        *([inside[-1]] if kept[-1] is not inside[-1] else []),
    ]


def drawn(points: Sequence[Point], timeline: Timeline) -> list[Point]:
    """The whole run coarsely and the last ten minutes finely, in one row."""
    border = timeline.window
    if border <= timeline.begin:
        return thin(points, timeline.begin, 0.0, 2 * POINTS)
    earlier = [point for point in thin(points, timeline.begin, border) if point.t < border]
    return [*earlier, *thin(points, border, 0.0)]


def peak_in(points: Sequence[Point], begin: float, end: float, value: Callable[[Point], int]) -> int | None:
    return max((value(point) for point in points if begin <= point.t <= end), default=None)


# --- reading ------------------------------------------------------------------------------------------------


def _rows(recording: Recording, query: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    return recording.rows(query, parameters)


def _newest(recording: Recording) -> float | None:
    tables = ("host", "job", "gpu", "event", "process")
    rows = _rows(recording, " UNION ALL ".join(f"SELECT max(t) FROM {table}" for table in tables))
    return max((float(row[0]) for row in rows if row[0] is not None), default=None)


def _host(recording: Recording, end: float) -> list[HostPoint]:
    shares = _shares(recording)
    times = [t for t, _ in shares]
    available = _rows(
        recording, "SELECT t, mem_available FROM host WHERE mem_available IS NOT NULL ORDER BY t"
    )
    host_times = [float(t) for t, _ in available]
    points = []
    for t, anon, shmem, file, swap in _rows(
        recording,
        "SELECT t, anon, shmem, file, swap FROM job WHERE anon IS NOT NULL AND t IS NOT NULL ORDER BY t",
    ):
        at = bisect_right(times, t)
        part = shares[max(0, at - 1)][1] if shares else (1.0, 0.0, 0.0)
        near = bisect_right(host_times, t)
        main, workers = int(anon * part[0]), int(anon * part[1])
        points.append(
            HostPoint(
                float(t) - end, main, workers, anon - main - workers if part[2] else 0,
                shmem or 0, swap or 0, file or 0, available[near - 1][1] if near else None,
            )
        )  # fmt: skip
    return points


def _shares(recording: Recording) -> list[tuple[float, tuple[float, float, float]]]:
    """How the anonymous memory was parted between main, workers and others, whenever that was looked at.

    Shares, not sums: pages shared after a fork stand with parent and child, and the job's own figure counts them once."""
    roles = {"main": 0, "worker": 1}
    held: dict[int, tuple[float, int, int]] = {}  # pid → when seen, role, bytes
    found: list[tuple[float, tuple[float, float, float]]] = []
    for t, pid, role, anon in _rows(recording, "SELECT t, pid, role, anon FROM process ORDER BY t"):
        held[pid] = (t, roles.get(str(role), 2), anon or 0)
        sums = [0, 0, 0]
        for seen, place, size in held.values():
            if t - seen <= _GONE:
                sums[place] += size
        total = sum(sums) or 1
        part = (sums[0] / total, sums[1] / total, sums[2] / total) if any(sums) else (1.0, 0.0, 0.0)
        if found and found[-1][0] == t:
            found.pop()
        found.append((t, part))
    return found


def _gpus(recording: Recording, end: float) -> dict[int, tuple[GpuPoint, ...]]:
    found: dict[int, list[GpuPoint]] = {}
    query = "SELECT t, idx, used, total, job_used FROM gpu WHERE used IS NOT NULL AND total > 0 ORDER BY t"
    for t, index, used, total, job in _rows(recording, query):
        found.setdefault(index, []).append(GpuPoint(float(t) - end, used, total, job))
    # A machine of eight cards and a job on one: the cards it never touched say nothing about it.
    touched = {index for index, series in found.items() if any(point.job for point in series)}
    return {index: tuple(series) for index, series in sorted(found.items()) if not touched or index in touched}


def _phases(recording: Recording, end: float) -> list[Span]:
    spans: list[Span] = []
    for t, name, step in _rows(recording, "SELECT t, name, step FROM phase WHERE t IS NOT NULL ORDER BY t"):
        at = float(t) - end
        if spans and spans[-1].name == name:
            last = spans[-1]
            first = last.first_step if last.first_step is not None else step
            spans[-1] = replace(
                last, first_step=first, last_step=step if step is not None else last.last_step
            )
            continue
        if spans:
            spans[-1] = replace(spans[-1], end=at)
        spans.append(Span(at, 0.0, str(name), step, step))
    return spans


def _holders(recording: Recording, end: float) -> list[Holder]:
    rows = _rows(
        recording,
        "SELECT pid, role, name, t, anon, shmem, swap, file, pss FROM process p WHERE t = "
        "(SELECT max(t) FROM process q WHERE q.pid = p.pid AND q.start = p.start) AND t > ? ORDER BY t",
        (end - _GONE,),
    )
    latest = {row[0]: row for row in rows}
    found = [
        Holder(pid, str(role), str(name), float(t) - end, anon or 0, shmem or 0, swap or 0, file or 0, pss)
        for pid, role, name, t, anon, shmem, swap, file, pss in latest.values()
    ]
    return sorted(found, key=lambda one: one.anon + one.shared + one.swap, reverse=True)
