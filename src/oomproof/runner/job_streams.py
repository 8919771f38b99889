"""The job's streams as the front serves them: its output to the user and to output.log, the user's keys to its terminal."""

from __future__ import annotations

import os
import selectors
import termios
import time
from collections.abc import Callable, Sequence

from oomproof.runner import zero_copy
from oomproof.runner.followed_file import Followed
from oomproof.runner.job_start import resize
from oomproof.runner.output_log import CHUNK, Output
from oomproof.runner.terminal import Terminal
from oomproof.runner.zero_copy import FileChanges
from oomproof.units import MIB, format_size

_AT_ONCE = 1 * MIB  # bytes asked for in one call; a pipe holds less
_WORTH_MOVING = 16384  # bytes; less is written: a moved piece takes one of a pipe's 16 places, however short
_PAGE = 4096  # what a pipe that is not full takes at once
_CALLS = 8  # in a row for one stream, before the others and the signals get their turn
_MUCH = 16 * MIB
_FOLLOW_SECONDS = 0.2  # from a first new line in a followed file to reading it, with what came meanwhile
_POLL_SECONDS = 1.0  # where nobody tells that it grew
# a terminal holds so much: more at once would wait for its reader while the job waits for us
_PTY_BATCH = 8192


class Log:
    """output.log, and a pipe as a place in between for what is moved there inside the kernel.

    A job that prints faster than a disk should have to write is kept in parts: all of the first third of the cap, then
    ``burst`` bytes at any speed and ``rate`` bytes a second. What comes faster passes through the pipe, which always
    holds the newest of it.
    """

    def __init__(self, output: Output, rate: int = 64 * MIB, burst: int = 64 * MIB) -> None:
        self.output = output
        self._rate, self._burst = rate, burst
        self._left = float(burst)
        self._counted = time.monotonic()
        self._first = output.space_in_first()
        self.lost = 0
        self._newest: list[bytes] = []  # of a copied stream, what waits
        self.pipe: tuple[int, int] | None = None
        self._null: int | None = None

    def open(self) -> bool:
        """The pipe in between, made when it is first needed. False: none can be had, the bytes are to be copied."""
        if self.pipe is None:
            try:
                self._null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
                self.pipe = os.pipe()
            except OSError:
                return False
            zero_copy.widen(self.pipe[1], _AT_ONCE)
        return True

    @property
    def holds_back(self) -> bool:
        """Whether something waits in the pipe, or in memory."""
        return bool(self._newest) or (self.pipe is not None and zero_copy.waiting(self.pipe[0]) > 0)

    def write(self, data: bytes) -> None:
        """Of a stream that is copied: a terminal is never so fast that it had to be kept in parts."""
        self._first -= len(data)
        self.output.write(data)

    def may_write(self, size: int) -> bool:
        """Whether so much may be written past the pipe in between."""
        return not self.holds_back and self._allowed(size)

    def write_some(self, data: bytes) -> None:
        self._count(len(data))
        self.output.write(data)

    def keep(self, data: bytes) -> None:
        """Of a stream that is copied, at any speed: what may not be written now waits in memory, as the rest does in the pipe."""
        if self.may_write(len(data)):
            self.write_some(data)
            return
        self._newest.append(data)
        self.settle()
        while sum(map(len, self._newest[1:])) >= _AT_ONCE // 2:
            self.lost += len(self._newest.pop(0))

    def take_from(self, source: int, size: int) -> None:
        """Exactly so many bytes out of the job's pipe, which has them."""
        assert self.pipe is not None
        while size > 0:
            if not self.holds_back and self._allowed(size):
                size -= self._to_file(source, size)
            else:
                size -= self._push(zero_copy.move, source, size)
                self.settle()

    def copy_from(self, source: int) -> int:
        """A copy of what waits in the job's pipe, which keeps it. 0 at its end."""
        return self._push(zero_copy.tee, source, _AT_ONCE)

    def _push(self, how: Callable[[int, int, int], int], source: int, size: int) -> int:
        """Into the pipe in between. It may be full of small pieces long before it is full of bytes."""
        assert self.pipe is not None
        self.settle()
        self._drop(_AT_ONCE // 2)
        while True:
            try:
                return how(source, self.pipe[1], size)
            except BlockingIOError:
                if not zero_copy.waiting(source) or not self.holds_back:
                    raise
                self._drop(0)

    def follow(self, file: Followed) -> None:
        """What is new in a file that the job writes to itself, as far as that may be written now."""
        for _ in range(2 * _CALLS):
            if not self._allowed(_AT_ONCE):
                return
            done = self.output.follow(file, _AT_ONCE)
            self._count(done)
            if done < _AT_ONCE:
                return

    def settle(self, all_of_it: bool = False) -> None:
        """What waits goes to the file, as far as that may be written now."""
        waits = sum(map(len, self._newest))
        if waits and (self._allowed(waits) or all_of_it):
            self._tell_gap()
            newest, self._newest = self._newest, []
            self.write_some(b"".join(newest))
        if self.pipe is None:
            return
        while (size := zero_copy.waiting(self.pipe[0])) and (self._allowed(size) or all_of_it):
            self._tell_gap()
            self._to_file(self.pipe[0], size)

    def _tell_gap(self) -> None:
        if self.lost:
            gap, self.lost = self.lost, 0
            self.output.write(f"\n[oomproof: {format_size(gap)} of output not stored]\n".encode())

    def _drop(self, above: int) -> None:
        """The oldest of what waits goes where more than that waits: half of it, so that it is not done for each page."""
        assert self.pipe is not None and self._null is not None
        waits = zero_copy.waiting(self.pipe[0])
        if waits > above:
            self.lost += zero_copy.move(self.pipe[0], self._null, (waits + 1) // 2)

    def _allowed(self, size: int) -> bool:
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._counted) * self._rate)
        self._counted = now
        return self._first > 0 or self._left >= size

    def _to_file(self, source: int, size: int) -> int:
        """Out of a pipe that has so many bytes: moved, or copied where the file does not take them that way or at all."""
        size = min(size, _AT_ONCE)
        target = None if self.output.behind else self.output.place(size)
        done = 0
        if target is not None:
            try:
                done = zero_copy.move(source, target, size)
                self.output.wrote(done)
            except BlockingIOError:
                raise
            except OSError:  # no splice on this file system, or a full disk: the copy says which
                pass
        if not done:
            data = os.read(source, size)
            self.output.write(data)
            done = len(data)
        self._count(done)
        return done

    def _count(self, size: int) -> None:
        if self._first > 0:
            self._first -= size
        else:
            self._left -= size

    def close(self) -> None:
        self.settle(all_of_it=True)
        self.output.close()
        for fd in (*(self.pipe or ()), self._null):
            if fd is not None:
                os.close(fd)
        self.pipe = self._null = None


class _Lost(Exception):
    """What the job's output goes to takes no more: its reader went away, or its disk is full or broken."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


class Streams:
    """``held`` are the readable ends by letter: T the pty, O standard output, E standard error; some may be ``files``."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        held: dict[str, int],
        terminal: Terminal,
        output: Output,
        shown: bool,
        on_closed: Callable[[bytes, OSError], None],
        files: Sequence[Followed] = (),
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        self._held, self._terminal = held, terminal
        self._on_closed, self._on_full = on_closed, on_full
        self.log = Log(output)
        self._selector = selector
        self._typed = bytearray()  # keys that the pty did not take yet
        self._letters = {held[letter]: letter for letter in "TOE" if letter in held}
        self._pump: dict[int, Callable[[int], bool]] = {}
        self._target: dict[int, int | None] = {}
        self._passed: dict[int, int] = {}
        self._wide: set[int] = set()
        self._full: dict[int, int] = {}  # a pipe of ours that takes nothing now → whose output waits for it
        self._files = {file.fd: file for file in files}
        self._changes = FileChanges() if files else None
        if self._changes is not None and self._changes.fd is not None:
            selector.register(self._changes.fd, selectors.EVENT_READ)
        self._due: float | None = 0.0 if files else None  # when the files are looked at; None: when one grows
        for fd, letter in self._letters.items():
            if fd in self._files:
                continue
            target = {"T": None, "O": 1, "E": 2}[letter] if shown else None
            if target is not None and zero_copy.goes_nowhere(target):
                target = None
            self._target[fd] = target
            self._pump[fd] = self._way(letter, target, shown)
            selector.register(fd, selectors.EVENT_READ)

    def _way(self, letter: str, target: int | None, shown: bool) -> Callable[[int], bool]:
        """How its bytes get on: inside the kernel where that can be."""
        if letter == "T":
            return self._from_pty if shown else self._copy
        if not zero_copy.AVAILABLE or not self.log.open():
            return self._copy
        if target is None:
            return self._to_log
        if zero_copy.is_pipe(target):
            return self._to_pipe
        return self._to_file if zero_copy.takes_splice(target) else self._copy

    @property
    def open(self) -> bool:
        return bool(self._letters)

    @property
    def blocked(self) -> bool:
        """Whether somebody who reads our output is slow."""
        return bool(self._full)

    @property
    def trouble(self) -> str | None:
        return self.log.output.trouble

    def serve(self, fd: int, mask: int) -> None:
        if fd in self._full:  # it takes something again
            waiting = self._full.pop(fd)
            self._selector.unregister(fd)
            self._selector.register(waiting, selectors.EVENT_READ)
            fd, mask = waiting, selectors.EVENT_READ
        if self._changes is not None and fd == self._changes.fd:
            self._changes.clear()
            if self._due is None:
                self._due = time.monotonic() + _FOLLOW_SECONDS
        if fd not in self._letters:
            return
        for file in self._files.values():  # what came before it stands before it
            self.log.follow(file)
        if mask & selectors.EVENT_WRITE:
            self._feed()
        if mask & selectors.EVENT_READ:
            self._read(fd)

    @property
    def follow_in(self) -> float | None:
        """Seconds until a file is to be looked at."""
        return None if self._due is None else max(0.0, self._due - time.monotonic())

    def follow(self) -> None:
        """What the job wrote to its files itself, when it is time."""
        if self._due is None or time.monotonic() < self._due:
            return
        told = [self._changes is not None and self._changes.arm(fd) for fd in self._files]  # before the look
        for file in self._files.values():
            self.log.follow(file)
        if any(file.waiting() for file in self._files.values()):
            self._due = time.monotonic() + _FOLLOW_SECONDS
        else:
            self._due = None if all(told) else time.monotonic() + _POLL_SECONDS

    def finish_files(self) -> None:
        """Nobody writes to them any more."""
        for fd, file in list(self._files.items()):
            self.log.output.finish(file)
            if file.has_no_space():
                self._on_full()
            self._forget(fd)
        self._due = None
        if self._changes is not None and self._changes.fd is not None:  # a user has few of them
            self._selector.unregister(self._changes.fd)
            self._changes.close()

    def _read(self, fd: int) -> None:
        try:
            for _ in range(_CALLS):
                if not self._pump[fd](fd):
                    return
        except BlockingIOError:
            return
        except _Lost as lost:
            self._close(fd, lost.error)
        except BrokenPipeError as error:
            self._close(fd, error)
        except OSError as error:
            if not zero_copy.cannot(error) or self._pump[fd] == self._copy:
                raise
            self._pump[fd] = self._copy

    def _close(self, fd: int, error: OSError) -> None:
        """The job shall see a closed pipe."""
        letter = self._letters[fd]
        self._forget(fd)
        self._on_closed(letter.encode(), error)

    # Each of these passes on what is there and says whether there may be more.

    def _copy(self, fd: int) -> bool:
        """Into a file that is appended to (`>>`) and a socket, or where nothing can be moved."""
        data = _read_some(fd, _AT_ONCE // 2)
        if not data:
            self._forget(fd)
            return False
        self.log.keep(data)
        self._count(fd, len(data))
        target = self._target[fd]
        if target is not None and (error := self._terminal.stream_output(target, data)) is not None:
            raise _Lost(error)
        return len(data) > CHUNK // 2

    def _from_pty(self, fd: int) -> bool:
        """Its buffer is small: gathered first, then written in one piece."""
        data, more = _read_some(fd, _PTY_BATCH), True
        if not data:
            self._forget(fd)
            return False
        while more and len(data) < _PTY_BATCH:
            try:
                part = _read_some(fd, _PTY_BATCH)
            except BlockingIOError:
                part = b""
            data, more = data + part, bool(part)
        self.log.write(data)
        self._terminal.pty_output(data)
        return more

    def _to_log(self, fd: int) -> bool:
        size = zero_copy.waiting(fd)
        if not size:
            return self._copy(fd)  # its end, or nothing
        self.log.take_from(fd, size)
        return True

    def _to_pipe(self, fd: int) -> bool:
        target = self._target[fd]
        assert target is not None
        waits = zero_copy.waiting(fd)
        if 0 < waits < _WORTH_MOVING and self.log.may_write(waits):
            return self._lines_to_pipe(fd, target)
        try:
            size = zero_copy.tee(fd, target, _AT_ONCE)
        except BlockingIOError:
            if zero_copy.waiting(fd):
                self._wait_for(target, fd)
            raise
        if not size:
            self._forget(fd)
            return False
        self.log.take_from(fd, size)
        self._count(fd, size)
        return True

    def _lines_to_pipe(self, fd: int, target: int) -> bool:
        """So that the reader's pipe holds as much as without us: a program that is only read at its end must not wait there
        with sixteen short lines."""
        if not zero_copy.takes_a_page(target):
            self._wait_for(target, fd)
            raise BlockingIOError
        data = _read_some(fd, _PAGE)
        self.log.write_some(data)
        if (error := self._terminal.stream_output(target, data)) is not None:
            raise _Lost(error)
        self._count(fd, len(data))
        return len(data) == _PAGE

    def _to_file(self, fd: int) -> bool:
        """Logged first. A disk of the user's that takes no more is the user's to see, as without us."""
        target = self._target[fd]
        assert target is not None
        size = self.log.copy_from(fd)
        if not size:
            self._forget(fd)
            return False
        self.log.settle()
        self._count(fd, size)
        while size:
            try:
                size -= zero_copy.move(fd, target, size)
            except OSError as error:
                if not zero_copy.cannot(error):
                    raise _Lost(error) from error
                data = _read_some(fd, size)  # it is in the log already
                size -= len(data)
                if (failed := self._terminal.stream_output(target, data)) is not None:
                    raise _Lost(failed) from failed
        return True

    def _count(self, fd: int, size: int) -> None:
        """A job that prints much gets a wider pipe, for fewer turns; all of a user's pipes together may hold 64 MiB."""
        self._passed[fd] = self._passed.get(fd, 0) + size
        if self._passed[fd] > _MUCH and fd not in self._wide:
            self._wide.add(fd)
            target = self._target[fd]
            for pipe in (fd, target) if target is not None and zero_copy.is_pipe(target) else (fd,):
                zero_copy.widen(pipe, _AT_ONCE)

    def _wait_for(self, target: int, fd: int) -> None:
        self._selector.unregister(fd)
        self._selector.register(target, selectors.EVENT_WRITE)
        self._full[target] = fd

    def _forget(self, fd: int) -> None:
        letter = self._letters.pop(fd)
        if self._files.pop(fd, None) is None:
            self._selector.unregister(fd)
        del self._held[letter]
        os.close(fd)

    # --- the user's keys ------------------------------------------------------------------------------------------

    def type(self, data: bytes) -> None:
        self._typed += data
        self._feed()

    def makes_signals_of_keys(self) -> bool:
        master = self._held.get("T")
        try:
            return master is None or bool(termios.tcgetattr(master)[3] & termios.ISIG)
        except (termios.error, OSError):  # its other end was closed
            return True

    def _feed(self) -> None:
        master = self._held.get("T")
        if master is None:
            self._typed.clear()
            return
        try:
            written = os.write(master, self._typed)
            del self._typed[:written]
        except BlockingIOError:
            pass
        except OSError:
            self._typed.clear()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._typed else 0)
        self._selector.modify(master, events)

    def resize(self, rows: int, columns: int) -> None:
        if "T" in self._held:
            resize(self._held["T"], rows, columns)


def _read_some(fd: int, size: int) -> bytes:
    """Empty at the end; EIO is a pty's: the last holder of its other end has closed it."""
    try:
        return os.read(fd, size)
    except BlockingIOError:
        raise
    except OSError:
        return b""
