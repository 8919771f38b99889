"""A recording as plain values to draw and tell: samples, phases, events, and who held what at the end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, TypeVar

from oomproof.recording.reader import Recording, open_recording
from oomproof.recording.runs import read_lines

WINDOW = 600.0  # seconds: the last ten minutes
POINTS = 700  # of the window, and as many of the whole run: more than a screen shows, 100 KB of paths
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


def load(attempt: Path) -> Timeline:
    """The whole recording of an attempt; empty with its ``problem`` when there is nothing to draw."""
    recording = open_recording(attempt / "recording.sqlite")
    if recording.problem:
        return Timeline(problem=recording.problem)
    begin, end = _limits(recording)
    if begin is None or end is None:
        return Timeline(problem="no sample was taken: the job ended at once")
    events = tuple(
        Mark(float(t) - end, str(kind), str(text or ""))
        for t, kind, text in _rows(
            recording,
            "SELECT t, kind, text FROM event WHERE t IS NOT NULL"
            " AND NOT (kind LIKE 'agent:%' AND coalesce(text, '') = '') ORDER BY t",  # figures, without words
        )
    )
    phases = _phases(recording, end)
    return Timeline(
        begin=begin - end,
        end_wall=end + recording.wall_offset,
        host=tuple(_with_deeds(_host(recording, begin, end), attempt, end)),
        room=tuple(_room(recording, begin, end)),
        gpus=_gpus(recording, begin, end),
        phases=tuple(phases),
        phase_rows=tuple(_phase_rows(recording, phases, end)),
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


# --- reading ------------------------------------------------------------------------------------------------


def _rows(recording: Recording, query: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    return recording.rows(query, parameters)


def _limits(recording: Recording) -> tuple[float | None, float | None]:
    tables = ("host", "job", "gpu", "event", "process")
    query = " UNION ALL ".join(f"SELECT min(t), max(t) FROM {table}" for table in tables)
    rows = [row for row in _rows(recording, query) if row[0] is not None]
    if not rows:
        return None, None
    return min(float(row[0]) for row in rows), max(float(row[1]) for row in rows)


def _host(recording: Recording, begin: float, end: float) -> list[HostPoint]:
    shares = _shares(recording)
    times = [t for t, _ in shares]
    points = []
    for t, anon, shmem, file, swap, _ in _sliced(
        recording, "t, anon, shmem, file, swap, anon+shmem+swap", "job WHERE anon IS NOT NULL", begin, end
    ):
        part = _share_at(shares, times, t)
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


def _with_deeds(points: list[HostPoint], attempt: Path, end: float) -> list[HostPoint]:
    """The guard looks more often than it records: what it saw when it acted is a sample too."""
    seen = [line.get("facts") or {} for line in read_lines(attempt / "actions.jsonl")]
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


def _room(recording: Recording, begin: float, end: float) -> list[tuple[float, int]]:
    """(when, the least the machine had available then)."""
    rows = _sliced(recording, "t, mem_available, -mem_available", "host WHERE mem_available > 0", begin, end)
    return [(float(t) - end, available) for t, available, _ in rows]


def _sliced(
    recording: Recording, columns: str, table: str, begin: float, end: float
) -> list[tuple[Any, ...]]:
    """All rows of the last ten minutes; before that, the row with the highest last column of each slice of time."""
    border = max(begin, end - WINDOW)
    *_, highest = columns.split(", ")
    step = max((border - begin) / (4 * POINTS), 0.001)
    earlier = _rows(
        recording,
        # SQLite takes the other columns from the row that has the maximum
        f"SELECT {columns.removesuffix(highest)} max({highest}) FROM {table} AND t < ? "
        "GROUP BY CAST((t - ?) / ? AS INT) ORDER BY t",
        (border, begin, step),
    )
    return [*earlier, *_rows(recording, f"SELECT {columns} FROM {table} AND t >= ? ORDER BY t", (border,))]


def _shares(recording: Recording) -> list[tuple[float, Share]]:
    """How the anonymous memory was parted between main, workers and others, whenever that was looked at.

    Shares, not sums: pages shared after a fork stand with parent and child; the job's own figure counts them once."""
    roles = {"main": 0, "worker": 1}
    held: dict[int, tuple[float, int, int]] = {}  # pid → when seen, role, bytes
    found: list[tuple[float, Share]] = []
    rows = _rows(recording, "SELECT t, pid, role, anon FROM process WHERE t IS NOT NULL ORDER BY t")
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


def _gpus(recording: Recording, begin: float, end: float) -> dict[int, tuple[GpuPoint, ...]]:
    cards = [
        int(row[0]) for row in _rows(recording, "SELECT DISTINCT idx FROM gpu WHERE total > 0 ORDER BY idx")
    ]
    # A machine of eight cards and a job on one: the cards it never touched say nothing about it.
    touched = [int(row[0]) for row in _rows(recording, "SELECT DISTINCT idx FROM gpu WHERE job_used > 0")]
    found: dict[int, tuple[GpuPoint, ...]] = {}
    for index in cards:
        if touched and index not in touched:
            continue
        where = f"gpu WHERE used IS NOT NULL AND total > 0 AND idx = {index}"
        rows = _sliced(recording, "t, used, total, job_used, used", where, begin, end)
        found[index] = tuple(GpuPoint(float(t) - end, used, total, job) for t, used, total, job, _ in rows)
    return found


def _phases(recording: Recording, end: float) -> list[Span]:
    spans: list[Span] = []
    for t, name, step in _rows(recording, "SELECT t, name, step FROM phase WHERE t IS NOT NULL ORDER BY t"):
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


def _phase_rows(recording: Recording, spans: list[Span], end: float) -> list[PhaseRow]:
    """Exact peaks, from every sample and not only the drawn ones; one pass, for there is no index on time."""
    if not spans:
        return []
    samples = [
        (float(t), int(use))
        for t, use in _rows(recording, "SELECT t, anon+shmem+swap FROM job WHERE anon IS NOT NULL ORDER BY t")
    ]
    # what the job itself saw where a phase began: of its main process only, so never too much
    inside = _peaks(recording, "SELECT t, anon FROM phase WHERE anon IS NOT NULL", spans, end)
    gpu = _peaks(
        recording, "SELECT t, sum(job_used) FROM gpu WHERE job_used IS NOT NULL GROUP BY t", spans, end
    )
    for name, size in _peaks(recording, "SELECT t, gpu FROM phase WHERE gpu IS NOT NULL", spans, end).items():
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


def _with_memory(row: PhaseRow, samples: list[tuple[float, int]], begin: float, end: float) -> PhaseRow:
    """The samples of one more span. One that fell between two samples has what stood before and after it."""
    first = max(0, bisect_right(samples, (begin, 1 << 62)) - 1)
    last = max(first, bisect_right(samples, (end, 1 << 62)) - 1)
    uses = [use for _, use in samples[first : last + 1]]
    if not uses:
        return row
    row = replace(row, floor=min(uses) if row.floor is None else min(row.floor, *uses))
    if row.peak is None or max(uses) > row.peak:
        row = replace(row, peak=max(uses), entry=uses[0], exit=uses[-1])
    return row


def _peaks(recording: Recording, query: str, spans: list[Span], end: float) -> dict[str, int]:
    """The highest value in each phase, by its name."""
    begins = [span.begin + end for span in spans]
    found: dict[str, int] = {}
    for t, value in _rows(recording, query):
        at = bisect_right(begins, t) - 1
        if at >= 0 and value is not None and value > found.get(spans[at].name, -1):
            found[spans[at].name] = value
    return found


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
