"""A pool of PyTorch's allocator that lies in pinned host memory, and from which it serves what the card refuses."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from .cache_release import size

MIB = 1 << 20
PIECE = 2 * MIB  # a huge page, and PyTorch's smallest segment
_AT_ONCE = 32 * MIB  # between two looks at what is left: 10 ms, in which the process can map no other memory
_DONTNEED, _DONTFORK, _HUGEPAGE, _POPULATE_WRITE = 4, 10, 14, 23  # of madvise(2)
_PORTABLE_MAPPED = 3  # cuMemHostRegister's flags: for every context, and at an address of the card's
_GLANCED = 64  # pieces whose words are looked at after each step: 10 microseconds

_USUAL = 31  # steps without a spill, by which one with a spill is measured
_FEW = 3  # of them tell nothing
_SAFE = 0.95  # of what would fit: segments leave gaps
# Steps, and share of them that spilled: then the batch is too large, not one batch. Where a loop runs ahead of the card, two steps' spills are seen
# in one look.
_LATELY, _MOSTLY = 20, 0.5


class StepTimes:
    """How long steps take, and how many of the last ones spilled."""

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=_USUAL)
        self._spilled: deque[bool] = deque(maxlen=_LATELY)

    def add(self, seconds: float, spilled: bool) -> None:
        self._spilled.append(spilled)
        if not spilled:
            self._usual.append(seconds)

    @property
    def usual(self) -> float | None:
        """The median."""
        return sorted(self._usual)[len(self._usual) // 2] if len(self._usual) >= _FEW else None

    @property
    def always_spills(self) -> bool:
        return len(self._spilled) == _LATELY and sum(self._spilled) >= _MOSTLY * _LATELY


class Spilled(NamedTuple):
    """One step, or one visit of a phase."""

    phase: str
    step: int | None
    bytes: int
    seconds: float | None  # that it took
    usual: float | None  # that it takes without a spill
    batch: int | None  # samples
    fits: float | None  # the share of this batch that would have fitted the card
    left: int = 0  # bytes that stay in host memory after it
    # all that was ever alive at once would have fitted the card: it was its pieces, not the batch
    is_gaps: bool = False

    @property
    def slower(self) -> float | None:
        return None if self.seconds is None or self.usual is None else max(0.0, self.seconds - self.usual)

    @property
    def fitting_batch(self) -> int | None:
        return int(self.batch * self.fits) if self.batch and self.fits else None


def fitting_share(capacity: int, fixed: int, needed: int) -> float | None:
    """Of a batch that needs ``needed`` bytes in all, ``fixed`` of them whatever its size: the part that the card's ``capacity``
    holds. None where these figures tell nothing."""
    if needed <= capacity or capacity <= fixed or needed <= fixed:
        return None
    return _SAFE * (capacity - fixed) / (needed - fixed)


def text_of(spilled: Spilled) -> str:
    where = f"step {spilled.step}" if spilled.step is not None else "the job"
    if spilled.phase not in ("train", ""):
        where += f" ({spilled.phase})" if spilled.step is not None else f", in {spilled.phase},"
    text = f"{where} spilled {size(spilled.bytes)} into host memory"
    if spilled.slower is not None:
        text += f", {_seconds(spilled.slower)} slower ({_seconds(spilled.seconds)} instead of {_seconds(spilled.usual)})"
    elif spilled.seconds is not None:
        text += f", it took {_seconds(spilled.seconds)}"
    if spilled.left:
        text += f"; {size(spilled.left)} of it stay there"
    return text + (f"; {advice}" if (advice := advice_of(spilled)) else "")


def advice_of(spilled: Spilled, fits: int | None = None) -> str:
    """``fits``: the smallest batch that was named so far."""
    fits = fits or spilled.fitting_batch
    if spilled.is_gaps:
        other = f", or a batch of {fits} (this one: {spilled.batch})" if fits else ""
        return (
            "its tensors would have fitted the card, but not its free pieces: expandable_segments:True in PYTORCH_ALLOC_CONF "
            f"avoids that{other}"
        )
    if fits:
        return f"a batch of {fits} always fits (this one: {spilled.batch})"
    if spilled.fits:
        return f"{spilled.fits:.0%} of this batch would have fitted"
    return ""


def always_text(spilled: Spilled, fits: int | None = None) -> str:
    """Said once, of a job whose batch is too large."""
    slower = f", {_seconds(spilled.slower)} slower each" if spilled.slower else ""
    advice = advice_of(spilled, fits) or "use a smaller batch"
    return f"most steps spill{slower}: that is no exception, the batch is too large for the card; {advice}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value:.1f} s" if value >= 0.95 else f"{value * 1000:.0f} ms"


class NotPinned(Exception):
    pass


class PinnedMemory:
    """Host memory that a card can use: taken piece by piece while enough is left, pinned as one, given back where anything fails.

    It is this process's anonymous memory: it counts in its RSS and its cgroup as all memory does. (What cudaHostAlloc takes is the
    driver's, and counts in neither.) A forked child does not get it: pinned pages are copied at a fork, and a loader's workers are forked.
    """

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
        pieces = min(_GLANCED, self._pieces)
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


# Tensors of up to 1 MiB come from segments of their own (2 MiB): a 64th of the spill, within these.
_SMALL_SHARE, _SMALL_LEAST, _SMALL_MOST = 64, 16 * MIB, 128 * MIB


def small_part(size: int) -> int:
    """Of a spill of ``size`` bytes, those for small tensors."""
    return min(_SMALL_MOST, max(_SMALL_LEAST, size // _SMALL_SHARE)) // PIECE * PIECE


class SpillPool:
    """Made once, kept until the process ends: PyTorch may hold tensors in it to the last moment."""

    def __init__(self, torch: Any, device: int, memory: PinnedMemory, large: int) -> None:
        """``large``: bytes for tensors above 1 MiB; the rest of the memory is for small ones."""
        self.torch, self.device, self.memory = torch, device, memory
        self._given, self._large = 0, large
        callback = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(
            self._give
        )
        # Freeing is a function of C that takes no notice: at the interpreter's end no Python could be called any more.
        ignore = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
        allocator = torch._C._cuda_customAllocator(ctypes.cast(callback, ctypes.c_void_p).value, ignore)
        self._pool = torch.cuda.MemPool(allocator, use_on_oom=True)
        for thing in (callback, allocator, self._pool):
            keep(thing)
        segments = self._take_all()
        if not all(memory.holds(segment.data_ptr()) for segment in segments):
            raise RuntimeError("the allocator took other memory")

    def _take_all(self) -> list[Any]:
        """A tensor in each segment; the large one first, so that it lies at the begin."""
        torch, card = self.torch, f"cuda:{self.device}"
        sizes = [self._large] + [MIB] * (2 * ((self.memory.size - self._large) // PIECE))
        with torch.cuda.use_mem_pool(self._pool, self.device):
            return [torch.empty(size, dtype=torch.uint8, device=card) for size in sizes]

    @property
    def size(self) -> int:
        """Bytes that the allocator counts as reserved, though they are none of the card's."""
        return self._given

    def _give(self, length: int, device: int, stream: Any) -> int | None:
        if length <= 0 or self._given + length > self.memory.size:
            return None
        place = self.memory.address + self._given
        self._given += length
        return place

    def segments(self) -> list[dict[str, Any]]:
        try:  # without the history of allocations, where this PyTorch can leave it out
            whole = self.torch._C._cuda_memorySnapshot((*self._pool.id, False))
        except (TypeError, ValueError, RuntimeError):
            whole = self.torch._C._cuda_memorySnapshot(self._pool.id)
        return list(whole["segments"])

    def live(self) -> int:
        """Bytes of tensors that lie here now."""
        return sum(int(segment["allocated_size"]) for segment in self.segments())

    def withdraw(self, driver: Any) -> bool:
        """Gives the host its memory back, where no tensor lies in it. PyTorch is given no part of it from then on: all of it is
        taken, for good."""
        if self.live():
            return False
        self._withdrawn = self._take_all()
        self.memory.give_back(driver)
        return True
