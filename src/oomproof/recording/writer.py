"""Writes a recording from a thread of its own: callers never wait for the disk, drops are counted."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from oomproof.machine.clock import boottime
from oomproof.recording.sqlite_files import INSERTS, TABLES, VERSION, sqlite3, storable
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


Row = tuple[object, ...]

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

# About a minute of full-speed sampling (10 Hz, host + job + a few processes): a disk that stalls longer loses rows,
# never the job.
_QUEUE_ROWS = 3000
# A synced commit takes 0.43 ms of CPU. While all is calm it comes with the first rows after five seconds, which are ten apart at
# most: that a power cut may cost. With less headroom, with growth, or when the job changes its phase it costs one second, and
# nothing that came before an event.
_CALM_SECONDS, _SOON_SECONDS = 5.0, 1.0
_LATEST_SECONDS = 15.0  # should nobody say that the rows of a look are complete
_QUEUE_EVENTS = 1000  # more, for events that matter: no number of samples pushes out a job's last exception
_THREAD_AGAIN = 5.0  # seconds between two tries to start the thread where the system had none left


class Writer:
    """Put rows from any thread; each commit is synced (FULL: measured 10 of 10 commits survive a power cut).

    Nothing ends the thread: a row SQLite does not take is left out, a disk that comes back is written to again."""

    def __init__(self, path: Path, meta: dict[str, str], cap: int = CAP) -> None:
        self._path = path
        self._thinner = Thinner(cap)
        self._meta = {"schema": str(VERSION), **meta}
        # told by the guard: there is ample headroom and little growth, rows may wait a little
        self.calm = False
        self._queue: deque[tuple[str, Row]] = deque()
        self._due = threading.Event()  # looks again whether a commit is due
        self._urgent = self._soon = self._closing = False
        self._committed = time.monotonic()
        self.dropped = 0
        self.trouble: str | None = None  # why rows are missing, in words
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None
        self._next_try = 0.0
        self._start()

    def _start(self) -> None:
        """The system may have no thread left now, and one later."""
        self._next_try = time.monotonic() + _THREAD_AGAIN
        thread = threading.Thread(target=self._work, name="recording", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self.trouble = f"rows are not written now: {error}"
            return
        self._thread, self.trouble = thread, None

    def put(self, table: str, row: Row) -> None:
        matters = table == "event" and not str(row[1]).startswith("agent:")
        if len(self._queue) >= _QUEUE_ROWS + (_QUEUE_EVENTS if matters else 0):
            self.dropped += 1
        else:
            self._queue.append((table, row))
        if table == "event":  # it may be the last thing we ever write
            self._urgent = True
            self._due.set()
        elif not self.calm or table == "phase":
            self._soon = True
            self._due.set()
        if self._thread is None and time.monotonic() >= self._next_try:
            self._start()

    def commit_if_due(self) -> None:
        """After the rows of a look: the thread that writes wakes with the one that looks, while their caches are warm."""
        if self._queue and time.monotonic() - self._committed >= _CALM_SECONDS:
            self._urgent = True
            self._due.set()

    def event(self, t: float, kind: str, text: str, **data: object) -> None:
        self.put("event", (t, kind, text, json.dumps(data, default=str) if data else None))

    def close(self, timeout: float = 3.0) -> None:
        """Writes what is queued. A disk that hangs is given up after the timeout: the user's shell comes first."""
        if self._thread is None:
            self._start()
        self._closing = True
        self._due.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _open(self) -> sqlite3.Connection:
        # made by us first: SQLite would make it, its WAL and its index readable by others
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._inode = _inode(os.fstat(fd))
        os.close(fd)
        connection = sqlite3.connect(self._path, isolation_level=None, cached_statements=16)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA cache_size=-256")  # KiB; the recording is only appended to
            connection.executescript("BEGIN;" + TABLES + "COMMIT;")
            self._note(connection, self._meta)
            self._thinner.resume(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    @staticmethod
    def _note(connection: sqlite3.Connection, values: dict[str, str]) -> None:
        rows = [(storable(key), storable(value)) for key, value in values.items()]
        connection.executemany("INSERT OR REPLACE INTO meta VALUES (?,?)", rows)

    def _work(self) -> None:
        done = False
        while not done:
            batch, done = self._batch()
            if not batch and self._connection is not None:
                continue
            try:
                if self._connection is not None and not self._is_there():
                    self._close()
                if self._connection is None:
                    self._connection = self._open()
                self._write(self._connection, batch)
            except Exception as error:  # disk full, read-only, gone: the job continues without a recording
                self._lose(len(batch), error)
                self._close()  # and the next batch tries from the start: the disk may be back
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
                    self._set_aside()
                continue
            try:
                self._thin(self._connection)
            except Exception as error:  # the rows of this batch are safe
                self.trouble = f"old samples could not be thinned: {error}"
                self._close()
        self._close()

    def _is_there(self) -> bool:
        """Whether what we write to still has its name: rows of a removed file would be lost without a word."""
        try:
            return _inode(os.stat(self._path)) == self._inode
        except OSError:
            return False

    def _set_aside(self) -> None:
        """A damaged file takes no row any more: it stays beside the new one, the newest such."""
        for tail in ("", "-wal", "-shm"):
            try:
                os.replace(f"{self._path}{tail}", f"{self._path}.damaged{tail}")
            except OSError:
                pass  # it has no such file, or the disk takes nothing now

    def _write(self, connection: sqlite3.Connection, batch: list[tuple[str, Row]]) -> None:
        connection.execute("BEGIN")
        for table, row in batch:
            try:
                connection.execute(INSERTS[table], row)
            except Exception as error:
                if _of_the_disk(error):
                    raise
                self._repair(connection, table, row)
        notes = {"dropped": str(self.dropped)} if self.dropped else {}
        if self.trouble:
            notes["trouble"] = self.trouble
        if notes:
            self._note(connection, notes)
        connection.execute("COMMIT")

    def _repair(self, connection: sqlite3.Connection, table: str, row: Row) -> None:
        """A path that is no text, a number beyond SQLite's: the row without it. What is still no row is counted."""
        try:
            connection.execute(INSERTS[table], tuple(storable(value) for value in row))
        except Exception as error:
            if _of_the_disk(error):
                raise
            self._lose(1, error)

    def _lose(self, rows: int, error: Exception) -> None:
        self.dropped += rows
        if rows:
            self.trouble = f"{self.dropped} rows not written: {error}"

    def _thin(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")  # costs no sync where nothing is to be thinned
        told = self._thinner.step(connection)
        if told is not None:
            connection.execute(INSERTS["event"], (boottime(), "thinned", told, None))
        connection.execute("COMMIT")

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                pass  # a full disk may refuse the last checkpoint; the WAL still holds the rows

    def _batch(self) -> tuple[list[tuple[str, Row]], bool]:
        """Waits until a commit is due; its rows, and whether these were the last."""
        while not self._closing:
            wait = 0.0 if self._urgent else _SOON_SECONDS if self._soon else _LATEST_SECONDS
            left = self._committed + wait - time.monotonic()
            if left <= 0 and self._queue:
                break
            self._due.wait(left if left > 0 else _LATEST_SECONDS)
            self._due.clear()
        done = self._closing
        self._urgent = self._soon = False
        self._committed = time.monotonic()
        return [self._queue.popleft() for _ in range(len(self._queue))], done


def _of_the_disk(error: Exception) -> bool:
    """Of the file or its disk, not of one row: SQLite says a damaged file by the plain DatabaseError."""
    of_it = (sqlite3.OperationalError, sqlite3.InternalError, OSError, MemoryError)
    return isinstance(error, of_it) or type(error) is sqlite3.DatabaseError


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
