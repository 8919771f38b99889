"""Host memory that a card can use: taken piece by piece while enough is left, pinned as one, given back where anything fails.

It is this process's anonymous memory: it counts in its RSS and its cgroup as all memory does. (What cudaHostAlloc takes is the
driver's, and counts in neither.) A forked child does not get it: pinned pages are copied at a fork, and a loader's workers are forked.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MIB = 1 << 20
PIECE = 2 * MIB  # a huge page, and PyTorch's smallest segment
_AT_ONCE = 32 * MIB  # between two looks at what is left: 10 ms, in which the process can map no other memory
_DONTNEED, _DONTFORK, _HUGEPAGE, _POPULATE_WRITE = 4, 10, 14, 23  # of madvise(2)
_PORTABLE_MAPPED = 3  # cuMemHostRegister's flags: for every context, and at an address of the card's
_FIRST = 64  # pieces whose words are looked at after each step: 10 microseconds


class NotPinned(Exception):
    pass


class PinnedMemory:
    def __init__(self, size: int, watched: int) -> None:
        """Address space only. ``size``: in whole pieces; the first ``watched`` bytes tell what was written."""
        self.size, self._pieces = size, watched // PIECE
        self._map = mmap.mmap(-1, size + PIECE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        keep(self._map)  # in a forked child its address is somebody else's: it must never be unmapped there
        begin = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.address = -(-begin // PIECE) * PIECE
        self._offset = self.address - begin
        # By ctypes: Python's own madvise() holds the interpreter's lock, and the training would wait for seconds.
        self._madvise = ctypes.CDLL(None, use_errno=True).madvise
        self._madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        if self._madvise(begin, len(self._map), _DONTFORK):
            raise NotPinned("it cannot be kept from forked processes")
        self._madvise(begin, len(self._map), _HUGEPAGE)  # a kernel without them takes small ones
        self._words = memoryview(self._map).cast("Q")
        self._seen: list[int] = []
        self._pid = os.getpid()

    def take(self, headroom: Callable[[], int | None]) -> None:
        """Every page, as long as the host has as much as is still to come."""
        at, end = self.address, self.address + self.size
        while at < end:
            left = headroom()
            if left is not None and left < end - at:
                self.give_back()
                raise NotPinned(
                    f"{gib(end - at)} more is needed, {gib(max(0, left))} is left beside the margin"
                )
            length = min(_AT_ONCE, end - at)
            if self._madvise(at, length, _POPULATE_WRITE):
                if ctypes.get_errno() != errno.EINVAL:
                    self.give_back()
                    raise NotPinned(os.strerror(ctypes.get_errno()))
                ctypes.memset(at, 0, length)  # before Linux 5.14
            at += length
        self._mark()

    def pin(self, driver: Any) -> None:
        """``driver``: libcuda. The thread has a context."""
        register = driver.cuMemHostRegister_v2
        register.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
        code = register(self.address, self.size, _PORTABLE_MAPPED)
        if code:
            self.give_back()
            raise NotPinned(f"the driver refused to pin it (error {code})")

    def give_back(self, driver: Any = None) -> None:
        """What was taken. Only while nobody has been given a part of it."""
        if driver is not None:
            driver.cuMemHostUnregister.argtypes = [ctypes.c_void_p]
            driver.cuMemHostUnregister(self.address)
        if self._madvise(self.address, self.size, _DONTNEED):  # a process that locks all its memory
            ctypes.CDLL(None).munlock(ctypes.c_void_p(self.address), ctypes.c_size_t(self.size))
            self._madvise(self.address, self.size, _DONTNEED)

    def holds(self, pointer: int) -> bool:
        return self.address <= pointer < self.address + self.size

    # What the card has written is told from a word at the begin of each piece. They are read, never written once somebody
    # was given the memory: a figure that is a little too small is better than a wrong number in a tensor.

    def _mark(self) -> None:
        """A word that nobody writes by chance."""
        first = self._offset // 8
        for number in range(self._pieces):
            self._words[first + number * (PIECE // 8)] = int.from_bytes(os.urandom(8), "little")
        self._seen = self._look(self._pieces)

    def _look(self, pieces: int) -> list[int]:
        first, step = self._offset // 8, PIECE // 8
        return self._words[first : first + pieces * step : step].tolist()

    def is_changed(self) -> bool:
        """Whether the card has written here since `written` was asked. What is given first lies at the begin."""
        if os.getpid() != self._pid:
            return False
        pieces = min(_FIRST, self._pieces)
        return self._look(pieces) != self._seen[:pieces]

    def written(self) -> int:
        """Bytes from the begin to the last piece that was written since this was asked before."""
        if os.getpid() != self._pid:
            return 0
        now = self._look(self._pieces)
        changed = [number for number, (before, word) in enumerate(zip(self._seen, now)) if before != word]
        self._seen = now
        return (changed[-1] + 1) * PIECE if changed else 0


def gib(number: int) -> str:
    return f"{number / (1 << 30):.1f} GiB"


def keep(thing: Any) -> None:
    """For ever: the interpreter's end takes modules and objects apart in an order of its own."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
