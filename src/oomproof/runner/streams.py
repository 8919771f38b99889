"""The job's streams as the front serves them: its output to the user and to output.log, the user's keys to its terminal."""

from __future__ import annotations

import errno
import os
import selectors
from collections.abc import Callable

from oomproof.runner import keeper as protocol
from oomproof.runner.terminal import Terminal


class Streams:
    """``held`` are the readable ends by letter: T the pty, O standard output, E standard error."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        held: dict[str, int],
        terminal: Terminal,
        output: protocol.Output,
        shown: bool,
        on_closed: Callable[[bytes], None],
    ) -> None:
        self._held, self._terminal, self._shown, self._on_closed = held, terminal, shown, on_closed
        self.output = output
        self._selector = selector
        self._typed = bytearray()  # keys that the pty did not take yet
        self._letters = {held[letter]: letter for letter in "TOE" if letter in held}
        for fd in self._letters:
            self._selector.register(fd, selectors.EVENT_READ)

    @property
    def open(self) -> bool:
        return bool(self._letters)

    @property
    def blocked(self) -> bool:
        return False

    def serve(self, fd: int, mask: int) -> None:
        if fd not in self._letters:
            return
        if mask & selectors.EVENT_WRITE:
            self._feed()
        if mask & selectors.EVENT_READ:
            self._read(fd)

    def _read(self, fd: int) -> None:
        letter = self._letters[fd]
        try:
            data = os.read(fd, protocol.CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno == errno.EINTR:
                return
            data = b""  # EIO: the last holder of the pty's other end has closed it
        if not data:
            self._forget(fd)
            return
        self.output.write(data)
        if not self._shown:
            return
        if letter == "T":
            self._terminal.pty_output(data)
        elif not self._terminal.stream_output(1 if letter == "O" else 2, data):
            self._forget(fd)  # nobody reads it any more: the job shall see a closed pipe
            self._on_closed(letter.encode())

    def _forget(self, fd: int) -> None:
        letter = self._letters.pop(fd)
        self._selector.unregister(fd)
        del self._held[letter]
        os.close(fd)

    # --- the user's keys ------------------------------------------------------------------------------------------

    def type(self, data: bytes) -> None:
        self._typed += data
        self._feed()

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
            protocol.resize(self._held["T"], rows, columns)
