"""One SQLite file with the ledger's tables: made, looked over after a reboot, read row by row, saved when damaged."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from oomproof.ledger.ledger_entries import Entry, Peak
from oomproof.machine import processes
from oomproof.recording.sqlite_files import decoded, sqlite3, storable
from oomproof.records import asdict, fields

VERSION = 1


def _types_of(words: Any) -> tuple[type, ...]:
    """What a column may hold, of the field's "float | None". SQLite has no truth values, and a whole number is one too."""
    kinds: dict[str, tuple[type, ...]] = {
        "str": (str,), "int": (int,), "bool": (int,), "float": (float, int), "None": (type(None),),
    }  # fmt: skip
    return tuple(kind for word in str(words).split(" | ") for kind in kinds[word])


_TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT)",
    "CREATE TABLE entry (run TEXT PRIMARY KEY, uid INT, name TEXT, key TEXT, state TEXT, boot TEXT, asked REAL, "
    "front_pid INT, front_start INT, folder TEXT, admitted REAL, priority INT, need_low INT, need INT, basis TEXT, "
    "gpu_need INT, gpu INT, cap INT, twin TEXT, keeper_pid INT, keeper_start INT, job_pid INT, job_start INT, "
    "cgroup TEXT, cgroup_version INT)",
    "CREATE TABLE peak (run TEXT PRIMARY KEY, key TEXT, wall REAL, use INT, gpu INT, seconds REAL, whole INT)",
    "CREATE INDEX peak_by_key ON peak (key, wall)",
)
_ENTRY = [field.name for field in fields(Entry)]
PEAK_COLUMNS = [field.name for field in fields(Peak)]
_ENTRY_TYPES = [_types_of(field.type) for field in fields(Entry)]
_PEAK_TYPES = [_types_of(field.type) for field in fields(Peak)]
GET_ENTRIES = f"SELECT {','.join(_ENTRY)} FROM entry"
PUT_ENTRY = f"INSERT OR REPLACE INTO entry ({','.join(_ENTRY)}) VALUES ({','.join('?' * len(_ENTRY))})"
PUT_PEAK = (
    f"INSERT OR REPLACE INTO peak ({','.join(PEAK_COLUMNS)}) VALUES ({','.join('?' * len(PEAK_COLUMNS))})"
)
# the last: a table is missing
_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


def _is_broken(error: Exception) -> bool:
    """Whether the file itself is damaged. SQLite quotes damaged names in its message, which is then no text either;
    an error without a code is Python's, about a value it could not read."""
    if isinstance(error, sqlite3.OperationalError | sqlite3.DatabaseError):
        code = getattr(error, "sqlite_errorcode", None)
        of_python = isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError
        return of_python if code is None else code & 0xFF in _BROKEN
    return isinstance(error, UnicodeDecodeError)


def _described(error: Exception) -> str:
    return "its tables cannot be read" if isinstance(error, UnicodeDecodeError) else str(error)


class Broken(Exception):
    """Not a ledger this version can read; the reason in words."""


class LedgerFile:
    """One SQLite file with the ledger's tables. Raises Broken, or sqlite3.Error when the disk does not take it."""

    def __init__(
        self,
        path: Path,
        mode: int,
        lock_seconds: float,
        check: bool = True,
        rebuild: Callable[[], list[Entry]] = list,
    ) -> None:
        """``lock_seconds``: how long it waits for somebody else's."""
        self.path = path
        self.rebuilt = 0  # entries of what runs, written into a file that was empty
        # made by us first: SQLite would make it, its WAL and its index with whatever the umask leaves
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        with contextlib.suppress(OSError):
            if os.fstat(fd).st_uid == os.getuid() and stat.S_IMODE(os.fstat(fd).st_mode) != mode:
                os.fchmod(fd, mode)
        os.close(fd)
        self._connection = sqlite3.connect(
            path, timeout=lock_seconds, isolation_level=None, check_same_thread=False, cached_statements=16
        )
        self._connection.text_factory = decoded
        try:
            self._prepare(check, rebuild)
        except Exception as error:
            self._connection.close()
            if _is_broken(error):
                raise Broken(f"it is damaged ({_described(error)})") from error
            raise
        self._inodes = _inodes(path)

    def _prepare(self, check: bool, rebuild: Callable[[], list[Entry]]) -> None:
        run = self._connection.execute
        (version,) = run("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise Broken(f"a newer oomproof wrote it (version {version}, this one reads {VERSION})")
        if version == 0:
            if run(
                "SELECT count(*) FROM sqlite_master WHERE name NOT IN ('meta', 'entry', 'peak')"
            ).fetchone()[0]:
                raise Broken("it is some other program's file")
            run("PRAGMA journal_mode=WAL")  # who looks never holds up who decides
            run("BEGIN IMMEDIATE")
            if run("PRAGMA user_version").fetchone() == (0,):  # else another start was first
                for statement in _TABLES:
                    run(statement)
                # new, or lost: whoever opens it next finds what runs, or waits for this
                for entry in rebuild():
                    self.execute(PUT_ENTRY, asdict(entry).values())
                    self.rebuilt += 1
                run(f"PRAGMA user_version={VERSION}")
            run("COMMIT")
        # No sync for entries: they mean nothing after a power cut, and a sync would make every start wait for whatever
        # checkpoint a training writes to the same disk. What is synced: peaks, and moving the WAL into the file.
        run("PRAGMA synchronous=OFF")
        run("PRAGMA wal_autocheckpoint=0")
        run("PRAGMA cache_size=-128")  # KiB
        if check:
            self._check_after_boot()

    def _check_after_boot(self) -> None:
        """The price of not syncing: a power cut may have torn the file, and only a look over all of it tells."""
        run, boot = self._connection.execute, processes.boot_id()
        if run("SELECT value FROM meta WHERE key = 'boot'").fetchall() == [(boot,)]:
            return
        answer = run("PRAGMA quick_check(1)").fetchone()[0]
        if answer != "ok":
            raise Broken(f"it is damaged ({answer})")
        with contextlib.suppress(sqlite3.OperationalError):  # full or busy: the next one looks again
            run("INSERT OR REPLACE INTO meta VALUES ('boot', ?)", (boot,))

    def execute(self, statement: str, values: Iterable[object] = ()) -> list[tuple[object, ...]]:
        try:
            return self._connection.execute(statement, tuple(map(storable, values))).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if _is_broken(error):
                raise Broken(f"it is damaged ({_described(error)})") from error
            raise

    def is_there(self) -> bool:
        """Whether its name still leads to it: who removes or empties the ledger must not part those who have it open
        from those who come later."""
        return _inodes(self.path) == self._inodes

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # a full disk may refuse the last checkpoint
            self._connection.execute("PRAGMA synchronous=NORMAL")  # the last one to close settles the WAL
            self._connection.close()


def _inodes(path: Path) -> list[tuple[int, int] | None]:
    """Of the file and of its WAL, which stands there as long as anybody has the file open."""
    inodes: list[tuple[int, int] | None] = []
    for name in (str(path), f"{path}-wal"):
        try:
            stand = os.stat(name)
            inodes.append((stand.st_dev, stand.st_ino))
        except OSError:
            inodes.append(None)
    return inodes


def entries_of(rows: list[tuple[object, ...]]) -> list[Entry]:
    """Raises Broken where a column holds what does not belong there: half a reservation is worse than a new file."""
    if not all(_fit(row, _ENTRY_TYPES) for row in rows):
        raise Broken("an entry is damaged")
    return [Entry(*row) for row in rows]  # type: ignore[arg-type]


def peaks_of(rows: list[tuple[object, ...]]) -> list[Peak]:
    """Those that are whole: a damaged one is only one run less to learn from."""
    return [Peak(*row[:-1], bool(row[-1])) for row in rows if _fit(row, _PEAK_TYPES)]  # type: ignore


def _fit(row: tuple[object, ...], types: list[tuple[type, ...]]) -> bool:
    return all(isinstance(value, kinds) for value, kinds in zip(row, types, strict=True))


def save_rows(damaged: Path, into: LedgerFile) -> None:
    """As much as can still be read: what past runs held, and the entries of those who wait or are somebody else's. What
    was read off the runs themselves stands already, and counts more."""
    for record, table, types in ((Entry, "entry", _ENTRY_TYPES), (Peak, "peak", _PEAK_TYPES)):
        names = ",".join(field.name for field in fields(record))
        put = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({','.join('?' * len(types))})"
        try:
            with contextlib.closing(sqlite3.connect(damaged)) as connection:
                connection.text_factory = decoded
                for row in connection.execute(f"SELECT {names} FROM {table}"):
                    if _fit(row, types):
                        into.execute(put, row)
        except (sqlite3.Error, ValueError, Broken):
            pass  # the damage begins here
