"""Reads a recording, whole or cut: of a live run, after SIGKILL, after a power cut."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from oomproof.recording.schema import VERSION

Row = tuple[object, ...]


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
class Recording:
    """What an attempt's file holds. ``problem`` says in words what could not be read."""

    path: Path
    meta: dict[str, str] = field(default_factory=dict)
    problem: str | None = None

    @property
    def wall_offset(self) -> float:
        """Add this to a sample's time to get wall-clock seconds."""
        return float(self.meta.get("wall_offset", 0.0))

    def rows(self, query: str, parameters: tuple[object, ...] = ()) -> list[Row]:
        """Rows of a query; none when the file cannot be read (``problem`` then says why)."""
        if self.problem:
            return []
        try:
            with closing(connect(self.path)) as connection:
                return connection.execute(query, parameters).fetchall()
        except sqlite3.Error:
            return []

    def peaks(self) -> Peaks:
        job = self.rows("SELECT max(anon+shmem+swap), max(anon), max(shmem), max(swap) FROM job")
        host = self.rows("SELECT min(mem_available) FROM host")
        gpu = self.rows("SELECT max(s) FROM (SELECT sum(job_used) AS s FROM gpu GROUP BY t)")
        first = [row[0] if row else (None,) for row in (job, host, gpu)]
        use, anon, shmem, swap = (*first[0], None, None, None)[:4]
        return Peaks(use, anon, shmem, swap, first[2][0], first[1][0])  # type: ignore[arg-type]

    def last_sample_time(self) -> float | None:
        """Boottime of the newest row of any kind."""
        rows = self.rows("SELECT max(t) FROM (SELECT max(t) AS t FROM host UNION SELECT max(t) FROM job)")
        return rows[0][0] if rows else None  # type: ignore[return-value]


def connect(path: Path) -> sqlite3.Connection:
    """Read-only. A recording on a read-only disk has no room for the WAL index: read what the file holds then, which
    misses what stands only in the WAL. Raises sqlite3.Error for what is no recording."""
    connection = sqlite3.connect(f"file:{_quote(path)}?mode=ro", uri=True, timeout=2.0)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        connection = sqlite3.connect(f"file:{_quote(path)}?mode=ro&immutable=1", uri=True)
    return connection


def _quote(path: Path) -> str:
    from urllib.parse import quote

    return quote(str(path))


def open_recording(path: Path) -> Recording:
    """Never fails: what cannot be read is said in ``problem``."""
    if not path.exists():
        return Recording(path, problem="there is no recording")
    try:
        with closing(connect(path)) as connection:
            meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    except sqlite3.Error as error:
        return Recording(path, problem=f"the recording cannot be read: {error}")
    if not str(meta.get("schema", VERSION)).isdigit() or int(meta.get("schema", VERSION)) > VERSION:
        newer = f"it was written by a newer oomproof (schema {meta['schema']}, this one reads {VERSION})"
        return Recording(path, problem=f"{newer}; upgrade: pip install -U oomproof")
    return Recording(path, meta)
