"""A pool of PyTorch's allocator that lies in pinned host memory, and from which it serves what the card refuses."""

from __future__ import annotations

import ctypes
from typing import Any

from .pinned_memory import MIB, PIECE, PinnedMemory, keep

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
