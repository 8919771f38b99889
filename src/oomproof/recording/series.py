"""What a recording holds, by name and time: samples, events, phases, processes. All SQL over recordings is in this folder.

``with attempt.recording().series() as series`` never fails for what the file holds: a damaged table, or one that is not
there, has no rows, and a row with text where a number belongs is left out. Times are seconds since boot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from math import inf, nextafter
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from oomproof.leaf.action_kinds import KILL, PAUSE, REQUEST, RESUME, TERM, WARN
from oomproof.recording.json_shapes import parse
from oomproof.recording.position_record import PositionRecord
from oomproof.recording.samples import NUMBERS, Samples, Table
from oomproof.recording.sqlite_files import UNREADABLE, empty, pieces, sqlite3

Unreadable = UNREADABLE  # what ``exported`` may raise half-way
_PIECE = 20_000  # rows that are grouped at once
_NEWEST = 5000  # rows of a table's end that are looked at first
# An exit frees 2 to 10 GiB/s here, a quarter of one on a machine that is out of memory.
_STEEP, _LEAST, _EXIT_RATE = 0.1, 1 << 20, 256 << 20
_MOST_OF = 0.5  # of what it held: what is left then is a launcher
_LINGERS = 3.0  # seconds: torchrun and mp.spawn told of their dead ranks 1 to 2 s after the last was gone
_LAST_COUNTS = 20  # rows
_NOBODY = 64 << 10  # what a cgroup without a process may still count
_LAST = 600  # rows at the end that a teardown may take
USE = "coalesce(anon,0)+coalesce(shmem,0)+coalesce(swap,0)"  # what a job or a process holds


class HostRow(NamedTuple):
    t: float
    mem_total: int | None
    mem_available: int | None
    swap_total: int | None
    swap_free: int | None
    psi_full_us: int | None


class JobRow(NamedTuple):
    t: float
    anon: int | None
    shmem: int | None
    file: int | None
    swap: int | None
    kernel: int | None
    headroom: int | None
    processes: int | None
    shm_total: int | None
    shm_free: int | None

    @property
    def use(self) -> int:
        return (self.anon or 0) + (self.shmem or 0) + (self.swap or 0)


class ProcessRow(NamedTuple):
    t: float
    pid: int
    role: str | None
    name: str | None
    anon: int | None
    shmem: int | None
    file: int | None
    swap: int | None
    pss: int | None  # of anon, shmem and swap

    @property
    def use(self) -> int:
        """Its share of what the job holds: the shares of all processes add up to that."""
        mapped = (self.anon or 0) + (self.shmem or 0) + (self.swap or 0)
        return mapped if self.pss is None else min(mapped, self.pss)


class OtherJobRow(NamedTuple):
    """A job that is not this run's, as a look over the machine found it: the few largest of each look."""

    t: float
    pid: int
    start: int | None  # with the pid it names a job
    uid: int | None
    name: str | None  # program and script; arguments may be secret
    managed: int | None  # started by oomproof
    ram: int | None
    swap: int | None

    @property
    def use(self) -> int:
        return (self.ram or 0) + (self.swap or 0)


class GpuRow(NamedTuple):
    t: float
    idx: int
    used: int
    total: int
    job_used: int | None  # None: the driver does not say whose it is


_TOLD = {
    WARN: "warned",
    REQUEST: "asked to stop",
    TERM: "sent SIGTERM",
    KILL: "sent SIGKILL",
    PAUSE: "paused",
    RESUME: "resumed",
    "census": "variables",
    "sigterm": "got SIGTERM",
    "stacks": "where it stood",
    "agent:tell": "told by the job",
    "agent:trace": "trace of allocations",
    "agent:trim": "unused heap",
}


def told_kind(kind: str) -> str:
    """An event's or action's kind as people read it. JSON and the styles of pages keep the kind itself."""
    return _TOLD.get(kind) or kind.replace("-", " ")


def told_text(kind: str, text: str) -> str:
    """What stands behind that word: `saved: saved PATH` says it twice."""
    return text.removeprefix(f"{told_kind(kind)} ")


class Event(NamedTuple):
    t: float
    kind: str
    text: str


class PhaseMark(NamedTuple):
    """The job entered a phase, or made a step in it; what its main process held then, where it told that."""

    t: float
    name: str
    step: int | None
    anon: int | None
    gpu: int | None


Row = TypeVar("Row", HostRow, JobRow, ProcessRow, OtherJobRow, GpuRow)


class _Kind(NamedTuple):
    table: str
    there: str  # what a row of it must have
    worth: str  # of several rows, the one to show
    owner: str = ""  # ... of each of these


_KINDS: dict[type, _Kind] = {
    HostRow: _Kind("host", "mem_available > 0", "-mem_available"),
    JobRow: _Kind("job", "anon IS NOT NULL", "anon+shmem+swap"),
    ProcessRow: _Kind("process", "typeof(pid) = 'integer'", "t", "pid"),
    OtherJobRow: _Kind("other_job", "typeof(pid) = 'integer'", "t", "pid"),
    GpuRow: _Kind("gpu", "used IS NOT NULL AND total > 0 AND idx IS NOT NULL", "used", "idx"),
}
_TEXTS = ("role", "name")
_PLAIN = frozenset((int, float, type(None)))
_OF_JOB = "typeof(job_used) = 'integer'"


class Series:
    def __init__(self, connection: sqlite3.Connection, position: PositionRecord | None = None) -> None:
        """``position``: where the job itself says it stood last; the recording's own is up to a second older."""
        self._connection, self._position = connection, position
        self._tables: dict[str, Table | None] = {}

    def _ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, values).fetchall()
        except UNREADABLE:
            return []

    def _table(self, name: str) -> Table | None:
        """With its pieces by time; None for a damaged one."""
        if name not in self._tables:
            try:
                self._tables[name] = Table(self._connection, name)
            except UNREADABLE:
                self._tables[name] = None
        return self._tables[name]

    def _within(
        self, name: str, columns: str, begin: float, end: float, where: str = "1", tail: str = ""
    ) -> list[tuple[Any, ...]]:
        table = self._table(name)
        try:
            return table.rows(columns, begin, end, where, tail) if table is not None else []
        except UNREADABLE:
            return []

    # --- samples ------------------------------------------------------------------------------------------------------

    def between(self, kind: type[Row], begin: float, end: float) -> list[Row]:
        """From ``begin`` to before ``end``, in the order of time."""
        of = _KINDS[kind]
        rows = self._within(of.table, _columns(kind), begin, min(end, self.teardown), of.there, "ORDER BY t")
        return _clean(kind, rows)

    def newest(self, kind: type[Row], seconds: float) -> list[Row]:
        """Those of the last seconds before the newest of its kind, without a look at the others."""
        table, columns = _KINDS[kind].table, ", ".join(kind._fields)
        end, reach = self._end_of(table, self.teardown), _NEWEST
        while end is not None:
            rows = self._ask(
                f"SELECT {columns}, rowid FROM {table} WHERE rowid > (SELECT max(rowid) FROM {table}) - ?"
                f" AND {NUMBERS} AND t <= ? ORDER BY t, rowid",
                reach, end,
            )  # fmt: skip
            if not rows or rows[0][0] < end - seconds or min(row[-1] for row in rows) <= self._first(table):
                return _clean(kind, [row[:-1] for row in rows if row[0] >= end - seconds])
            reach *= 4
        return []

    def after(self, kind: type[Row], place: int, most: int) -> tuple[list[Row], int]:
        """(Rows written since ``place``, the newest ``most`` at most; the place of the last one): for a reader that comes
        again while the run lives, whose end nobody has seen yet."""
        of = _KINDS[kind]
        answer = self._ask(f"SELECT max(rowid) FROM {of.table}")
        last = answer[0][0] if answer and isinstance(answer[0][0], int) else 0
        # a recording that was begun anew counts from one
        first = max(place if place <= last else 0, last - most)
        query = f"SELECT {_columns(kind)} FROM {of.table} WHERE rowid > ? AND rowid <= ? AND {NUMBERS} AND {of.there}"
        return _clean(kind, self._ask(f"{query} ORDER BY rowid", first, last)), last

    def highest(self, kind: type[Row], edges: Sequence[float]) -> list[Row]:
        """Of each slice of time between two edges the row (of each card) to show: the highest, the least available."""
        of = _KINDS[kind]
        highest_rows: list[Row] = []
        for begin, end in pairwise(min(edge, self.teardown) for edge in edges):
            # SQLite takes the other columns from the row that has the maximum
            columns = f"{_columns(kind)}, max({of.worth})"
            tail = f"GROUP BY {of.owner}" if of.owner else ""
            rows = self._within(of.table, columns, begin, end, of.there, tail)
            highest_rows += _clean(kind, [row[:-1] for row in rows if row[-1] is not None])
        return highest_rows

    def living(self, begin: float, end: float) -> list[ProcessRow]:
        """Each process as last seen between two times, those seen longest ago first; not as it died, when it held nothing."""
        columns = _columns(ProcessRow).replace("t, ", "max(t), ", 1)
        rows = self._within(
            "process",
            columns,
            begin,
            min(end, self.teardown),
            f"{USE}+coalesce(file,0) > 0",
            "GROUP BY pid, start ORDER BY max(t)",
        )
        return list({row.pid: row for row in _clean(ProcessRow, rows)}.values())

    def is_long(self, kind: type[Row], rows: int) -> bool:
        table = self._table(_KINDS[kind].table)
        return table is not None and table.size > rows

    @cached_property
    def use(self) -> Samples:
        """What the job held, by time."""
        return self._samples("job", "anon+shmem+swap")

    def gpu_use(self, card: int) -> Samples:
        """What the job held on one card, as the driver counts it, by time."""
        return self._samples("gpu", "job_used", f"idx = {int(card)} AND {_OF_JOB} AND ")

    def _samples(self, name: str, value: str, where: str = "") -> Samples:
        table = self._table(name)
        try:
            if table is not None:
                return Samples(table, value, f"{where}t < {min(self.teardown, 1e300)}")
        except UNREADABLE:
            pass
        return Samples(Table(empty(), name), value)

    def gpu_bound(self, begin: float, end: float) -> int | None:
        """No less than what all cards held together for the job, at a fraction of the price: each look is several rows, and to
        sort those together takes the time. None when there was no look."""
        rows = self._within("gpu", "max(job_used), max(idx), min(idx)", begin, end, _OF_JOB)
        if not rows or not isinstance(rows[0][0], int):
            return None
        most, last, first = rows[0]
        known = isinstance(first, int) and isinstance(last, int) and 0 <= first <= last
        return most * (last + 1 if first < last else 1) if known else 1 << 62

    def gpu_peak(self, begin: float, end: float) -> int | None:
        """The most that all cards held together for the job at one look."""
        tail = "GROUP BY t ORDER BY sum(job_used) DESC LIMIT 1"
        looks = self._within("gpu", "sum(job_used)", begin, end, _OF_JOB, tail)
        return looks[0][0] if looks else None

    def gpu_before(self, t: float) -> int | None:
        """What they held at the last look before that time."""
        table = self._table("gpu")
        try:
            at = table.last("t", nextafter(t, -inf), _OF_JOB) if table is not None else None
        except UNREADABLE:
            at = None
        if at is None:
            return None
        return self._within("gpu", "sum(job_used)", at[0], nextafter(at[0], inf), _OF_JOB)[0][0]  # type: ignore[no-any-return]

    def cards_used(self, known: set[int]) -> set[int]:
        """The cards on which the job ever held something, beside those that are known for it."""
        others = f"job_used > 0 AND idx NOT IN ({', '.join(map(str, map(int, known)))})"
        rows = self._within("gpu", "DISTINCT idx", float("-inf"), float("inf"), others)
        return {*known, *(row[0] for row in rows)}

    @cached_property
    def teardown(self) -> float:
        """When the job began to give its memory back by dying; infinite when no sample saw that. Rows from then on say
        nothing of what it held at its end: no reader gets them."""
        rows = self._ask(
            f"SELECT t, {USE} FROM job WHERE {NUMBERS} AND typeof({USE}) = 'integer' ORDER BY rowid DESC LIMIT {_LAST}"
        )
        looks = {t for (t,) in self._ask(f"SELECT t FROM look ORDER BY rowid DESC LIMIT {_LAST}")}
        counts = self._ask(f"SELECT processes FROM job ORDER BY rowid DESC LIMIT {_LAST_COUNTS}")
        several = any(_whole(count) and count > 1 for (count,) in counts)
        return teardown_begin(_without_bursts(sorted(rows), looks), _LINGERS if several else 0.0)

    def exported(self) -> Iterator[tuple[Any, ...]]:
        """The job beside the machine, one by one: there may be millions. Raises one of UNREADABLE."""
        query = (
            "SELECT job.t, anon, shmem, file, swap, kernel, headroom, processes, mem_available, swap_free "
            "FROM job LEFT JOIN host ON host.t = job.t ORDER BY job.t"
        )
        return (row for row in self._connection.execute(query) if isinstance(row[0], float))

    # --- times --------------------------------------------------------------------------------------------------------

    def limits(self) -> tuple[float, float] | None:
        """The first and the last time of all; None when nothing was written."""
        tables = [self._table(name) for name in ("host", "job", "gpu", "process")]
        known: list[tuple[Any, ...]] = [(table.begin, table.end) for table in tables if table is not None]
        known += self._ask(f"SELECT min(t), max(t) FROM event WHERE {NUMBERS}")
        ranges = [(float(a), float(b)) for a, b in known if a is not None and b is not None]
        return (min(a for a, _ in ranges), max(b for _, b in ranges)) if ranges else None

    def end(self) -> float | None:
        """The newest time of all, from the last rows of each table."""
        ends = (self._end_of(table) for table in ("host", "job", "gpu", "event", "process"))
        return max((end for end in ends if end is not None), default=None)

    def _end_of(self, table: str, before: float = float("inf")) -> float | None:
        newest = f"SELECT t FROM {table} ORDER BY rowid DESC LIMIT {_NEWEST}"
        answer = self._ask(f"SELECT max(t) FROM ({newest}) WHERE {NUMBERS} AND t < ?", before)
        return float(answer[0][0]) if answer and answer[0][0] is not None else None

    def _first(self, table: str) -> int:
        answer = self._ask(f"SELECT min(rowid) FROM {table}")
        return answer[0][0] if answer and isinstance(answer[0][0], int) else 0

    # --- events, phases, processes ------------------------------------------------------------------------------------

    def events(
        self, *kinds: str, last: int | None = None, words_only: bool = False, besides: str = ""
    ) -> list[Event]:
        """Oldest first; of those kinds, or all but one. ``last``: so many of the newest. ``words_only``: without the agent's
        figures, which have no words."""
        where = f"{NUMBERS} AND abs(t) < 1e12 AND kind != ?"
        if kinds:
            where += f" AND kind IN ({', '.join('?' * len(kinds))})"
        if words_only:
            where += " AND NOT (kind LIKE 'agent:%' AND coalesce(text, '') = '')"
        limit = f"LIMIT {int(last)}" if last is not None else ""
        query = f"SELECT t, kind, text FROM event WHERE {where} ORDER BY t DESC, rowid DESC {limit}"
        return [
            Event(float(t), str(kind), str(text or "")) for t, kind, text in self._ask(query, besides, *kinds)
        ][::-1]

    def told_numbers(self, kind: str, last: int | None = None) -> list[tuple[float, dict[str, Any]]]:
        """What an agent told in numbers, oldest first. ``last``: so many of the newest."""
        told = []
        newest = f"ORDER BY rowid DESC LIMIT {int(last)}" if last is not None else ""
        rows = f"SELECT t, data, rowid AS place FROM event WHERE kind = ? AND {NUMBERS} {newest}"
        for t, data in self._ask(f"SELECT t, data FROM ({rows}) ORDER BY t, place", kind):
            try:
                value = parse(data) if isinstance(data, str) else None
            except ValueError:
                continue
            if isinstance(value, dict):
                told.append((float(t), value))
        return told

    def phase_marks(self, last: int | None = None) -> list[PhaseMark]:
        """In the order of time; the job's own last word is the last. ``last``: of so many of the newest rows."""
        newest = f"AND rowid > (SELECT max(rowid) FROM phase) - {int(last)}" if last is not None else ""
        query = f"SELECT t, name, step, anon, gpu FROM phase WHERE {NUMBERS} {newest} ORDER BY t"
        marks = [
            PhaseMark(float(t), str(name), *map(_whole, figures)) for t, name, *figures in self._ask(query)
        ]
        now = self._position
        if now is not None and marks and now.t >= marks[-1].t and (now.phase, now.step) != marks[-1][1:3]:
            marks.append(PhaseMark(now.t, now.phase, now.step, None, None))
        return marks

    def last_phase(self) -> tuple[str, int | None] | None:
        rows = self._ask(f"SELECT name, step FROM phase WHERE {NUMBERS} ORDER BY t DESC, rowid DESC LIMIT 1")
        return (str(rows[0][0]), _whole(rows[0][1])) if rows and rows[0][0] else None

    def processes(self) -> dict[int, tuple[float, ProcessRow]]:
        """Each process by its pid: when it was first seen, and as it was last seen.

        Piece by piece: to sort two million rows by pid, with their names, takes eight seconds."""
        first: dict[int, float] = {}
        last: dict[int, tuple[float, int]] = {}
        query = (
            "SELECT pid, min(t), max(t), max(rowid) FROM process WHERE rowid BETWEEN ? AND ?"
            f" AND {NUMBERS} AND typeof(pid) = 'integer' AND t < ? GROUP BY pid"
        )
        try:
            for begin, end in pieces(self._connection, "process", _PIECE):
                for pid, low, high, rowid in self._connection.execute(query, (begin, end, self.teardown)):
                    first[pid] = min(low, first.get(pid, low))
                    if pid not in last or high >= last[pid][0]:
                        last[pid] = (high, rowid)
        except UNREADABLE:
            pass  # what was read until there
        columns = _columns(ProcessRow)
        by_pid = {}
        for pid, (_, rowid) in last.items():
            rows = self._ask(f"SELECT {columns} FROM process WHERE rowid = ?", rowid)
            for row in _clean(ProcessRow, rows):
                by_pid[pid] = (first[pid], row)
        return by_pid


def _without_bursts(points: Sequence[tuple[float, int]], looks: set[float]) -> list[tuple[float, int]]:
    """Without looks above the sample before them: the fall after one is the end of a burst, and the job lived on."""
    kept: list[tuple[float, int]] = []
    sample = 0
    for t, use in points:
        if t not in looks:
            sample = use
        elif use > sample:
            continue
        kept.append((t, use))
    return kept


def teardown_begin(points: Sequence[tuple[float, int]], lingers: float = 0.0) -> float:
    """``points`` are (when, bytes) in the order of time. Memory falls steeply from each to the next, and so up to the very
    end; a level in between is a job that gave something back and lived on. ``lingers``: seconds that a launcher may take to
    end when the processes that held most are gone."""
    begin = float("inf")
    last = _collapse(points, lingers)
    if last is not None:
        begin, points = points[last][0], points[: last + 1]
    for (t, use), (before, more) in pairwise(reversed(points)):
        fall = more - use
        if fall >= more * _STEEP and fall >= _LEAST:
            begin = t
        elif begin < float("inf") and fall >= max(_LEAST, (t - before) * _EXIT_RATE):
            begin = t  # a large job takes seconds, and loses a small share of it in the first ones
        elif max(use, more) > _NOBODY:
            break
    return begin


def _collapse(points: Sequence[tuple[float, int]], lingers: float) -> int | None:
    """The place of the first point of the last seconds by which most of what was held was gone, and which nothing rose above."""
    place, highest = None, 0
    for at in range(len(points) - 1, 0, -1):
        (t, use), (_, more) = points[at], points[at - 1]
        if points[-1][0] - t > lingers or highest > use * (1 + _STEEP) + _LEAST:
            break
        highest = max(highest, use)
        if more - use >= max(_LEAST, more * _MOST_OF):
            place = at
    return place


def _columns(kind: type[Row]) -> str:
    return ", ".join(kind._fields)


def _clean(kind: type[Row], rows: Sequence[tuple[Any, ...]]) -> list[Row]:
    """Those whose columns, but for the texts, are numbers or nothing."""
    figures = itemgetter(*(place for place, name in enumerate(kind._fields) if name not in _TEXTS))
    make: Callable[..., Row] = kind
    return [
        make(*row) for row in rows if type(row[0]) is float and _PLAIN.issuperset(map(type, figures(row)))
    ]


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
