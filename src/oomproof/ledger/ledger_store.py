"""The ledger: who runs, who waits, what each command needed before. One small SQLite file, made for bad days.

One lock on its folder covers a whole decision, so two starts at the same instant cannot both win. A file that cannot be
read is kept aside and begun anew; a disk that takes no more moves the entries of this boot into the runtime folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from oomproof.errors import OomproofError
from oomproof.ledger.ledger_entries import Entry, Peak, live_entries
from oomproof.ledger.ledger_file import (
    GET_ENTRIES,
    PEAK_COLUMNS,
    PUT_ENTRY,
    PUT_PEAK,
    Broken,
    LedgerFile,
    entries_of,
    peaks_of,
    save_rows,
)
from oomproof.recording.sqlite_files import sqlite3
from oomproof.recording.state_files import runtime_folder, state_folder
from oomproof.records import asdict

SHARED = Path("/var/lib/oomproof")


def ledger_name() -> str:
    """A home on the network serves several machines: each has its own ledger in it."""
    letters = (letter if letter.isalnum() or letter in "-_." else "_" for letter in os.uname().nodename)
    return f"ledger-{''.join(letters) or 'here'}.sqlite"


def spare_file() -> Path | None:
    """For entries that the disk does not take: in the runtime folder."""
    try:
        return runtime_folder() / ledger_name()
    except (OSError, OomproofError):
        return None


def is_there(wanted: str | None = None) -> bool:
    """Whether anybody has begun a ledger; a reader makes none."""
    spare = spare_file()
    return (ledger_folder(wanted)[0] / ledger_name()).exists() or bool(spare and spare.exists())


def ledger_folder(wanted: str | None = None) -> tuple[Path, bool]:
    """(folder, shared?): what the settings name, else the administrator's when there is one, else the user's own."""
    if wanted:
        folder = Path(wanted)
        if not folder.is_dir():
            raise OomproofError(
                f"the reservations folder {folder} is not there", f"sudo install -d -m 2770 -g users {folder}"
            )
        problem = _shared_problem(folder)
        status = folder.stat()
        if problem is not None and (status.st_uid not in (0, os.getuid()) or status.st_mode & 0o002):
            raise OomproofError(
                f"the reservations folder {folder} is not safe: {problem}",
                f"sudo install -d -m 2770 -g users {folder}",
            )
        return folder, problem is None
    if SHARED.is_dir() and os.access(SHARED, os.W_OK) and _shared_problem(SHARED) is None:
        return SHARED, True
    return state_folder(), False


def _shared_problem(folder: Path) -> str | None:
    """Only root's folder, open to a group and closed to the rest, is a place for files several users write."""
    status = folder.stat()
    if status.st_uid != 0:
        return "it does not belong to root"
    if status.st_mode & 0o002:
        return "everybody may write it"
    return None if status.st_mode & 0o020 else "no group may write it"


# a decision takes milliseconds; whoever holds the lock longer is stopped or hangs on its disk
LOCK_SECONDS = 10.0
KEPT_PER_COMMAND = 20


class Busy(Exception):
    """Somebody has held the lock for longer than any decision takes."""


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
        self._main: LedgerFile | None = None
        self._spare: LedgerFile | None = None
        self._pending: list[tuple[str, tuple[object, ...]]] = []
        self._deciding = False
        self._rebuilt: list[Entry] | None = None

    # --- opening ------------------------------------------------------------------------------------------------

    def _file(self) -> LedgerFile | None:
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

    def _open(self) -> LedgerFile:
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

    def _made(self) -> LedgerFile:
        return LedgerFile(self.path, 0o660 if self.shared else 0o600, LOCK_SECONDS, rebuild=self._rebuild)

    def _start_new_file(self, reason: Broken) -> None:
        """Under the lock, and only if nobody else has done so meanwhile."""
        with self._locked():
            if self._main is not None:
                self._main.close()
                self._main = None
            main: LedgerFile | None = None
            try:
                main = self._open()
                entries_of(main.execute(GET_ENTRIES))
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
                    f"the reservations file {self.path} cannot be read: {reason}; nor made again ({_words(error)})"
                )
                return
            save_rows(aside, self._main)
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

    def _spare_file(self, make: bool) -> LedgerFile | None:
        """Entries that the disk did not take: in the runtime folder, which is gone after a reboot, as they are."""
        if self._spare is None and self._spare_path is not None and (make or self._spare_path.exists()):
            try:
                self._spare = LedgerFile(self._spare_path, 0o600, LOCK_SECONDS, check=False)
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
                        entries_of(file.execute(GET_ENTRIES))
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
        by_run = {entry.run: entry for entry in self._read(GET_ENTRIES, of=entries_of)}
        if self._main is None:  # what stands in the file cannot be read: the runs themselves can
            if self._rebuilt is None:
                self._rebuilt = self._rebuild()
            by_run = {**{entry.run: entry for entry in self._rebuilt}, **by_run}
        return list(by_run.values())

    def put(self, entry: Entry) -> None:
        self._write(PUT_ENTRY, asdict(entry).values())

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
                f"SELECT {','.join(PEAK_COLUMNS)} FROM peak WHERE key = ? ORDER BY wall DESC LIMIT {KEPT_PER_COMMAND}",
                (key,),
            )
        except Busy as error:
            self._note(str(error))
            return []
        return peaks_of(rows)

    def remember(self, peak: Peak) -> None:
        """Synced: the history is worth a wait at the end of a run."""
        main = self._file()
        if main is None:
            return
        try:
            main.execute("PRAGMA synchronous=FULL")
            with self.decision():
                self._main_only(PUT_PEAK, asdict(peak).values())
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
                    f"the reservations cannot be written now{trouble}; this run's is in {spare.path.parent} meanwhile"
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


def _entered_again(count: int) -> str:
    return f"the {count} runs that are active now were entered again"


def _finish(file: LedgerFile | None, how: str) -> str | None:
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
    folder, shared = ledger_folder(wanted)
    if not shared:
        with contextlib.suppress(OSError):  # the file will say so
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Ledger(folder, shared, spare_file(), live_entries)
