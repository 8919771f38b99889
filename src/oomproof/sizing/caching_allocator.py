"""torch's CUDA caching allocator, simulated: what it would have reserved for a log of storages.

The rules are those of c10/cuda/CUDACachingAllocator.cpp, native backend, one stream: requests are rounded to 512 bytes; up to
1 MiB they come from 2 MiB segments, below 10 MiB from 20 MiB ones, above that from segments rounded to 2 MiB; the best
fitting free block is taken and split; neighbours that are free are joined; a segment is kept until it is wholly free and
memory runs short.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from oomproof.units import MIB

ROUND = 512
SMALL = MIB  # the largest request served from the small pool
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
MIN_LARGE = 10 * MIB  # requests from here on get a segment of their own size
ROUND_LARGE = 2 * MIB
RANGE = 32 * MIB  # the driver takes addresses in multiples of that

_SMALL_POOL = 1 << 60  # the address of the small pool's expandable segment


class Block:
    __slots__ = ("address", "before", "behind", "size", "small", "used")

    def __init__(self, address: int, size: int, small: bool) -> None:
        self.address, self.size, self.small = address, size, small
        self.used = False
        self.before: Block | None = None
        self.behind: Block | None = None


class CachingAllocator:
    """``reserved`` and ``allocated`` as torch.cuda counts them, in bytes."""

    def __init__(self, expandable: bool = False, capacity: int | None = None) -> None:
        self.expandable, self.capacity = expandable, capacity
        self.reserved = self.peak_reserved = 0
        self.allocated = self.peak_allocated = 0
        self.retries = self.failures = 0
        self._blocks: dict[int, Block] = {}
        # large, small: size, address
        self._free: tuple[list[tuple[int, int]], list[tuple[int, int]]] = [], []
        self._at: dict[int, Block] = {}  # free blocks by address
        self._lowest = 1 << 62  # of the ranges of addresses taken so far
        self._gaps: list[
            tuple[int, int]
        ] = []  # address and bytes that are left of a range, the newest range last
        self._tail: list[Block | None] = [None, None]  # the last block of an expandable segment, by pool
        self._end = [0, _SMALL_POOL]  # of those segments

    def malloc(self, name: int, size: int) -> None:
        if not size:  # a place in the log at which nothing was taken
            return
        wanted = max(ROUND, -(-size // ROUND) * ROUND)
        small = wanted <= SMALL
        block = self._taken(wanted, small) or self._grown(wanted, small)
        self._split(block, wanted)
        block.used = True
        self._blocks[name] = block
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)

    def free(self, name: int) -> None:
        block = self._blocks.pop(name, None)
        if block is None:
            return
        self.allocated -= block.size
        block.used = False
        for side in (block.before, block.behind):
            if side is not None and not side.used:
                self._unlist(side)
                block = self._joined(block, side)
        self._list(block)

    def release_cached(self) -> None:
        """What ``empty_cache`` does, and what the allocator does by itself before it gives up."""
        for address in [address for pool in self._free for _, address in pool]:
            block = self._at[address]
            if self.expandable:
                self._unmap(block)
            elif block.before is None and block.behind is None:
                self._unlist(block)
                self.reserved -= block.size

    def _unmap(self, block: Block) -> None:
        """The whole pages of a free block of an expandable segment. What is left on both sides no longer joins: addresses are
        plenty, and the hole stays unused until the end of the segment."""
        page = _page(block.small)
        start, end = -(-block.address // page) * page, (block.address + block.size) // page * page
        if start >= end:
            return
        self._unlist(block)
        self.reserved -= end - start
        behind, after = block.behind, block.address + block.size - end
        head, tail = start - block.address, None
        if after:
            tail = Block(end, after, block.small)
            tail.behind = behind
            self._list(tail)
        if behind is not None:
            behind.before = tail
        if self._tail[block.small] is block:
            self._tail[block.small] = tail
        if head:
            block.size, block.behind = head, None
            self._list(block)
        elif block.before is not None:
            block.before.behind = None

    def replay(self, events: Sequence[tuple[int, int]]) -> None:
        """``events``: name and bytes; a negative name is given back; 0: what is cached is."""
        for name, size in events:
            if name > 0:
                self.malloc(name, size)
            elif name < 0:
                self.free(-name)
            else:
                self.release_cached()

    def _taken(self, wanted: int, small: bool) -> Block | None:
        pool = self._free[small]
        index = bisect_left(pool, (wanted, -1))
        if index == len(pool):
            return None
        block = self._at[pool[index][1]]
        self._unlist(block)
        return block

    def _grown(self, wanted: int, small: bool) -> Block:
        if self.expandable:
            return self._extended(wanted, small)
        size = segment_size(wanted)
        if self.capacity is not None and self.reserved + size > self.capacity:
            self.retries += 1
            self.release_cached()
            if self.reserved + size > self.capacity:
                self.failures += 1
        block = self._new(size, small)
        self._reserve(size)
        return block

    def _extended(self, wanted: int, small: bool) -> Block:
        """One segment a pool that grows at its end by pages of 2 MiB (small) or 20 MiB (large)."""
        tail = self._tail[small]
        size = self._growth(wanted, tail, small)
        if self.capacity is not None and self.reserved + size > self.capacity:
            self.retries += 1
            self.release_cached()
            tail = self._tail[small]
            size = self._growth(wanted, tail, small)
            if self.reserved + size > self.capacity:
                self.failures += 1
        self._reserve(size)
        self._end[small] += size
        if tail is not None and not tail.used:
            self._unlist(tail)
            tail.size += size
            return tail
        block = Block(self._end[small] - size, size, small)
        block.before = tail
        if tail is not None:
            tail.behind = block
        self._tail[small] = block
        return block

    def _growth(self, wanted: int, tail: Block | None, small: bool) -> int:
        """By how much the segment grows; a free block at its end is used."""
        have = tail.size if tail is not None and not tail.used else 0
        return -(-(wanted - have) // _page(small)) * _page(small)

    def _new(self, size: int, small: bool) -> Block:
        """Where the driver puts it, which decides between free blocks of one size, since the lowest is taken: into what is left of the newest
        range that has room, at its start; else into a new range below all others. So it was with 1,630 of 1,731 segments in seven published
        traces of trainings; the others went into what ranges older than the trace had left."""
        for index in range(len(self._gaps) - 1, -1, -1):
            address, left = self._gaps[index]
            if left >= size:
                self._gaps[index : index + 1] = [(address + size, left - size)] if left > size else []
                return Block(address, size, small)
        whole = -(-size // RANGE) * RANGE
        self._lowest -= whole
        if whole > size:
            self._gaps.append((self._lowest + size, whole - size))
        return Block(self._lowest, size, small)

    def _reserve(self, size: int) -> None:
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _split(self, block: Block, wanted: int) -> None:
        rest = block.size - wanted
        if rest < ROUND or not (block.small or self.expandable or rest > SMALL):
            return
        behind = Block(block.address + wanted, rest, block.small)
        behind.before, behind.behind = block, block.behind
        if block.behind is not None:
            block.behind.before = behind
        block.behind, block.size = behind, wanted
        if self._tail[block.small] is block:
            self._tail[block.small] = behind
        self._list(behind)

    def _joined(self, block: Block, side: Block) -> Block:
        first, second = (side, block) if side is block.before else (block, side)
        first.size += second.size
        first.behind = second.behind
        if second.behind is not None:
            second.behind.before = first
        for small in (0, 1):
            if self._tail[small] is second:
                self._tail[small] = first
        return first

    def _list(self, block: Block) -> None:
        insort(self._free[block.small], (block.size, block.address))
        self._at[block.address] = block

    def _unlist(self, block: Block) -> None:
        pool = self._free[block.small]
        del pool[bisect_left(pool, (block.size, block.address))]
        del self._at[block.address]


def _page(small: bool) -> int:
    return SMALL_SEGMENT if small else LARGE_SEGMENT


def segment_size(wanted: int) -> int:
    if wanted <= SMALL:
        return SMALL_SEGMENT
    if wanted < MIN_LARGE:
        return LARGE_SEGMENT
    return -(-wanted // ROUND_LARGE) * ROUND_LARGE


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
