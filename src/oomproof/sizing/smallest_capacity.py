"""How little memory a log of allocations needs: the allocator gives cached segments back before it fails, so that a job fits into less than it reserves with plenty."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.sizing.caching_allocator import ROUND, ROUND_LARGE, SMALL, CachingAllocator

Events = Sequence[tuple[int, int]]
_PRECISION = 1 / 1000  # of the answer: one replay more halves it
_STEPS = 12
_BESIDE = 1 / 200  # of the answer: a small pool of no more need not give way to the large one


def smallest_capacity(events: Events, expandable: bool = False) -> int:
    """Bytes the allocator must be able to reserve for these events (see ``CachingAllocator.replay``) to succeed. The small pool, which has most of
    them and little memory, is replayed once."""
    large, small = _by_pool(events)
    pool = CachingAllocator(expandable)
    pool.replay(small)
    found = _searched(large, expandable) + pool.peak_reserved
    return found if pool.peak_reserved <= found * _BESIDE else _searched(events, expandable)


def _by_pool(events: Events) -> tuple[Events, Events]:
    """Large, small: each in a pool of its own, from which the other takes nothing but capacity."""
    pools: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    is_small: dict[int, bool] = {}
    for name, size in events:
        if name > 0:
            is_small[name] = size <= SMALL
            pools[is_small[name]].append((name, size))
        elif name < 0:
            pools[is_small.pop(-name, False)].append((name, size))
        else:
            pools[0].append((name, size))
            pools[1].append((name, size))
    return pools


def _searched(events: Events, expandable: bool) -> int:
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
