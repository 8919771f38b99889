"""The user's terminal while a job runs: raw input, the job's output untouched, our own lines between its lines."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import termios
import time
from typing import Any

from oomproof.printable import folded_message, message_width, one_line, printable
from oomproof.runner.followed_file import Followed

_IDLE = 0.6  # seconds without output before the status line may show
_ALTERNATE_ON, _ALTERNATE_OFF = b"\x1b[?1049h", b"\x1b[?1049l"


class Terminal:
    """Descriptors 0, 1 and 2 of ours; each may be a terminal or not."""

    def __init__(self, quiet: bool = False) -> None:
        lost = {number: _was_tty(number) for number in (0, 1, 2)}
        self.is_tty = {number: _isatty(number) or lost[number] for number in (0, 1, 2)}
        self._screen = next((n for n in (1, 2, 0) if self.is_tty[n]), None)
        self._keyboard = 0 if self.is_tty[0] else None
        if self._keyboard is not None:
            import tty  # only at a terminal; now, not when the job runs and every descriptor may be taken

            self._set_raw = tty.setraw
        self._saved: list[Any] | None = None
        self._column_zero = True
        self.status_shown = False
        self._last_output = 0.0
        self._alternate = False
        self._quiet = quiet
        self.gone = any(lost.values())  # hung up: continue without it
        self.own_file: Followed | None = None  # standard error, where the job writes to that file itself

    # --- facts -------------------------------------------------------------------------------------------------

    @property
    def tty_numbers(self) -> list[int]:
        return [number for number, yes in self.is_tty.items() if yes]

    def merges(self) -> bool:
        """Whether our standard output and error are one file: then the job's must be one too, to keep the order."""
        try:
            stdout, stderr = os.fstat(1), os.fstat(2)
        except OSError:
            return False
        return (stdout.st_dev, stdout.st_ino) == (stderr.st_dev, stderr.st_ino)

    def size(self) -> tuple[int, int]:
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(self._any())
            return rows, columns
        return 24, 80

    def attributes(self) -> list[Any] | None:
        """For the job's own terminal, so that it starts like ours."""
        try:
            value = termios.tcgetattr(self._any())
        except termios.error:
            return None
        return [*value[:6], [item[0] if isinstance(item, bytes) else item for item in value[6]]]

    def _any(self) -> int:
        return next(iter(self.tty_numbers), 1)

    def in_foreground(self) -> bool:
        if self._keyboard is None:
            return False
        try:
            return os.tcgetpgrp(0) == os.getpgrp()
        except OSError:
            return False

    # --- modes -------------------------------------------------------------------------------------------------

    def go_raw(self) -> bool:
        """Keys go to the job's terminal, which makes the signals; False when we may not (background)."""
        if self._saved is not None or not self.in_foreground():
            return self._saved is not None
        try:
            self._saved = termios.tcgetattr(0)
            self._set_raw(0)
            if not (self.is_tty[1] and self.is_tty[2]):  # `| tee`: others write to this terminal too
                mode = termios.tcgetattr(0)
                mode[1] |= self._saved[1] & termios.OPOST
                termios.tcsetattr(0, termios.TCSANOW, mode)
        except termios.error:
            self._saved = None
        return self._saved is not None

    def restore(self) -> None:
        self.erase_status()
        if self._saved is not None:
            before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            with contextlib.suppress(termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, self._saved)
            signal.signal(signal.SIGTTOU, before)
            self._saved = None

    # --- output ------------------------------------------------------------------------------------------------

    def pty_output(self, data: bytes) -> None:
        """What the job wrote to its terminal, onto ours."""
        if self.gone or self._screen is None:
            return
        self.erase_status()
        self._column_zero = data.endswith(b"\n")
        self._last_output = time.monotonic()
        on, off = data.rfind(_ALTERNATE_ON), data.rfind(_ALTERNATE_OFF)
        if on != off:
            self._alternate = on > off
        self._write(self._screen, data)

    def stream_output(self, number: int, data: bytes) -> OSError | None:
        """What the job wrote to a pipe or file of ours; the error when that takes no more."""
        return self._write(number, data)

    def _write(self, number: int, data: bytes) -> OSError | None:
        while data:
            try:
                data = data[os.write(number, data) :]
            except BlockingIOError:  # somebody made our terminal non-blocking
                time.sleep(0.005)
            except OSError as error:
                self.gone = self.gone or self.is_tty[number]
                return error
        return None

    def message(self, text: str) -> None:
        """A line of ours on standard error, on a line of its own."""
        if self.gone and self.is_tty[2]:  # a file there still takes it
            return
        self.erase_status()
        raw = self._saved is not None
        end = "\r\n" if raw else "\n"
        start = end if self.is_tty[2] and not self._column_zero else ""
        shown = folded_message(printable(text), message_width())
        data = (start + shown.replace("\n", end) + end).encode()
        if self.own_file is not None:
            self.own_file.write_own(2, data)
        else:
            self._write(2, data)
        self._column_zero = True

    def status(self, text: str) -> None:
        """One dim line, drawn only where the cursor rests at the start of a line and the job is quiet.

        And only where all output is the terminal's: what a reader behind a pipe writes there, nobody tells us."""
        if (
            self._quiet
            or not (self.is_tty[1] and self.is_tty[2])
            or self._screen is None
            or self.gone
            or self._alternate
            or not self._column_zero
        ):
            return
        if self._saved is None or time.monotonic() - self._last_output < _IDLE:
            return
        text = one_line(text)[: max(20, self.size()[1]) - 1]
        dim, plain = ("", "") if os.environ.get("NO_COLOR") else ("\x1b[2m", "\x1b[0m")
        self._write(self._screen, f"\r\x1b[K{dim}{text}{plain}".encode())
        self.status_shown = True

    def erase_status(self) -> None:
        if self.status_shown and self._screen is not None and not self.gone:
            self._write(self._screen, b"\r\x1b[K")
        self.status_shown = False

    def hang_up(self) -> None:
        """The terminal was closed; the job continues and its output goes to the file."""
        self.gone = True
        self._saved = None


def _isatty(number: int) -> bool:
    try:
        return os.isatty(number)
    except OSError:
        return False


def _was_tty(number: int) -> bool:
    """One that was closed since: a further attempt runs as the first would have gone on."""
    try:
        termios.tcgetattr(number)
    except termios.error as error:
        return bool(error.args) and error.args[0] == errno.EIO
    return False
