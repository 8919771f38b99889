"""Reads a recording, whole or cut: of a live run, after SIGKILL, after a power cut, with damaged bytes in it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from oomproof.recording.schema import VERSION

Row = tuple[object, ...]
Found = TypeVar("Found")

# What a damaged file makes SQLite or Python's reading of it raise. UnicodeDecodeError, a ValueError: SQLite quotes damaged
# names in its messages.
UNREADABLE = (sqlite3.Error, ValueError, OverflowError, MemoryError, OSError)
_CARDS = 64  # rows of one look at most


@dataclass(frozen=True)
class Peaks:
    """Highest values seen, in bytes; None where nothing was sampled."""

    use: int | None = None
    anon: int | None = None
    shmem: int | None = None
    swap: int | None = None
    gpu: int | None = None
    lowest_available: int | None = None


@dataclass(frozen=True)
class Figures:
    """What a line of the history needs of a recording, read in one go."""

    peaks: Peaks = Peaks()
    last: float | None = None  # boottime of the newest sample


@dataclass(frozen=True)
class Recording:
    """What an attempt's file holds. ``problem`` says in words what could not be read."""

    path: Path
    meta: dict[str, str] = field(default_factory=dict)
    problem: str | None = None

    @property
    def wall_offset(self) -> float:
        """Add this to a sample's time to get wall-clock seconds."""
        try:
            offset = float(self.meta.get("wall_offset", 0.0))
        except ValueError:
            return 0.0
        return offset if abs(offset) < 1e12 else 0.0

    def rows(self, query: str, parameters: tuple[object, ...] = ()) -> list[Row]:
        """Rows of a query; none when the file cannot be read (``problem`` then says why)."""
        return self.ask(lambda connection: connection.execute(query, parameters).fetchall(), [])

    def ask(self, question: Callable[[sqlite3.Connection], Found], otherwise: Found) -> Found:
        """Several queries over one connection; ``otherwise`` when the file cannot be read."""
        if self.problem:
            return otherwise
        try:
            with closing(connect(self.path)) as connection:
                return question(connection)
        except UNREADABLE:
            return otherwise

    def figures(self) -> Figures:
        return self.ask(read_figures, Figures())

    def peaks(self) -> Peaks:
        return self.figures().peaks

    def last_sample_time(self) -> float | None:
        """Boottime of the newest sample."""
        return self.figures().last


def read_figures(connection: sqlite3.Connection) -> Figures:
    """One pass over each table; a damaged table costs its own figures only."""
    job = _first(
        connection, "SELECT max(anon+shmem+swap), max(anon), max(shmem), max(swap), max(t) FROM job", 5
    )
    host = _first(connection, "SELECT min(mem_available), max(t) FROM host", 2)
    times = [t for t in (number(job[4]), number(host[1])) if t is not None]
    use, anon, shmem, swap = (whole(value) for value in job[:4])
    return Figures(
        Peaks(use, anon, shmem, swap, _gpu_peak(connection), whole(host[0])), max(times) if times else None
    )


def _gpu_peak(connection: sqlite3.Connection) -> int | None:
    """The most all cards held together at one look. Piece by piece: sorting half a million rows takes a second."""
    highest: int | None = None
    query = "SELECT max(s) FROM (SELECT sum(job_used) AS s FROM gpu WHERE rowid BETWEEN ? AND ? GROUP BY t)"
    try:
        for first, last in pieces(connection, "gpu"):
            # a look that reaches over the edge is whole in the next piece
            found = whole(connection.execute(query, (first - _CARDS, last)).fetchone()[0])
            if found is not None:
                highest = found if highest is None else max(highest, found)
    except UNREADABLE:
        pass
    return highest


def pieces(connection: sqlite3.Connection, table: str, rows: int = 2000) -> Iterator[tuple[int, int]]:
    """The first and last rowid of each run of that many rows, in their order."""
    query = f"SELECT min(rowid), max(rowid) FROM (SELECT rowid FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT ?)"
    at = -1
    while True:
        first, last = connection.execute(query, (at, rows)).fetchone()
        if not isinstance(first, int) or not isinstance(last, int) or last <= at:
            return  # the end, or damage that leads back
        yield first, last
        at = last


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


def connect(path: Path) -> sqlite3.Connection:
    """Read-only. A recording on a read-only disk has no room for the WAL index: read what the file holds then, which
    misses what stands only in the WAL. Raises one of UNREADABLE for what is no recording."""
    from urllib.parse import quote

    name = f"file:{quote(os.fsencode(path))}?mode=ro"
    try:
        return _connect(name, timeout=2.0)
    except sqlite3.OperationalError:
        return _connect(f"{name}&immutable=1", timeout=2.0)


def _connect(name: str, timeout: float) -> sqlite3.Connection:
    connection = sqlite3.connect(name, uri=True, timeout=timeout)
    connection.text_factory = _text
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def open_recording(path: Path) -> Recording:
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
    return Recording(path, meta)
