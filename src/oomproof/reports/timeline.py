"""A recording as plain values to draw and tell: samples, phases, events, and who held what at the end."""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Any, Protocol, TypeVar

from oomproof.recording.attempt import Attempt
from oomproof.recording.reader import UNREADABLE, Recording
from oomproof.recording.samples import NUMBERS, Samples, Table

WINDOW = 600.0  # seconds: the last ten minutes
POINTS = 700  # of the window, and as many of the whole run: more than a screen shows, 100 KB of paths
_MANY = 50_000  # rows of processes, above which not all of them are read
_MOMENT = 0.1  # seconds in no phase that are not worth a word
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


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """All spans of one name together; entry and exit are those of the span with the highest peak. Host memory."""

    name: str
    entered: int = 0
    seconds: float = 0.0
    peak: int | None = None
    gpu_peak: int | None = None
    last_step: int | None = None
    entry: int | None = None
    exit: int | None = None
    floor: int | None = None


@dataclass(frozen=True)
class Timeline:
    """Times are seconds before the end of the recording (negative), ``end_wall`` is that end on the clock."""

    begin: float = 0.0
    end_wall: float = 0.0
    host: tuple[HostPoint, ...] = ()
    room: tuple[tuple[float, int], ...] = ()  # what the machine had available
    gpus: dict[int, tuple[GpuPoint, ...]] = field(default_factory=dict)
    phases: tuple[Span, ...] = ()
    phase_rows: tuple[PhaseRow, ...] = ()
    events: tuple[Mark, ...] = ()
    holders: tuple[Holder, ...] = ()
    problem: str | None = None

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
    damaged = Timeline(problem="the recording is damaged")
    return recording.ask(lambda connection: _load(connection, recording, attempt), damaged)


def _load(connection: sqlite3.Connection, recording: Recording, attempt: Attempt) -> Timeline:
    tables = _tables(connection)
    begin, end = _limits(tables, connection)
    if begin is None or end is None:
        return Timeline(problem="no sample was taken: the job ended at once")
    phases = _phases(connection, end)
    return Timeline(
        begin=begin - end,
        end_wall=end + recording.wall_offset,
        host=tuple(_with_deeds(_host(tables, begin, end), attempt, end)),
        room=tuple(_room(tables, begin, end)),
        gpus=_gpus(tables, begin, end),
        phases=tuple(phases),
        phase_rows=tuple(_phase_rows(tables, connection, phases, end)),
        events=tuple(_events(connection, end)),
        holders=tuple(_holders(tables, end)),
        problem=recording.meta.get("trouble"),
    )


def load_phases(attempt: Attempt) -> list[PhaseRow]:
    """The table of phases alone."""
    return attempt.recording().ask(phase_rows, [])


def phase_rows(connection: sqlite3.Connection, samples: Samples | None = None) -> list[PhaseRow]:
    """``samples`` where the caller has read them already."""
    end = _end(connection)
    spans = _phases(connection, end) if end is not None else []
    return _phase_rows(_tables(connection, ("gpu",)), connection, spans, end or 0.0, samples) if spans else []


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


def _rows(
    connection: sqlite3.Connection, query: str, parameters: tuple[object, ...] = ()
) -> list[tuple[Any, ...]]:
    """Of one table; a damaged one has none."""
    try:
        return connection.execute(query, parameters).fetchall()
    except UNREADABLE:
        return []


Tables = dict[str, Table]


def _tables(
    connection: sqlite3.Connection, names: Sequence[str] = ("host", "job", "gpu", "process")
) -> Tables:
    """Those that can be read."""
    found = {}
    for name in names:
        try:
            found[name] = Table(connection, name)
        except UNREADABLE:
            pass  # damaged: the others tell what they can
    return found


def _windows(
    tables: Tables, name: str, columns: str, begin: float, end: float, where: str = "1", tail: str = ""
) -> list[tuple[Any, ...]]:
    try:
        return tables[name].rows(columns, begin, end, where, tail) if name in tables else []
    except UNREADABLE:
        return []


def _limits(tables: Tables, connection: sqlite3.Connection) -> tuple[float | None, float | None]:
    known = [(table.begin, table.end) for table in tables.values()]
    known += [
        (row[0], row[1]) for row in _rows(connection, f"SELECT min(t), max(t) FROM event WHERE {NUMBERS}")
    ]
    begins, ends = ([float(t) for t in times if t is not None] for times in zip(*known, strict=True))
    return min(begins, default=None), max(ends, default=None)


def _end(connection: sqlite3.Connection) -> float | None:
    """The newest time of all, as `_limits` finds it, from the last rows of each table."""
    found = []
    for table in ("host", "job", "gpu", "event", "process"):
        newest = f"SELECT t FROM {table} ORDER BY rowid DESC LIMIT 5000"
        found += _rows(connection, f"SELECT max(t) FROM ({newest}) WHERE {NUMBERS}")
    return max((float(row[0]) for row in found if row[0] is not None), default=None)


def _events(connection: sqlite3.Connection, end: float) -> Iterator[Mark]:
    rows = _rows(
        connection,
        f"SELECT t, kind, text FROM event WHERE {NUMBERS}"
        " AND NOT (kind LIKE 'agent:%' AND coalesce(text, '') = '') ORDER BY t",  # figures, without words
    )
    return (Mark(float(t) - end, str(kind), str(text or "")) for t, kind, text in rows)


def _plain(rows: list[tuple[Any, ...]], texts: tuple[int, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Rows whose columns, but for those, are numbers or nothing: a damaged one may hold anything."""
    return (
        row
        for row in rows
        if all(
            place in texts or isinstance(value, (int, float, type(None))) for place, value in enumerate(row)
        )
    )


def _host(tables: Tables, begin: float, end: float) -> list[HostPoint]:
    columns, worth = "t, anon, shmem, file, swap", "anon+shmem+swap"
    rows = _plain(_sliced(tables, "job", columns, "anon IS NOT NULL", worth, begin, end))
    shares = _Shares(tables, begin, end)
    points = []
    for t, anon, shmem, file, swap, _ in rows:
        part = shares.at(t)
        workers, other = int(anon * part[1]), int(anon * part[2])
        points.append(
            HostPoint(
                float(t) - end, anon - workers - other, workers, other, shmem or 0, swap or 0, file or 0
            )
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


def _with_deeds(points: list[HostPoint], attempt: Attempt, end: float) -> list[HostPoint]:
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
        if grown > 0 and near.t != t - end:
            workers, other = int(near.workers * grown), int(near.other * grown)
            main = use - near.shared - near.swap - workers - other
            points.insert(at, replace(near, t=t - end, main=main, workers=workers, other=other))
    return points


def _room(tables: Tables, begin: float, end: float) -> list[tuple[float, int]]:
    """(when, the least the machine had available then)."""
    rows = _plain(
        _sliced(tables, "host", "t, mem_available", "mem_available > 0", "-mem_available", begin, end)
    )
    return [(float(t) - end, available) for t, available, _ in rows]


def _sliced(
    tables: Tables, name: str, columns: str, where: str, worth: str, begin: float, end: float, group: str = ""
) -> list[tuple[Any, ...]]:
    """All rows of the last ten minutes; before that, of each slice of time the row (of each group) that is worth most."""
    border = max(begin, end - WINDOW)
    count = POINTS if border > begin else 0  # as many as are drawn
    edges = [begin + (border - begin) * number / max(1, count) for number in range(count)]
    found: list[tuple[Any, ...]] = []
    for first, last in pairwise([*edges, border]):
        # SQLite takes the other columns from the row that has the maximum
        rows = _windows(
            tables, name, f"{columns}, max({worth})", first, last, where, f"GROUP BY {group}" if group else ""
        )
        found += [row for row in rows if row[-1] is not None]
    return [*found, *_windows(tables, name, f"{columns}, {worth}", border, end + 1.0, where, "ORDER BY t")]


class _Shares:
    """How the anonymous memory was parted between main, workers and others, whenever that was looked at.

    Shares, not sums: pages shared after a fork stand with parent and child; the job's own figure counts them once. Of a
    long recording, before its last ten minutes, only the look before each drawn moment is read."""

    def __init__(self, tables: Tables, begin: float, end: float) -> None:
        self._tables = tables
        long = "process" in tables and tables["process"].size > _MANY
        self._border = max(begin, end - WINDOW) if long else begin
        rows = self._between("t, pid, role, anon", self._border - _GONE, end + 1.0, "ORDER BY t")
        self._looks = _shares(rows)
        self._at = [t for t, _ in self._looks]

    def at(self, t: float) -> Share:
        if t >= self._border:
            return _share_at(self._looks, self._at, t)
        # SQLite takes the other columns from the row that has the maximum
        rows = self._between("max(t), pid, role, anon", t - _GONE, t + _MOMENT, "GROUP BY pid")
        looks = _shares([(t, *row[1:]) for row in rows])
        return looks[0][1] if looks else (1.0, 0.0, 0.0)

    def _between(self, columns: str, begin: float, end: float, tail: str) -> list[tuple[Any, ...]]:
        return list(_plain(_windows(self._tables, "process", columns, begin, end, tail=tail), texts=(2,)))


def _shares(rows: list[tuple[Any, ...]]) -> list[tuple[float, Share]]:
    roles = {"main": 0, "worker": 1}
    held: dict[int, tuple[float, int, int]] = {}  # pid → when seen, role, bytes
    found: list[tuple[float, Share]] = []
    for t, group in groupby(rows, key=lambda row: float(row[0])):
        held.update({pid: (t, roles.get(str(role), 2), anon or 0) for _, pid, role, anon in group})
        held = {pid: one for pid, one in held.items() if t - one[0] <= _GONE}
        sums = [0, 0, 0]
        for _, place, size in held.values():
            sums[place] += size
        total = sum(sums)
        part = (sums[0] / total, sums[1] / total, sums[2] / total) if total else (1.0, 0.0, 0.0)
        found.append((t, part))
    return found


def _gpus(tables: Tables, begin: float, end: float) -> dict[int, tuple[GpuPoint, ...]]:
    columns, where = "idx, t, used, total, job_used", "used IS NOT NULL AND total > 0 AND idx IS NOT NULL"
    found: dict[int, list[GpuPoint]] = {}
    rows = _plain(_sliced(tables, "gpu", columns, where, "used", begin, end, group="idx"))
    for index, t, used, total, job, _ in rows:
        found.setdefault(index, []).append(GpuPoint(float(t) - end, used, total, job))
    # A machine of eight cards and a job on one: the cards it never touched say nothing about it.
    everything = (begin, end + 1.0, "job_used > 0")
    touched = {row[0] for row in _windows(tables, "gpu", "DISTINCT idx", *everything)}
    return {index: tuple(found[index]) for index in sorted(found) if not touched or index in touched}


def _phases(connection: sqlite3.Connection, end: float) -> list[Span]:
    spans: list[Span] = []
    query = f"SELECT t, name, CASE WHEN typeof(step) = 'integer' THEN step END FROM phase WHERE {NUMBERS} ORDER BY t"
    for t, name, step in _rows(connection, query):
        at = float(t) - end
        if spans and name != "unknown" == spans[-1].name and at - spans[-1].begin < _MOMENT:
            spans.pop()  # only the moment between two
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


def _phase_rows(
    tables: Tables,
    connection: sqlite3.Connection,
    spans: list[Span],
    end: float,
    samples: Samples | None = None,
) -> list[PhaseRow]:
    """Exact peaks, from every sample and not only the drawn ones."""
    if not spans:
        return []
    try:
        samples = samples or Samples(connection, "job", "anon+shmem+swap")
    except UNREADABLE:
        return []
    # what the job itself saw where a phase began: of its main process only, so never too much
    inside = _peaks(connection, "SELECT t, anon FROM phase WHERE anon IS NOT NULL", spans, end)
    gpu = _gpu_peaks(tables, spans, end)
    for name, size in _peaks(
        connection, "SELECT t, gpu FROM phase WHERE gpu IS NOT NULL", spans, end
    ).items():
        gpu[name] = max(size, gpu.get(name, 0))
    found: dict[str, PhaseRow] = {}
    for span in spans:
        old = found.get(span.name, PhaseRow(span.name))
        step = span.last_step if span.last_step is not None else old.last_step
        row = replace(
            old, entered=old.entered + 1, seconds=old.seconds + span.end - span.begin, last_step=step,
            gpu_peak=gpu.get(span.name),
        )  # fmt: skip
        found[span.name] = _with_memory(row, samples, span.begin + end, span.end + end)
    return [
        replace(
            row,
            peak=max((each for each in (row.peak, inside.get(row.name)) if each is not None), default=None),
        )
        for row in found.values()
    ]


def _with_memory(row: PhaseRow, samples: Samples, begin: float, end: float) -> PhaseRow:
    """The samples of one more span. One that fell between two samples has what stood before and after it."""
    if not samples:
        return row
    entry = samples.at(begin)
    low, high = samples.between(begin, end) or (entry, entry)
    low, high = int(min(low, entry)), int(max(high, entry))
    row = replace(row, floor=low if row.floor is None else min(row.floor, low))
    if row.peak is None or high > row.peak:
        row = replace(row, peak=high, entry=int(entry), exit=int(samples.at(max(begin, end))))
    return row


def _gpu_peaks(tables: Tables, spans: list[Span], end: float) -> dict[str, int]:
    """The most all cards held together in each phase, by its name."""
    found: dict[str, int] = {}
    if "gpu" not in tables or tables["gpu"].begin is None:
        return found
    for number, span in enumerate(spans):
        begin, until = span.begin + end, span.end + end if number + 1 < len(spans) else float("inf")
        looks = _windows(
            tables, "gpu", "sum(job_used)", begin, until, "typeof(job_used) = 'integer'", "GROUP BY t"
        )
        peak = max((held for (held,) in looks if isinstance(held, int)), default=None)
        if peak is not None:
            found[span.name] = max(peak, found.get(span.name, -1))
    return found


def _peaks(connection: sqlite3.Connection, query: str, spans: list[Span], end: float) -> dict[str, int]:
    """The highest value in each phase, by its name."""
    begins = [span.begin + end for span in spans]
    found: dict[str, int] = {}
    for t, value in _rows(connection, f"{query} AND {NUMBERS}"):
        at = bisect_right(begins, t) - 1
        if at >= 0 and isinstance(value, int) and value > found.get(spans[at].name, -1):
            found[spans[at].name] = value
    return found


def _holders(tables: Tables, end: float) -> list[Holder]:
    """Each process as last seen, of those that lived to the end."""
    rows = _windows(
        tables,
        "process",
        # SQLite takes the other columns from the row that has the maximum
        "pid, role, name, max(t), anon, shmem, swap, file, pss",
        end - _GONE,
        end + 1.0,
        tail="GROUP BY pid, start ORDER BY max(t)",
    )
    rows = list(_plain(rows, texts=(1, 2)))
    latest = {row[0]: row for row in rows}
    found = [
        Holder(pid, str(role), str(name), float(t) - end, anon or 0, shmem or 0, swap or 0, file or 0, pss)
        for pid, role, name, t, anon, shmem, swap, file, pss in latest.values()
    ]
    return sorted(found, key=lambda one: one.anon + one.shared + one.swap, reverse=True)
