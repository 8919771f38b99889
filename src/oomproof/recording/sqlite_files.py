"""Recordings as SQLite files: opened read-only, whatever state they are in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from oomproof.recording.schema import TABLES
from oomproof.recording.sqlite_module import sqlite3

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
    connection.text_factory = _text
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _text(data: bytes) -> str:
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
