"""A recording as plain values to draw and tell: samples, phases, events, and who held what at the end."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from typing import Any, Protocol, TypeVar

from oomproof.evidence.json_files import number
from oomproof.recording.attempt import Attempt
from oomproof.recording.phase_spans import PhaseRow, Span, phase_rows, spans_of, with_last_step
from oomproof.recording.series import GpuRow, HostRow, JobRow, OtherJobRow, ProcessRow, Row, Series
from oomproof.records import dataclass, field, fields, replace
from oomproof.reports.alongside import Alongside
from oomproof.units import MIB

WINDOW = 600.0  # seconds: the last ten minutes
POINTS = 700  # of the window, and as many of the whole run: more than a screen shows, 100 KB of paths
_MANY = 50_000  # rows of a table, above which not all of them are read
_EVENTS = 60
_JOBS = 3  # unmanaged ones that are drawn
_LOOKS = 150  # at the processes of a long run before its last ten minutes: between two, in proportion
_MOMENT = 0.1  # seconds in no phase that are not worth a word
_BESIDE = 60.0  # seconds that a run may be longer than its recording at either end: a calm job is looked at every 10 s
_GONE = 45.0  # a living process leaves a row every 30 s at least (the sampler's sign of life), looked for every 4 s


class Drawable(Protocol):
    @property
    def t(self) -> float: ...
    @property
    def use(self) -> int: ...


Point = TypeVar("Point", bound=Drawable)


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
class MachinePoint:
    """The machine at one moment. ``stalled``: the share of the time since the point before in which every task waited."""

    t: float
    total: int
    available: int
    swap_total: int
    swap_free: int
    stalled: float | None

    @property
    def use(self) -> int:
        return self.total - self.available


@dataclass(frozen=True, slots=True)
class Unmanaged:
    """A job on the machine that oomproof did not start: (when, bytes of RAM and swap)."""

    name: str
    points: tuple[tuple[float, int], ...]

    @property
    def peak(self) -> int:
        return max(size for _, size in self.points)


@dataclass(frozen=True, slots=True)
class Mark:
    t: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Holder:
    """A process as last seen. ``seen`` is that moment; ``held`` its share of what the job held, swap included."""

    pid: int
    role: str
    name: str
    seen: float
    held: int
    swap: int


@dataclass(frozen=True)
class Timeline:
    """Times are seconds before the end of the run (negative), ``end_wall`` is that end on the clock. Where the recording is much
    shorter than the run, because its guard was killed, they are those of the recording."""

    begin: float = 0.0
    end_wall: float = 0.0
    host: tuple[HostPoint, ...] = ()
    machine: tuple[MachinePoint, ...] = ()
    unmanaged: tuple[Unmanaged, ...] = ()  # the largest first
    gpus: dict[int, tuple[GpuPoint, ...]] = field(default_factory=dict)
    phases: tuple[Span, ...] = ()
    phase_rows: tuple[PhaseRow, ...] = ()
    events: tuple[Mark, ...] = ()  # the newest
    earlier_events: int = 0  # how many came before them
    holders: tuple[Holder, ...] = ()
    problem: str | None = None
    is_whole: bool = True  # it covers the run

    @property
    def window(self) -> float:
        """Where the last ten minutes begin, or the run when it was shorter."""
        return max(self.begin, -WINDOW)

    def wall(self, t: float) -> float:
        return self.end_wall + t


def load(attempt: Attempt) -> Timeline:
    """The recording of an attempt, as much of it as is drawn and told; empty with its ``problem`` when there is nothing."""
    recording = attempt.recording()
    if recording.problem:
        return Timeline(problem=recording.problem)
    rows = Alongside(lambda: load_phases(attempt))
    with recording.series() as series:
        limits = series.limits()
        if limits is None:
            return Timeline(problem="no sample was taken: the job ended at once")
        begin, end, is_whole = _of_run(attempt, *limits)
        spans = spans_of(series, end)
        events = series.events(words_only=True, besides="agent")
        return Timeline(
            begin=begin - end,
            end_wall=end + recording.wall_offset,
            host=tuple(_with_actions(_host(series, begin, end), attempt, end)),
            machine=tuple(_machine(series, begin, end)),
            unmanaged=tuple(_unmanaged(series, begin, end)),
            gpus=_gpus(series, begin, end),
            phases=tuple(replace(span, begin=span.begin - end, end=span.end - end) for span in spans),
            phase_rows=tuple(rows.result()),
            events=tuple(Mark(event.t - end, event.kind, event.text) for event in events[-_EVENTS:]),
            earlier_events=max(0, len(events) - _EVENTS),
            holders=tuple(_holders(series, limits[1], end)),
            problem=recording.meta.get("trouble"),
            is_whole=is_whole,
        )


def _of_run(attempt: Attempt, first: float, last: float) -> tuple[float, float, bool]:
    """The run's begin and end, and whether both are near the first and the last sample: those lie within it."""
    begin, end = number(attempt.load_started()[0].get("boottime")), number(attempt.exit().get("boottime"))
    if begin is None or begin > first:
        begin = first
    if end is None or end < last:
        end = last
    is_whole = first - begin <= _BESIDE and end - last <= _BESIDE
    return (begin, end, True) if is_whole else (first, last, False)


def load_phases(attempt: Attempt) -> list[PhaseRow]:
    """The table of phases alone."""
    with attempt.recording().series() as series:
        return with_last_step(phase_rows(series), attempt.agent_folder)


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


# --- reading ------------------------------------------------------------------------------------------------


def _edges(begin: float, end: float) -> list[float]:
    """Slices of a time, as many as are drawn of it; without its end."""
    return [begin + (end - begin) * number / POINTS for number in range(POINTS)] if end > begin else []


def _sliced(series: Series, kind: type[Row], begin: float, end: float) -> list[Row]:
    """All samples of the last ten minutes; before that, and of too many, of each slice of time the one worth showing."""
    border: float = max(begin, end - WINDOW)
    earlier = series.highest(kind, [*_edges(begin, border), border])
    if series.is_long(kind, _MANY):
        return earlier + series.highest(kind, [*_edges(border, end), end + 1.0])
    return earlier + series.between(kind, border, end + 1.0)


def _host(series: Series, begin: float, end: float) -> list[HostPoint]:
    shares = _Shares(series, begin, end)
    points = []
    for row in _sliced(series, JobRow, begin, end):
        anon, part = row.anon or 0, shares.at(row.t)
        workers, other = int(anon * part[1]), int(anon * part[2])
        main = anon - workers - other
        points.append(
            HostPoint(row.t - end, main, workers, other, row.shmem or 0, row.swap or 0, row.file or 0)
        )
    return points


Share = tuple[float, float, float]  # of main, workers, others


def _share_at(shares: list[tuple[float, Share]], times: list[float], t: float) -> Share:
    """Between two looks, in proportion: workers that were forked meanwhile did not come at the second look only."""
    if not shares:
        return (1.0, 0.0, 0.0)
    after = bisect_right(times, t)
    (t0, a), (t1, b) = shares[max(0, after - 1)], shares[min(after, len(shares) - 1)]
    way = (t - t0) / (t1 - t0) if t1 > t0 and t > t0 else 0.0
    return (a[0] + (b[0] - a[0]) * way, a[1] + (b[1] - a[1]) * way, a[2] + (b[2] - a[2]) * way)


def _with_actions(points: list[HostPoint], attempt: Attempt, end: float) -> list[HostPoint]:
    """The guard looks more often than it records: what it saw when it acted is a sample too."""
    seen = [facts for line in attempt.actions() if isinstance(facts := line.get("facts"), dict)]
    for facts in seen:
        t, use = facts.get("t"), facts.get("use")
        if (
            not isinstance(t, int | float)
            or not isinstance(use, int)
            or not points
            or not points[0].t < t - end <= 0
        ):
            continue
        at = bisect_right([point.t for point in points], t - end)
        near = points[at - 1]
        anon = max(1, near.main + near.workers + near.other)
        grown = (anon + use - near.use) / anon
        if grown > 0 and use > near.use + max(MIB, near.use // 100):  # newer recordings have a row for it
            workers, other = int(near.workers * grown), int(near.other * grown)
            main = use - near.shared - near.swap - workers - other
            points.insert(at, replace(near, t=t - end, main=main, workers=workers, other=other))
    return points


def _machine(series: Series, begin: float, end: float) -> list[MachinePoint]:
    """Of each slice of time the moment at which it had least available."""
    points: list[MachinePoint] = []
    before: HostRow | None = None
    for row in _sliced(series, HostRow, begin, end):
        stalled = None
        if (
            before is not None
            and row.psi_full_us is not None
            and before.psi_full_us is not None
            and row.t > before.t
        ):
            stalled = min(1.0, max(0, row.psi_full_us - before.psi_full_us) / 1e6 / (row.t - before.t))
        available, total = row.mem_available or 0, row.mem_total or 0
        swap = (row.swap_total or 0, row.swap_free or 0)
        points.append(MachinePoint(row.t - end, max(total, available), available, *swap, stalled))
        before = row
    return points


def _unmanaged(series: Series, begin: float, end: float) -> list[Unmanaged]:
    by_job: dict[tuple[int, int | None], list[OtherJobRow]] = {}
    for row in series.between(OtherJobRow, begin, end + 1.0):
        if not row.managed:
            by_job.setdefault((row.pid, row.start), []).append(row)
    jobs = [
        Unmanaged(f"{rows[-1].name or '?'} (pid {pid})", tuple((row.t - end, row.use) for row in rows))
        for (pid, _), rows in by_job.items()
    ]
    return sorted(jobs, key=lambda job: job.peak, reverse=True)[:_JOBS]


class _Shares:
    """How the anonymous memory was parted between main, workers and others, whenever that was looked at.

    Shares, not sums: pages shared after a fork stand with parent and child; the job's own figure counts them once. Of a
    long recording, before its last ten minutes, only some looks are read."""

    def __init__(self, series: Series, begin: float, end: float) -> None:
        border = max(begin, end - WINDOW) if series.is_long(ProcessRow, _MANY) else begin
        self._looks: list[tuple[float, Share]] = []
        for look in range(_LOOKS if border > begin else 0):
            t = begin + (border - begin) * look / _LOOKS
            rows = series.living(t - _GONE, t + _MOMENT)
            self._looks += _shares([row._replace(t=t) for row in rows])
        self._looks += _shares(series.between(ProcessRow, border - _GONE, end + 1.0))
        self._looks.sort(key=lambda look: look[0])
        self._at = [t for t, _ in self._looks]

    def at(self, t: float) -> Share:
        return _share_at(self._looks, self._at, t)


def _shares(rows: list[ProcessRow]) -> list[tuple[float, Share]]:
    roles = {"main": 0, "worker": 1}
    held: dict[int, tuple[float, int, int]] = {}  # pid → when seen, role, bytes
    shares: list[tuple[float, Share]] = []
    for t, group in groupby(rows, key=lambda row: row.t):
        held.update({row.pid: (t, roles.get(str(row.role), 2), row.use) for row in group})
        held = {pid: process for pid, process in held.items() if t - process[0] <= _GONE}
        sums = [0, 0, 0]
        for _, kind, size in held.values():
            sums[kind] += size
        total = sum(sums)
        part = (sums[0] / total, sums[1] / total, sums[2] / total) if total else (1.0, 0.0, 0.0)
        shares.append((t, part))
    return shares


def _gpus(series: Series, begin: float, end: float) -> dict[int, tuple[GpuPoint, ...]]:
    by_card: dict[int, list[GpuPoint]] = {}
    for row in _sliced(series, GpuRow, begin, end):
        by_card.setdefault(row.idx, []).append(GpuPoint(row.t - end, row.used, row.total, row.job_used))
    # A machine of eight cards and a job on one: the cards it never touched say nothing about it.
    touched = {index for index, points in by_card.items() if any(point.job for point in points)}
    if len(touched) < len(by_card):
        touched = series.cards_used(touched)
    return {index: tuple(by_card[index]) for index in sorted(by_card) if not touched or index in touched}


def _holders(series: Series, last: float, end: float) -> list[Holder]:
    """Each process as last seen, of those that lived to the end."""
    holders = [
        Holder(row.pid, str(row.role), str(row.name), row.t - end, row.use, row.swap or 0)
        for row in series.living(last - _GONE, last + 1.0)
    ]
    return sorted(holders, key=lambda holder: holder.held, reverse=True)


_PROBLEM = "it holds values that are no numbers"
_TEXTS = ("name", "role", "kind", "text")


def load_numbers(attempt: Attempt) -> Timeline:
    """The attempt's recording to draw; empty with its ``problem`` where it holds something else than numbers."""
    try:
        timeline = load(attempt)
    except (TypeError, ValueError, OverflowError):  # a text that was to be added up
        return Timeline(problem=_PROBLEM)
    return timeline if _only_numbers(timeline) else Timeline(problem=_PROBLEM)


def _only_numbers(timeline: Timeline) -> bool:
    series = (
        timeline.host,
        timeline.machine,
        timeline.phases,
        timeline.phase_rows,
        timeline.events,
        timeline.holders,
    )
    records: list[Any] = [record for records in (*series, *timeline.gpus.values()) for record in records]
    return all(map(_number, (timeline.begin, timeline.end_wall, *timeline.gpus))) and all(
        map(_is_of_numbers, records)
    )


def _is_of_numbers(record: Any) -> bool:
    kind: Any = type(record)
    texts, figures = _fields_of(kind)
    return all(isinstance(getattr(record, name), str) for name in texts) and all(
        _number(getattr(record, name)) for name in figures
    )


@cache
def _fields_of(kind: Any) -> tuple[list[str], list[str]]:
    """(Those that are texts, the others): thousands of records are of a few kinds."""
    names = [field.name for field in fields(kind)]
    return [name for name in names if name in _TEXTS], [name for name in names if name not in _TEXTS]


def _number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value))
