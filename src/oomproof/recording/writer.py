"""Writes a recording from a thread of its own: callers never wait for the disk, drops are counted."""

from __future__ import annotations

import json
import os
import queue
import sqlite3
import threading
import time
from pathlib import Path

from oomproof.machine.clock import boottime
from oomproof.recording.schema import ADDED, INSERTS, TABLES, VERSION
from oomproof.recording.thinning import CAP, Thinner

Row = tuple[object, ...]

# About a minute of full-speed sampling (10 Hz, host + job + a few processes): a disk that stalls longer loses rows,
# never the job.
_QUEUE_ROWS = 3000
_COMMIT_SECONDS = 1.0


class Writer:
    """Put rows from any thread; one commit a second, synced (FULL: measured 10 of 10 commits survive a power cut)."""

    def __init__(self, path: Path, meta: dict[str, str], cap: int = CAP) -> None:
        self._path = path
        self._thinner = Thinner(cap)
        self._meta = {"schema": str(VERSION), **meta}
        self._queue: queue.Queue[tuple[str, Row] | None] = queue.Queue(_QUEUE_ROWS)
        self.dropped = 0
        self.trouble: str | None = None  # why rows are missing, in words
        self._thread = threading.Thread(target=self._work, name="recording", daemon=True)
        self._thread.start()

    def put(self, table: str, row: Row) -> None:
        try:
            self._queue.put_nowait((table, row))
        except queue.Full:
            self.dropped += 1

    def event(self, t: float, kind: str, text: str, **data: object) -> None:
        self.put("event", (t, kind, text, json.dumps(data) if data else None))

    def close(self, timeout: float = 3.0) -> None:
        """Writes what is queued. A disk that hangs is given up after the timeout: the user's shell comes first."""
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)

    def _open(self) -> sqlite3.Connection:
        # made by us first: SQLite would make it, its WAL and its index readable by others
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._path, isolation_level=None, cached_statements=16)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA cache_size=-256")  # KiB; the recording is only appended to
        connection.executescript("BEGIN;" + TABLES + "COMMIT;")
        for table, column in ADDED:
            try:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
            except sqlite3.OperationalError:
                pass  # it has it
        connection.executemany("INSERT OR REPLACE INTO meta VALUES (?,?)", self._meta.items())
        self._thinner.resume(connection)
        return connection

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        done = False
        while not done:
            batch, done = self._batch()
            if not batch and connection is not None:
                continue
            try:
                connection = connection or self._open()
                connection.execute("BEGIN")
                for table, row in batch:
                    connection.execute(INSERTS[table], row)
                if self.dropped:
                    connection.execute(
                        "INSERT OR REPLACE INTO meta VALUES ('dropped', ?)", (str(self.dropped),)
                    )
                if self.trouble:
                    connection.execute("INSERT OR REPLACE INTO meta VALUES ('trouble', ?)", (self.trouble,))
                told = self._thinner.step(connection)
                if told is not None:
                    connection.execute(INSERTS["event"], (boottime(), "thinned", told, None))
                connection.execute("COMMIT")
            except (
                sqlite3.Error,
                OSError,
            ) as error:  # disk full, I/O error, read-only: the job goes on without a recording
                self.dropped += len(batch)
                self.trouble = f"{len(batch)} rows not written: {error}"
                if connection is not None:
                    try:
                        connection.execute("ROLLBACK")
                    except sqlite3.Error:
                        pass  # the failed statement has rolled back by itself
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                pass  # a full disk may refuse the last checkpoint; the WAL still holds the rows

    def _batch(self) -> tuple[list[tuple[str, Row]], bool]:
        """Rows of about one second, and whether these were the last."""
        item = self._queue.get()
        if item is None:
            return [], True
        batch = [item]
        deadline = time.monotonic() + _COMMIT_SECONDS
        urgent = item[0] == "event"
        while True:
            wait = 0.0 if urgent else deadline - time.monotonic()
            try:
                item = self._queue.get(timeout=wait) if wait > 0 else self._queue.get_nowait()
            except queue.Empty:
                return batch, False
            if item is None:
                return batch, True
            urgent = urgent or item[0] == "event"  # an event may be the last thing we ever write
            batch.append(item)
