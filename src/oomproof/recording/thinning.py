"""Keeps a recording below its cap: old samples become fewer, a little at each commit; the end stays as it was."""

from __future__ import annotations

from collections.abc import Iterable

from oomproof.recording.sqlite_module import sqlite3
from oomproof.units import format_size

CAP = 256 << 20  # a calm job writes 20 MB a day, one under pressure ten times that
_WINDOWS = (10, 60, 600)  # seconds that keep one sample; each further pass over the file is coarser
_ROWS = 4000  # looked at in one step: some 10 ms, so that the queue never fills meanwhile
_FRESH = 40_000  # newest rows of a table that stay: an hour at ten samples a second, half a day at one
_EVERY = 60  # commits between two looks at the size
_LOW = 0.8  # of the cap, down to which it is thinned

# (what makes a row worth keeping, whose row it is, how many windows make one)
_TABLES = {
    "host": ("-coalesce(mem_available, 0)", "0", 1),
    "job": ("coalesce(anon,0)+coalesce(shmem,0)+coalesce(swap,0)", "0", 1),
    "process": ("coalesce(anon,0)+coalesce(shmem,0)+coalesce(swap,0)", "pid", 6),
    "other_job": ("coalesce(ram,0)+coalesce(swap,0)", "pid", 6),
    "gpu": ("coalesce(job_used, used)", "idx", 1),
}
_TOGETHER = ("host", "job")  # written with one time, read side by side

_Row = tuple[int, float, float, int]  # rowid, time, worth, whose


def keep(rows: Iterable[_Row], window: float) -> set[float]:
    """The times to keep: of each window and owner the first row, and the one that held most or had least left."""
    first: dict[tuple[int, int], float] = {}
    best: dict[tuple[int, int], tuple[float, float]] = {}
    for _, t, worth, whose in rows:
        window_key = (whose, int(t // window))
        first.setdefault(window_key, t)
        if window_key not in best or worth > best[window_key][0]:
            best[window_key] = (worth, t)
    return {*first.values(), *(t for _, t in best.values())}


class Thinner:
    """``step`` after every commit. What it deletes is free space for the rows to come: the file stops growing."""

    def __init__(self, cap: int = CAP) -> None:
        self._cap = cap
        self._level = -1  # of _WINDOWS; -1: nothing thinned yet
        self._from: dict[str, int] = {}  # the first row of each table not yet thinned at this level
        self._busy = False
        self._calls = 0

    def resume(self, connection: sqlite3.Connection) -> None:
        """Where another process recorded before us (``oomproof watch``)."""
        row = connection.execute("SELECT value FROM meta WHERE key='thinned'").fetchone()
        if row is not None and str(row[0]).isdigit() and int(row[0]) in _WINDOWS:
            self._level = _WINDOWS.index(int(row[0]))

    def step(self, connection: sqlite3.Connection) -> str | None:
        """In words, when a level begins."""
        self._calls += 1
        if not self._busy and self._calls % _EVERY:
            return None
        self._busy = self._used(connection) > self._cap * (_LOW if self._busy else 1.0)
        if not self._busy or (self._level >= 0 and self._thin(connection)):
            return None
        if self._level + 1 >= len(_WINDOWS):
            self._busy = False  # a sample in ten minutes is as few as it gets
            return None
        self._level, self._from = self._level + 1, {}
        window = _WINDOWS[self._level]
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('thinned', ?)", (str(window),))
        return (
            f"the recording passed {format_size(self._cap)}: of its older samples, one in {window} s is kept"
        )

    @staticmethod
    def _used(connection: sqlite3.Connection) -> int:
        size, pages, free = (
            int(connection.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_size", "page_count", "freelist_count")
        )
        return size * (pages - free)

    def _thin(self, connection: sqlite3.Connection) -> bool:
        """A piece of each table; False when only fresh rows are left."""
        window = _WINDOWS[self._level]
        pieces = {table: self._piece(connection, table) for table in _TABLES}
        until = min((pieces[table][-1][1] for table in _TOGETHER if pieces[table]), default=0.0)
        both: set[float] = set()
        for table in _TOGETHER:
            # the same span of time of both, so that what is kept of one is kept of the other
            pieces[table] = [row for row in pieces[table] if row[1] <= until]
            both |= keep(pieces[table], window)
        for table, rows in pieces.items():
            if not rows:
                continue
            kept = both if table in _TOGETHER else keep(rows, window * _TABLES[table][2])
            gone = [(row[0],) for row in rows if row[1] not in kept]
            connection.executemany(f"DELETE FROM {table} WHERE rowid = ?", gone)
            self._from[table] = rows[-1][0] + 1
        return any(pieces.values())

    def _piece(self, connection: sqlite3.Connection, table: str) -> list[_Row]:
        worth, whose, _ = _TABLES[table]
        first, last = connection.execute(f"SELECT min(rowid), max(rowid) FROM {table}").fetchone()
        if first is None:
            return []
        begin, end = max(self._from.get(table, 0), first), last - _FRESH
        query = (
            f"SELECT rowid, t, {worth}, {whose} FROM {table} WHERE rowid >= ? AND rowid < ? AND t IS NOT NULL"
            " ORDER BY rowid LIMIT ?"
        )
        return connection.execute(query, (begin, end, _ROWS)).fetchall()
