"""A copy of a recording to send away: with what still stood in the WAL, its texts masked, old rows thinned."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from oomproof.recording.sqlite_files import UNREADABLE, connect
from oomproof.recording.sqlite_module import sqlite3
from oomproof.units import format_size

CAP = 32 << 20
_FULL_SECONDS = 3600.0  # always kept whole: the last hour
_SERIES = ("host", "job", "process", "gpu")


Mask = Callable[[str, str], str]  # a text and where it stands → what may be sent away


def redacted_copy(path: Path, mask: Mask) -> tuple[bytes | None, str | None]:
    """(the file, what a reader should know). A recording that cannot be read cannot be masked: it stays at home."""
    if not path.exists():
        return None, "there is no recording"
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
