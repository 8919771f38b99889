"""How little memory a log of allocations needs: the allocator gives cached segments back before it fails, so that a job fits into less than it reserves with plenty."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.sizing.caching_allocator import ROUND, ROUND_LARGE, CachingAllocator

Events = Sequence[tuple[int, int]]
_PRECISION = 1 / 1000  # of the answer: one replay more halves it
_STEPS = 12


def smallest_capacity(events: Events, expandable: bool = False) -> int:
    """Bytes the allocator must be able to reserve for these events (see ``CachingAllocator.replay``) to succeed."""
    low, high = _climbed(events, expandable)
    while high - low > max(ROUND_LARGE, high * _PRECISION):
        middle = (low + high) // 2 // ROUND_LARGE * ROUND_LARGE
        if middle <= low:
            break
        if _wanted(events, middle, expandable) is None:
            high = middle
        else:
            low = middle
    return high


def _climbed(events: Events, expandable: bool) -> tuple[int, int]:
    """(too little, enough): from what is live at least to what the first refused request would have needed, and so on. A replay that fails
    ends early, and the answer is seldom more than a few such steps away."""
    low, capacity = 0, most_live(events)
    for _ in range(_STEPS):
        wanted = _wanted(events, capacity, expandable)
        if wanted is None:
            below = capacity - max(ROUND_LARGE, int(capacity * _PRECISION))
            if low < below and _wanted(events, below, expandable) is not None:
                low = below
            return low if capacity > low else capacity, capacity
        low, capacity = capacity, max(wanted, capacity + ROUND_LARGE)
    ample = CachingAllocator(expandable)
    ample.replay(events)
    return low, ample.peak_reserved


def fits(events: Events, capacity: int, expandable: bool = False) -> bool:
    """Whether the events succeed within that capacity."""
    return _wanted(events, capacity, expandable) is None


def _wanted(events: Events, capacity: int, expandable: bool) -> int | None:
    """What the first request that fails would have needed, with what was reserved then; None where all succeed."""
    allocator = CachingAllocator(expandable, capacity)
    malloc, free = allocator.malloc, allocator.free
    for name, size in events:
        if name > 0:
            malloc(name, size)
            if allocator.failures:
                return allocator.reserved
        elif name < 0:
            free(-name)
        else:
            allocator.release_cached()
    return None


def most_live(events: Events) -> int:
    """The most that was in use at once, in the pages of 2 MiB that every segment is made of."""
    sizes: dict[int, int] = {}
    live = most = 0
    for name, size in events:
        if name > 0:
            sizes[name] = rounded = -(-size // ROUND) * ROUND
            live += rounded
            most = max(most, live)
        elif name < 0:
            live -= sizes.pop(-name, 0)
    return -(-most // ROUND_LARGE) * ROUND_LARGE
