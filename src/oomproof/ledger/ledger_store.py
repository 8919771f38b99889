"""The ledger's file: who runs, who waits, what each command needed before. One small SQLite file, made for bad days.

One lock on its folder covers a whole decision, so two starts at the same instant cannot both win. A file that cannot be
read is kept aside and begun anew; a disk that takes no more moves the entries of this boot into the runtime folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from oomproof.errors import OomproofError
from oomproof.ledger.ledger_entries import Entry, Peak
from oomproof.ledger.ledger_folder import ledger_folder, ledger_name, spare_file
from oomproof.machine import processes
from oomproof.recording.schema import storable
from oomproof.records import asdict, fields

VERSION = 1
LOCK_SECONDS = (
    10.0  # a decision takes milliseconds; whoever holds the lock longer is stopped or hangs on its disk
)
KEPT_PER_COMMAND = 20


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
_PEAK = [field.name for field in fields(Peak)]
_ENTRY_TYPES = [_types_of(field.type) for field in fields(Entry)]
_PEAK_TYPES = [_types_of(field.type) for field in fields(Peak)]
_GET_ENTRIES = f"SELECT {','.join(_ENTRY)} FROM entry"
_PUT_ENTRY = f"INSERT OR REPLACE INTO entry ({','.join(_ENTRY)}) VALUES ({','.join('?' * len(_ENTRY))})"
_PUT_PEAK = f"INSERT OR REPLACE INTO peak ({','.join(_PEAK)}) VALUES ({','.join('?' * len(_PEAK))})"
_BROKEN = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,
)  # the last: a table is missing


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


class Busy(Exception):
    """Somebody has held the lock for longer than any decision takes."""


class _File:
    """One SQLite file with the ledger's tables. Raises Broken, or sqlite3.Error when the disk does not take it."""

    def __init__(
        self, path: Path, mode: int, check: bool = True, rebuild: Callable[[], list[Entry]] = list
    ) -> None:
        self.path = path
        self.rebuilt = 0  # entries of what runs, written into a file that was empty
        # made by us first: SQLite would make it, its WAL and its index with whatever the umask leaves
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        with contextlib.suppress(OSError):
            if os.fstat(fd).st_uid == os.getuid() and stat.S_IMODE(os.fstat(fd).st_mode) != mode:
                os.fchmod(fd, mode)
        os.close(fd)
        self._connection = sqlite3.connect(
            path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=16
        )
        self._connection.text_factory = _text
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
                    self.execute(_PUT_ENTRY, asdict(entry).values())
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


class Ledger:
    """Opened for one question or one wait, then closed. ``notes`` is what the user should be told."""

    def __init__(
        self,
        folder: Path,
        shared: bool = False,
        spare: Path | None = None,
        rebuild: Callable[[], list[Entry]] = list,
    ) -> None:
        self.folder, self.shared = folder, shared
        self.path = folder / ledger_name()
        self._spare_path = spare
        self._rebuild = rebuild
        self.notes: list[str] = []
        self._lock: int | None = None
        self._main: _File | None = None
        self._spare: _File | None = None
        self._pending: list[tuple[str, tuple[object, ...]]] = []
        self._deciding = False
        self._rebuilt: list[Entry] | None = None

    # --- opening ------------------------------------------------------------------------------------------------

    def _file(self) -> _File | None:
        """The file on disk; None when the disk does not take it."""
        if self._main is not None and not self._main.in_transaction and not self._main.is_there():
            self._main.close()
            self._main = None
        if self._main is not None:
            return self._main
        try:
            self._open()
        except Broken as reason:
            self._start_new_file(reason)
        except (OSError, sqlite3.Error) as error:
            self._note(f"the reservations file {self.path} cannot be used ({_words(error)})")
        return self._main

    def _open(self) -> _File:
        if not _has_bytes(self.path):
            with self._locked():  # it is made by one at a time, so an empty one here was emptied
                if not _has_bytes(self.path):
                    for tail in ("", "-wal", "-shm"):  # those who have it open see that it went, and follow
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(f"{self.path}{tail}")
                self._main = self._made()
        else:
            self._main = self._made()
        if self._main.rebuilt:
            self._note(f"the reservations file was lost; {_entered_again(self._main.rebuilt)}")
        return self._main

    def _made(self) -> _File:
        return _File(self.path, 0o660 if self.shared else 0o600, rebuild=self._rebuild)

    def _start_new_file(self, reason: Broken) -> None:
        """Under the lock, and only if nobody else has done so meanwhile."""
        with self._locked():
            if self._main is not None:
                self._main.close()
                self._main = None
            main: _File | None = None
            try:
                main = self._open()
                _entries(main.execute(_GET_ENTRIES))
                main.execute("SELECT count(*) FROM peak")
                self._take_spare_decision()
                return
            except Broken:
                if main is not None:
                    main.close()
                self._main = None
            except (OSError, sqlite3.Error):
                return
            aside = self.path.with_name(f"{self.path.name}.{time.strftime('%Y%m%d-%H%M%S')}.kept")
            try:
                os.rename(self.path, aside)
                for tail in ("-wal", "-shm"):
                    with contextlib.suppress(FileNotFoundError):
                        os.rename(f"{self.path}{tail}", f"{aside}{tail}")
                self._main = self._made()
            except (OSError, sqlite3.Error, Broken) as error:
                self._note(
                    f"the reservations file {self.path} cannot be read: {reason}; nor begun anew ({_words(error)})"
                )
                return
            _save_rows(aside, self._main)
            count = self._main.rebuilt
            runs = _entered_again(count) if count else "nothing runs now"
            self._note(
                f"the reservations file could not be read: {reason}. It is now {aside}, a new one was begun; {runs}"
            )
            self._take_spare_decision()

    def _take_spare_decision(self) -> None:
        """The damage was found in the middle of a decision: what it had written goes into the new file."""
        if self._deciding and self._main is not None:
            with contextlib.suppress(sqlite3.Error, Broken):  # then the spare file takes it
                self._main.execute("BEGIN IMMEDIATE")
                for statement, values in self._pending:
                    self._main.execute(statement, values)

    def _spare_file(self, make: bool) -> _File | None:
        """Entries that the disk did not take: in the runtime folder, which is gone after a reboot, as they are."""
        if self._spare is None and self._spare_path is not None and (make or self._spare_path.exists()):
            try:
                self._spare = _File(self._spare_path, 0o600, check=False)
            except Broken:
                if self._lock is not None:  # never under the eyes of somebody who decides
                    with contextlib.suppress(OSError):
                        self._spare_path.unlink()
            except (OSError, sqlite3.Error):
                pass
        return self._spare

    # --- the lock -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One decision at a time, over all processes. The lock is on the folder: a full disk cannot refuse it."""
        if self._lock is not None:
            yield
            return
        try:
            fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            yield  # no folder, so no file either: SQLite's own lock on the spare one must do
            return
        try:
            _flock(fd)
            self._lock = fd
            yield
        finally:
            self._lock = None
            os.close(fd)

    @contextlib.contextmanager
    def decision(self) -> Iterator[None]:
        """What is read and written inside happens at one instant for everybody else. Raises Busy."""
        with self._locked():
            self._pending, self._deciding = [], False
            for file in filter(None, (self._file(), self._spare_file(make=False))):
                try:
                    file.execute("BEGIN IMMEDIATE")
                    if file is self._main:  # damage found later would take along what is written now
                        _entries(file.execute(_GET_ENTRIES))
                except sqlite3.Error:
                    pass  # what is written goes to the other file
                except Broken as reason:
                    if file is self._main:
                        self._deciding = True
                        self._start_new_file(reason)
            self._deciding = True
            try:
                yield
            except BaseException:
                for ledger_file in (self._main, self._spare):
                    _finish(ledger_file, "ROLLBACK")
                raise
            finally:
                self._deciding = False
            trouble = _finish(self._main, "COMMIT")
            if trouble is not None:  # only now does the disk say that it is full
                self._move_to_spare(trouble)
            elif self._pending and self._main is not None and not self._main.is_there():
                self._write_again()
            trouble = _finish(self._spare, "COMMIT")
            if trouble is not None:
                _finish(self._spare, "ROLLBACK")
                raise Busy(f"the reservations file could not be written ({trouble})")

    def _write_again(self) -> None:
        """The file was removed under the decision: what it wrote stands in a file without a name."""
        main = self._file()
        if main is not None:
            with contextlib.suppress(sqlite3.Error, Broken):
                for statement, values in self._pending:
                    main.execute(statement, values)

    # --- reading and writing --------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """All that stand there, dead ones too; what the spare file holds counts over the other. Raises Busy: what
        cannot be read now must not pass for empty."""
        by_run = {entry.run: entry for entry in self._read(_GET_ENTRIES, of=_entries)}
        if self._main is None:  # what stands in the file cannot be read: the runs themselves can
            if self._rebuilt is None:
                self._rebuilt = self._rebuild()
            by_run = {**{entry.run: entry for entry in self._rebuilt}, **by_run}
        return list(by_run.values())

    def put(self, entry: Entry) -> None:
        self._write(_PUT_ENTRY, asdict(entry).values())

    def remove(self, runs: Iterable[str]) -> None:
        for run in runs:
            for file in (self._file(), self._spare_file(make=False)):
                if file is not None:
                    with contextlib.suppress(sqlite3.Error, Broken):  # a dead entry that stays is passed over
                        file.execute("DELETE FROM entry WHERE run = ?", (run,))

    def peaks(self, key: str) -> list[Peak]:
        """Of this very command, newest first; none when they cannot be read now."""
        try:
            rows = self._read(
                f"SELECT {','.join(_PEAK)} FROM peak WHERE key = ? ORDER BY wall DESC LIMIT {KEPT_PER_COMMAND}",
                (key,),
            )
        except Busy as error:
            self._note(str(error))
            return []
        return _peaks(rows)

    def remember(self, peak: Peak) -> None:
        """Synced: the history is worth a wait at the end of a run."""
        main = self._file()
        if main is None:
            return
        try:
            main.execute("PRAGMA synchronous=FULL")
            with self.decision():
                self._main_only(_PUT_PEAK, asdict(peak).values())
                self._main_only(
                    "DELETE FROM peak WHERE key = ? AND run NOT IN "
                    "(SELECT run FROM peak WHERE key = ? ORDER BY wall DESC LIMIT ?)",
                    (peak.key, peak.key, KEPT_PER_COMMAND),
                )
            # so that the WAL does not grow while somebody always waits
            main.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except (sqlite3.Error, Broken, Busy) as error:
            self._note(f"the peak of this run could not be stored ({_words(error)})")
        finally:
            with contextlib.suppress(sqlite3.Error, Broken):
                main.execute("PRAGMA synchronous=OFF")

    def _main_only(self, statement: str, values: Iterable[object]) -> None:
        if self._main is not None:
            self._main.execute(statement, values)

    def _read(
        self,
        statement: str,
        values: tuple[object, ...] = (),
        of: Callable[[list[tuple[object, ...]]], list[Any]] = list,
    ) -> list[Any]:
        """Of both files. ``of`` makes values of the rows, and raises Broken for rows that are none."""
        rows: list[Any] = []
        for second_try in (False, True):
            main = self._file()
            try:
                rows = of(main.execute(statement, values)) if main is not None else []
                break
            except Broken as reason:
                self._main = main
                if second_try:
                    raise Busy(f"the reservations file {self.path} cannot be read: {reason}") from reason
                self._start_new_file(reason)
            except sqlite3.Error as error:
                raise Busy(
                    f"the reservations file {self.path} cannot be read now ({_words(error)})"
                ) from error
        spare = self._spare_file(make=False)
        if spare is not None:
            try:
                rows = rows + of(spare.execute(statement, values))
            except (sqlite3.Error, Broken) as error:
                raise Busy(
                    f"the reservations file {spare.path} cannot be read now ({_words(error)})"
                ) from error
        elif self._spare_path is not None and self._spare_path.exists() and self._spare_path.stat().st_size:
            raise Busy(f"the reservations file {self._spare_path} cannot be opened now")
        return rows

    def _write(self, statement: str, values: Iterable[object]) -> None:
        """On disk, else in the runtime folder. The folder's lock is held, so the decision stands either way."""
        values = tuple(values)
        trouble = ""
        for second_try in (False, True):
            main = self._file()
            if main is None or not main.in_transaction:
                break
            try:
                main.execute(statement, values)
                self._pending.append((statement, values))
                return
            except Broken as reason:
                if not second_try:
                    self._start_new_file(reason)
                    continue
                trouble = str(reason)
            except sqlite3.Error as error:
                trouble = _words(error)
            self._move_to_spare(trouble)
            break
        self._write_spare(statement, values, trouble)

    def _move_to_spare(self, trouble: str) -> None:
        """The disk failed in the middle: SQLite takes back all of it, so all of it goes elsewhere."""
        _finish(self._main, "ROLLBACK")
        pending, self._pending = self._pending, []
        for statement, values in pending:
            self._write_spare(statement, values, trouble)

    def _write_spare(self, statement: str, values: tuple[object, ...], trouble: str) -> None:
        trouble = f" ({trouble})" if trouble else ""
        spare = self._spare_file(make=True)
        if spare is not None:
            try:
                spare.execute(statement, values)
                self._note(
                    f"the disk of the reservations takes nothing now{trouble}; this run stands in {spare.path.parent} meanwhile"
                )
                return
            except (sqlite3.Error, Broken) as error:
                trouble = f" ({_words(error)})"
        raise OomproofError(
            f"neither {self.path} nor the runtime folder can be written{trouble}",
            "free some space on either disk",
        )

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def close(self) -> None:
        for file in (self._main, self._spare):
            if file is not None:
                file.close()
        self._main = self._spare = None


def _has_bytes(path: Path) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


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


def _entered_again(count: int) -> str:
    return f"the {count} runs of now were entered again"


def _entries(rows: list[tuple[object, ...]]) -> list[Entry]:
    """Raises Broken where a column holds what does not belong there: half a reservation is worse than a new file."""
    if not all(_fit(row, _ENTRY_TYPES) for row in rows):
        raise Broken("an entry is damaged")
    return [Entry(*row) for row in rows]  # type: ignore[arg-type]


def _peaks(rows: list[tuple[object, ...]]) -> list[Peak]:
    """Those that are whole: a damaged one is only one run less to learn from."""
    return [Peak(*row[:-1], bool(row[-1])) for row in rows if _fit(row, _PEAK_TYPES)]  # type: ignore


def _fit(row: tuple[object, ...], types: list[tuple[type, ...]]) -> bool:
    return all(isinstance(value, kinds) for value, kinds in zip(row, types, strict=True))


def _save_rows(damaged: Path, into: _File) -> None:
    """As much as can still be read: what past runs held, and the entries of those who wait or are somebody else's. What
    was read off the runs themselves stands already, and counts more."""
    for record, table, types in ((Entry, "entry", _ENTRY_TYPES), (Peak, "peak", _PEAK_TYPES)):
        names = ",".join(field.name for field in fields(record))
        put = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({','.join('?' * len(types))})"
        try:
            with contextlib.closing(sqlite3.connect(damaged)) as connection:
                connection.text_factory = _text
                for row in connection.execute(f"SELECT {names} FROM {table}"):
                    if _fit(row, types):
                        into.execute(put, row)
        except (sqlite3.Error, ValueError, Broken):
            pass  # the damage begins here


def _finish(file: _File | None, how: str) -> str | None:
    """COMMIT or ROLLBACK; why not, when something had been begun and did not go through."""
    if file is None or not file.in_transaction:
        return None
    try:
        file.execute(how)
    except (sqlite3.Error, Broken) as error:
        return _words(error)
    return None


def _flock(fd: int) -> None:
    end = time.monotonic() + LOCK_SECONDS
    pause = 0.0005
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise Busy("another oomproof has locked the reservations file for too long") from None
        except OSError:  # a file system without locks of this kind: SQLite's own remains
            return
        time.sleep(pause)
        pause = min(0.01, pause * 2)


def _words(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)


def open_ledger(wanted: str | None = None) -> Ledger:
    """The ledger of this machine and user; the file is made when something is to be written or read."""
    from oomproof.ledger.ledger_rebuild import live_entries

    folder, shared = ledger_folder(wanted)
    if not shared:
        with contextlib.suppress(OSError):  # the file will say so
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Ledger(folder, shared, spare_file(), live_entries)
