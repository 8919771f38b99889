"""Writes a recording from a thread of its own: callers never wait for the disk, drops are counted."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from pathlib import Path

from oomproof.machine.clock import boottime
from oomproof.recording.schema import INSERTS, TABLES, VERSION, storable
from oomproof.recording.sqlite_module import sqlite3
from oomproof.recording.thinning import CAP, Thinner

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
