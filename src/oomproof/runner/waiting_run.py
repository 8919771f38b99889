"""While a run waits: it is listed as waiting, can be told to end, and leaves nothing behind that looks like a run."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from oomproof.errors import OomproofError
from oomproof.ledger.ledger_entries import Entry
from oomproof.ledger.ledger_store import Ledger
from oomproof.printable import as_message, one_line
from oomproof.recording import run_folders, state_files

# what the front and readers (`verdict.json`) write; a job's start leaves other files at once
_OF_WAITING = re.compile(
    r"(?:waiting|guard)\.lock|\.?(?!keeper|started|exit)[a-z]+\.json(?:\.\d+)?", re.ASCII
)


class Cancelled(BaseException):
    """Told to end while waiting; ``number`` is the signal. No Exception: who continues after a failure of ours must not swallow it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class ListedAsWaiting:
    """From enter to exit the run is listed as waiting, and a signal raises Cancelled. ``front``: (pid, start) of this process.

    A terminal that is closed ends no run that has begun: neither a job nor the wait for its next attempt.
    """

    def __init__(self, run: run_folders.Run, need: int | None, front: tuple[int, int | None]) -> None:
        self._run, self._need, self._front = run, need, front
        self._lock: int | None = None
        self._since = time.time()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):
            self._lock = state_files.take_lock(self._run.waiting_lock)
        self.write()
        attempt = self._run.attempt
        has_begun = (attempt.number or 1) > 1 or attempt.was_begun()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) != signal.SIG_IGN:
                handler = _stay if number == signal.SIGHUP and has_begun else _cancel
                self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        if kind is not Cancelled:  # else whoever cleans up hears of no further signal
            for number, handler in self._before.items():
                signal.signal(number, handler)
        with contextlib.suppress(OSError):
            (self._run.waiting_file).unlink()
        if self._lock is not None:
            os.close(self._lock)

    def write(self, reasons: Sequence[str] = ()) -> None:
        """For whoever looks at it from outside: `runs show`, `why`, `stop`."""
        value = {
            "front": {"pid": self._front[0], "start": self._front[1]},
            "need": self._need,
            "since": self._since,
            "reasons": [line.strip() for line in reasons],
        }
        with contextlib.suppress(OSError, OomproofError):
            # a full disk: it waits all the same, only nobody else can see it
            state_files.write_json(self._run.waiting_file, value)


class Waiting(ListedAsWaiting):
    """For memory: it says why, again and again."""

    def __init__(
        self,
        run: run_folders.Run,
        entry: Entry,
        ledger: Ledger,
        say: Callable[[str], None],
        on_waiting: Callable[[str], None],
    ) -> None:
        super().__init__(run, entry.need, (entry.front_pid, entry.front_start))
        self._ledger, self._say, self._on_waiting = ledger, say, on_waiting
        self._status = False
        self._told = False
        self._tty = os.isatty(2) if not os.environ.get("NO_COLOR") else False

    def __exit__(self, *error: object) -> None:
        self._erase()
        super().__exit__(*error)

    def tell(self, reasons: list[str], *after: str) -> None:
        """Why it waits; ``after``: what only this terminal needs to know."""
        self._erase()
        self.write(reasons)
        lines = [*reasons, *after]
        for note in self._ledger.notes:
            self._say(f"oomproof: {note}")
        self._ledger.notes.clear()
        text = "\n".join(lines)
        self._say(as_message(f"waits: {text}"))
        if not self._told:
            self._told = True
            self._on_waiting(lines[0])

    def pause(self, seconds: float, status: str) -> None:
        if self._tty and _in_foreground():  # of `run … &` the line would stand in what is typed next
            columns = _columns()
            text = one_line(f"oomproof · waiting {status}")[: max(20, columns) - 1]
            with contextlib.suppress(OSError):
                os.write(2, f"\r\x1b[K\x1b[2m{text}\x1b[0m".encode())
            self._status = True
        time.sleep(seconds)

    def _erase(self) -> None:
        if self._status:
            with contextlib.suppress(OSError):
                os.write(2, b"\r\x1b[K")
            self._status = False


def only_waited(folder: Path) -> bool:
    """Whether it is a run folder of ours in which nothing but waiting happened. What the ledger says is not believed:
    the folder is removed for it."""
    try:
        if folder.parent != run_folders.runs_folder() or folder.name in ("", ".", ".."):
            return False
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return False
        run = run_folders.Run(folder)
        marked = stat.S_ISREG(run.waiting_file.lstat().st_mode)
        attempt = run.attempt.folder
        names = [name for name in os.listdir(folder) if name != attempt.name] + os.listdir(attempt)
        return marked and not attempt.is_symlink() and all(_OF_WAITING.fullmatch(name) for name in names)
    except OSError:
        return False


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(2) == os.getpgrp()
    except OSError:
        return False


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns
    except OSError:
        return 80


def _cancel(number: int, _: object) -> None:
    """Once: a second signal must not cut short what is done about the first."""
    for caught in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(caught) is _cancel:
            signal.signal(caught, _stay)
    raise Cancelled(number)


def listen_between_attempts(release: Callable[[], None]) -> None:
    """For a front that has seen one attempt to its end: from ``release`` of that one's handlers to the next one's start."""
    ours: dict[int, Callable[[int, object], None]] = {
        signal.SIGTERM: _cancel, signal.SIGINT: _cancel, signal.SIGHUP: _stay,
    }  # fmt: skip
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ours)
    try:
        release()
        for number, handler in ours.items():
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, handler)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _stay(*_: object) -> None:
    pass
