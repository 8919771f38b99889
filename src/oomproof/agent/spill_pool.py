"""A pool of PyTorch's allocator that lies in pinned host memory, and from which it serves what the card refuses."""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Any, NamedTuple

from .cache_release import size
from .pinned_memory import MIB, PIECE, PinnedMemory, keep

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
