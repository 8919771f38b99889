"""Recordings as SQLite files: opened read-only, whatever state they are in."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from oomproof.units import format_size

if TYPE_CHECKING:
    import sqlite3 as sqlite3
else:
    # The Python layer over SQLite loads ``datetime``: 0.5 MiB of a guard at rest. The classes are the same ones.
    try:
        import _sqlite3 as sqlite3
    except ImportError:  # another interpreter
        import sqlite3

VERSION = 1  # of the tables
_LARGEST = (1 << 63) - 1  # of SQLite's integers

TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS host (t REAL, mem_total INT, mem_available INT, mem_free INT,
    swap_total INT, swap_free INT, psi_some_us INT, psi_full_us INT);
CREATE TABLE IF NOT EXISTS job (t REAL, anon INT, shmem INT, file INT, swap INT, kernel INT,
    headroom INT, processes INT, shm_total INT, shm_free INT);
CREATE TABLE IF NOT EXISTS look (t REAL, source TEXT);
CREATE TABLE IF NOT EXISTS process (t REAL, pid INT, start INT, role TEXT, name TEXT,
    anon INT, shmem INT, file INT, swap INT, pss INT);
CREATE TABLE IF NOT EXISTS other_job (t REAL, pid INT, start INT, uid INT, name TEXT, managed INT, ram INT, swap INT);
CREATE TABLE IF NOT EXISTS gpu (t REAL, idx INT, used INT, total INT, job_used INT);
CREATE TABLE IF NOT EXISTS phase (t REAL, name TEXT, step INT, pid INT, anon INT, gpu INT);
CREATE TABLE IF NOT EXISTS event (t REAL, kind TEXT, text TEXT, data TEXT);
"""

INSERTS = {
    "host": "INSERT INTO host VALUES (?,?,?,?,?,?,?,?)",
    "job": "INSERT INTO job VALUES (?,?,?,?,?,?,?,?,?,?)",
    # the time of a row of job that is no sample: what the guard or the cgroup saw between two of them
    "look": "INSERT INTO look VALUES (?,?)",
    "process": "INSERT INTO process VALUES (?,?,?,?,?,?,?,?,?,?)",
    "other_job": "INSERT INTO other_job VALUES (?,?,?,?,?,?,?,?)",
    "gpu": "INSERT INTO gpu VALUES (?,?,?,?,?)",
    "phase": "INSERT INTO phase VALUES (?,?,?,?,?,?)",
    "event": "INSERT INTO event VALUES (?,?,?,?)",
}


def storable(value: object) -> object:
    """What SQLite takes: paths and arguments are bytes to the kernel, and a number no machine can hold says nothing."""
    if value is None or isinstance(value, float | bytes):
        return value
    if isinstance(value, int):
        return value if -_LARGEST <= value <= _LARGEST else None
    return str(value).encode("utf-8", "backslashreplace").decode()


_PLAIN = b"/-_.~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# What a damaged file makes SQLite or Python's reading of it raise. UnicodeDecodeError, a ValueError: SQLite quotes damaged
# names in its messages.
UNREADABLE = (sqlite3.Error, ValueError, OverflowError, MemoryError, OSError)


def connect(path: Path) -> sqlite3.Connection:
    """Read-only. A recording on a read-only disk has no space for the WAL index: read what the file holds then, which
    misses what stands only in the WAL. Raises one of UNREADABLE for what is no recording."""
    name = f"file:{_quoted(path)}?mode=ro"
    try:
        return _connect(name, timeout=2.0)
    except sqlite3.OperationalError:
        return _connect(f"{name}&immutable=1", timeout=2.0)


def _quoted(path: Path) -> str:
    """For a name in SQLite's file: form; ``urllib.parse`` would take longer to load than a small recording to read."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in os.fsencode(path))


def _connect(name: str, timeout: float) -> sqlite3.Connection:
    connection = sqlite3.connect(name, uri=True, timeout=timeout)
    connection.text_factory = decoded
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


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


def empty() -> sqlite3.Connection:
    """A recording without a row, in place of one that cannot be read."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(TABLES)
    return connection


CAP = 32 << 20
_FULL_SECONDS = 3600.0  # always kept whole: the last hour
_SERIES = ("host", "job", "process", "gpu")


Mask = Callable[[str, str], str]  # a text and where it stands → what may be sent away


def redacted_copy(path: Path, mask: Mask) -> tuple[bytes | None, str | None]:
    """(the file, what a reader should know). A recording that cannot be read cannot be masked: it stays at home."""
    if not path.exists():
        return None, "there is no recording"
    import tempfile

    with tempfile.TemporaryDirectory(prefix="oomproof-bundle-") as folder:
        copy = Path(folder) / path.name
        try:
            with closing(connect(path)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
            with closing(sqlite3.connect(copy, isolation_level=None)) as target:
                target.execute("PRAGMA journal_mode=DELETE")
                target.execute("PRAGMA secure_delete=ON")
                _mask(target, path.name, mask)
                note = _thin(target) if copy.stat().st_size > CAP else None
                target.execute("VACUUM")  # without it, freed pages would still hold what was masked
            return copy.read_bytes(), note
        except UNREADABLE as error:
            return None, f"left out, it cannot be read and so not be masked: {error}"


def _mask(connection: sqlite3.Connection, name: str, mask: Mask) -> None:
    """Every text in every table, whatever a newer schema may have added."""
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    connection.execute("BEGIN")
    for table in tables:
        for column in [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]:
            texts = connection.execute(
                f'SELECT DISTINCT "{column}" FROM "{table}" WHERE typeof("{column}") IN (\'text\', \'blob\')'
            ).fetchall()
            for (text,) in texts:
                shown = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
                masked = mask(shown, f"{name}, {table}.{column}")
                if masked != shown:
                    connection.execute(
                        f'UPDATE "{table}" SET "{column}" = ? WHERE "{column}" = ?', (masked, text)
                    )
    connection.execute("COMMIT")


def _thin(connection: sqlite3.Connection) -> str:
    """One row in ten of what is older than the last hour, and the highest of each ten of the job's."""
    removed = 0
    for table in _SERIES:
        newest = connection.execute(f"SELECT max(t) FROM {table}").fetchone()[0]
        if newest is None:
            continue
        kept = "rowid % 10 = 0"
        if table == "job":
            kept = "rowid IN (SELECT r FROM (SELECT rowid AS r, max(anon+shmem+swap) FROM job GROUP BY rowid / 10))"
        cursor = connection.execute(
            f"DELETE FROM {table} WHERE t < ? AND NOT ({kept})", (newest - _FULL_SECONDS,)
        )
        removed += cursor.rowcount
    return (
        f"thinned before the last hour ({removed} rows left out, peaks kept) to stay near {format_size(CAP)}"
    )
