"""How little memory a log of allocations needs: the allocator gives cached segments back before it fails, so that a job fits into less than it reserves with plenty."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.sizing.caching_allocator import ROUND, ROUND_LARGE, CachingAllocator

Events = Sequence[tuple[int, int]]
_PRECISION = 1 / 1000  # of the answer: one replay more halves it


def smallest_capacity(events: Events, expandable: bool = False) -> int:
    """Bytes the allocator must be able to reserve for these events (see ``CachingAllocator.replay``) to succeed."""
    ample = CachingAllocator(expandable)
    ample.replay(events)
    low, high = most_live(events), ample.peak_reserved  # too little, or just enough; enough
    if low and fits(events, low, expandable):
        return low
    while high - low > max(ROUND_LARGE, high * _PRECISION):
        middle = (low + high) // 2 // ROUND_LARGE * ROUND_LARGE
        if middle <= low:
            break
        if fits(events, middle, expandable):
            high = middle
        else:
            low = middle
    return high


def fits(events: Events, capacity: int, expandable: bool = False) -> bool:
    """Whether the events succeed within that capacity. Ends at the first that fails."""
    allocator = CachingAllocator(expandable, capacity)
    malloc, free = allocator.malloc, allocator.free
    for name, size in events:
        if name > 0:
            malloc(name, size)
            if allocator.failures:
                return False
        elif name < 0:
            free(-name)
        else:
            allocator.release_cached()
    return True


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
