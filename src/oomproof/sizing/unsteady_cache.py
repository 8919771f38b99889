"""How much of what is reserved hangs on small things: which cached block a large tensor finds. Pure.

Two jobs on an H200 (WGAN-GP, texts packed behind a mask) reserved one large block more than their logs did when replayed, with the same
tensors alive: a block of a gigabyte had been cut for a small one. The same logs come to what was measured when a few megabytes more are
held from somewhere on, as any other version of a library may hold them; of the jobs that were right, most do not move.
So the figure of one replay is that of one throw. Where most of these replays come to another, that one is expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from oomproof.sizing.caching_allocator import LARGE_SEGMENT, CachingAllocator, segment_size
from oomproof.units import MIB

Events = Sequence[tuple[int, int]]
# bytes that are held more, and from which share of the log on; the last four where they cost nothing to speak of (WGAN-GP's block moves in three
# of them alone; of 77 other jobs four more move, by 2 to 7 %)
_HELD = (
    (6 * MIB, 0.01), (3 * MIB, 0.02), (8 * MIB, 0.1), (12 * MIB, 0.3),
    (6 * MIB, 0.05), (12 * MIB, 0.05), (8 * MIB, 0.02), (12 * MIB, 0.1),
)  # fmt: skip
_FEWEST = 4
_NAME = 1 << 60  # of no storage in a log
_SHORT = 100_000  # events
_LONGEST = 400_000  # a longer log is tried once
_SAME = 0.02  # of what is reserved: closer ones differ by what is held and by segments of 20 MiB


def reserved_beside_others(events: Events, expandable: bool = False) -> list[int]:
    """Bytes that each of these replays reserves."""
    if not events:
        return []
    count = len(_HELD) if len(events) <= _SHORT else _FEWEST if len(events) <= _LONGEST else 1
    return [_reserved(events, size, int(share * len(events)), expandable) for size, share in _HELD[:count]]


def usual(reserved: int, others: Sequence[int]) -> int:
    """What is expected: the log's own figure, or the median of all where that is another one."""
    if len(others) < _FEWEST:
        return reserved
    middle = int(median([reserved, *others]))
    return middle if abs(middle - reserved) > max(_SAME * reserved, 2 * LARGE_SEGMENT) else reserved


def _reserved(events: Events, size: int, at: int, expandable: bool) -> int:
    allocator = CachingAllocator(expandable)
    allocator.replay(events[:at])
    allocator.malloc(_NAME, size)
    allocator.replay(events[at:])
    return allocator.peak_reserved - segment_size(size)
