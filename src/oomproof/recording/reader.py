"""Reads a recording, whole or cut: of a live run, after SIGKILL, after a power cut, with damaged bytes in it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from oomproof.recording.position_record import best, read_all
from oomproof.recording.series import USE, Series
from oomproof.recording.sqlite_files import UNREADABLE, VERSION, connect, empty, pieces, sqlite3
from oomproof.records import dataclass, field

Row = tuple[Any, ...]

LOOKS = ("guard", "cgroup")  # who may have seen what no sample shows
_CARDS = 64  # rows of one look at most


@dataclass(frozen=True)
class Peaks:
    """Highest values seen, in bytes; None where nothing was sampled. What the job held at most is known better by
    ``run_peak``, which also has what no sample saw."""

    use: int | None = None
    anon: int | None = None
    shmem: int | None = None
    swap: int | None = None
    gpu: int | None = None
    lowest_available: int | None = None
    source: str = "samples"  # of ``use``: a key of run_peak.SOURCES


@dataclass(frozen=True)
class Figures:
    """What a line of the history needs of a recording, read in one go."""

    peaks: Peaks = Peaks()
    last: float | None = None  # boottime of the newest sample
    cache: int | None = None  # page cache at most, and the kernel's own memory
    kernel: int | None = None
    mapped: int | None = None  # files that one process had mapped, at most
    process_anon: int | None = None  # of one process, at most


@dataclass(frozen=True)
class Recording:
    """What an attempt's file holds. ``problem`` says in words what could not be read."""

    path: Path
    meta: dict[str, str] = field(default_factory=dict)
    problem: str | None = None
    agent_folder: Path | None = None  # beside it: the job's own record of its last step

    @property
    def wall_offset(self) -> float:
        """Add this to a sample's time to get wall-clock seconds."""
        try:
            offset = float(self.meta.get("wall_offset", 0.0))
        except ValueError:
            return 0.0
        return offset if abs(offset) < 1e12 else 0.0

    @contextmanager
    def series(self) -> Iterator[Series]:
        """Its samples, events and phases by name and time; none when the file cannot be read (``problem`` says why)."""
        with closing(self._opened()) as connection:
            yield Series(connection, best(read_all(self.agent_folder)) if self.agent_folder else None)

    def _opened(self) -> sqlite3.Connection:
        try:
            return empty() if self.problem else connect(self.path)
        except UNREADABLE:
            return empty()

    def rows(self, query: str, parameters: tuple[object, ...] = ()) -> list[Row]:
        """Rows of a query, for whoever looks into a recording by hand; none when the file cannot be read."""
        try:
            with closing(self._opened()) as connection:
                return connection.execute(query, parameters).fetchall()
        except UNREADABLE:
            return []

    def figures(self) -> Figures:
        """Judge and history ask for them in turn: of a file that has not changed since, as they were read then."""
        stand = _stand(self.path)
        if self.problem is None and stand is not None and _newest.get(self.path, (None,))[0] == stand:
            return _newest[self.path][1]
        try:
            with closing(self._opened()) as connection:
                figures = read_figures(connection)
        except UNREADABLE:
            return Figures()
        _newest.clear()
        if stand is not None and _stand(self.path) == stand:  # else somebody wrote meanwhile
            _newest[self.path] = (stand, figures)
        return figures

    def last_sample_time(self) -> float | None:
        """Boottime of the newest sample."""
        return self.figures().last


_Stand = tuple[tuple[int, int] | None, ...]
_newest: dict[Path, tuple[_Stand, Figures]] = {}  # those that were read last


def _stand(path: Path) -> _Stand | None:
    """Of the file and its WAL. None: there is no such file."""
    stamps = stamps_of((path, f"{path}-wal"))
    return stamps if stamps[0] is not None else None


def stamps_of(paths: Iterable[str | os.PathLike[str]]) -> _Stand:
    """When each file was last changed, and its size. An empty one is none: SQLite makes an empty WAL for a reader."""
    stamps: list[tuple[int, int] | None] = []
    for path in paths:
        try:
            status = os.stat(path)
            stamps.append((status.st_mtime_ns, status.st_size) if status.st_size else None)
        except OSError:
            stamps.append(None)
    return tuple(stamps)


def read_figures(connection: sqlite3.Connection) -> Figures:
    """One pass over each table; a damaged table costs its own figures only."""
    job = _first(
        connection,
        f"SELECT max({USE}), max(anon), max(shmem), max(swap), max(file), max(kernel), max(t) FROM job",
        7,
    )
    host = _first(connection, "SELECT min(mem_available), max(t) FROM host", 2)
    times = [t for t in (number(job[6]), number(host[1])) if t is not None]
    use, anon, shmem, swap, cache, kernel = (whole(value) for value in job[:6])
    seen = f"SELECT source FROM look WHERE t IN (SELECT t FROM job WHERE {USE} = {use or 0}) LIMIT 1"
    source = _first(connection, seen, 1)[0]
    peaks = Peaks(
        use,
        anon,
        shmem,
        swap,
        _gpu_peak(connection),
        whole(host[0]),
        source if source in LOOKS else "samples",
    )
    largest = _first(connection, "SELECT max(file), max(anon) FROM process", 2)
    return Figures(peaks, max(times, default=None), cache, kernel, *map(whole, largest))


def _gpu_peak(connection: sqlite3.Connection) -> int | None:
    """The most all cards held together at one look. Piece by piece: sorting half a million rows takes a second."""
    highest: int | None = None
    query = "SELECT max(s) FROM (SELECT sum(job_used) AS s FROM gpu WHERE rowid BETWEEN ? AND ? GROUP BY t)"
    # at a quarter of the price: no more than the highest figure on all cards
    bound = "SELECT max(job_used), max(idx), min(idx) FROM gpu WHERE rowid BETWEEN ? AND ?"
    try:
        for first, last in pieces(connection, "gpu"):
            most, cards, least = connection.execute(bound, (first - _CARDS, last)).fetchone()
            known = isinstance(most, int) and isinstance(cards, int) and isinstance(least, int) and least >= 0
            if known and highest is not None and most * (cards + 1) <= highest:
                continue
            # a look that reaches over the edge is whole in the next piece
            peak = whole(connection.execute(query, (first - _CARDS, last)).fetchone()[0])
            if peak is not None:
                highest = peak if highest is None else max(highest, peak)
    except UNREADABLE:
        pass
    return highest


def _first(connection: sqlite3.Connection, query: str, columns: int) -> Row:
    try:
        return tuple(connection.execute(query).fetchone() or (None,) * columns)
    except UNREADABLE:
        return (None,) * columns


def whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def number(value: object) -> float | None:
    """Of seconds: finite, and such that a calendar has a date for them."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e12 else None  # no NaN either


def open_recording(path: Path, agent_folder: Path | None = None) -> Recording:
    """Never fails: what cannot be read is said in ``problem``."""
    if not os.path.exists(path):
        return Recording(path, problem="there is no recording")
    try:
        with closing(connect(path)) as connection:
            rows = connection.execute("SELECT key, value FROM meta").fetchall()
    except UNREADABLE as error:
        words = "its tables are damaged" if isinstance(error, UnicodeDecodeError) else str(error)
        return Recording(path, problem=f"the recording cannot be read: {words}")
    meta = {str(key): str(value) for key, value in rows if value is not None}
    schema = meta.get("schema", str(VERSION))
    if not (schema.isascii() and schema.isdigit() and len(schema) < 10):
        return Recording(path, problem="the recording cannot be read: its version is damaged")
    if int(schema) > VERSION:
        newer = f"it was written by a newer oomproof (schema {schema}, this one reads {VERSION})"
        return Recording(path, problem=f"{newer}; upgrade: pip install -U oomproof")
    return Recording(path, meta, agent_folder=agent_folder)
