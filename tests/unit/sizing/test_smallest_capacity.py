"""The smallest capacity at which a log of allocations succeeds."""

from __future__ import annotations

import time
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from oomproof.sizing.caching_allocator import CachingAllocator, fits, most_live, smallest_capacity

MIB = 1 << 20


def test_cached_segments_are_given_back_before_it_fails() -> None:
    events = [(1, 60 * MIB), (-1, 0), (2, 80 * MIB)]
    ample = CachingAllocator()
    ample.replay(events)
    assert ample.peak_reserved == 140 * MIB
    assert smallest_capacity(events) == 80 * MIB


def test_a_block_in_use_keeps_its_segment() -> None:
    """20 MiB of which 8 are in use cannot be given back, and 12 MiB do not fit into what is free beside them."""
    events = [(1, 4 * MIB), (2, 4 * MIB), (3, 4 * MIB), (-1, 0), (-3, 0), (4, 30 * MIB)]
    assert smallest_capacity(events) == 50 * MIB
    assert most_live(events) == 34 * MIB


def test_pages_of_an_expandable_segment_are_given_back_one_by_one() -> None:
    events = [(1, 100 * MIB), (2, 20 * MIB), (-1, 0), (3, 105 * MIB)]
    assert smallest_capacity(events, expandable=True) == 140 * MIB, "20 in use, 105 in pages of 20"
    assert smallest_capacity(events) == 126 * MIB


def test_a_growing_tensor_needs_two_copies_whatever_the_segments() -> None:
    """torch.cat of a cache: the old one and the new one."""
    events: list[tuple[int, int]] = []
    for size in range(1, 20):
        events.append((size, size * 20 * MIB))
        if size > 1:
            events.append((1 - size, 0))
    for expandable in (False, True):
        assert smallest_capacity(events, expandable) == (18 + 19) * 20 * MIB
    ample = CachingAllocator()
    ample.replay(events)
    assert ample.peak_reserved > 2 * 37 * 20 * MIB


def test_nothing_needs_nothing() -> None:
    assert smallest_capacity([]) == 0
    assert smallest_capacity([(1, 0), (-1, 0)]) == 0


def replays() -> st.SearchStrategy[list[tuple[int, int]]]:
    """Logs of up to 60 allocations of every kind, freed in any order."""
    sizes = st.sampled_from(
        [512, 300_000, MIB, MIB + 1, 3 * MIB, 9 * MIB, 10 * MIB, 11 * MIB, 25 * MIB, 70 * MIB]
    )
    return st.lists(st.tuples(sizes, st.integers(0, 12)), min_size=1, max_size=60).map(_log)


def _log(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    events: list[tuple[int, int]] = []
    live: list[int] = []
    for name, (size, choice) in enumerate(steps, 1):
        events.append((name, size))
        live.append(name)
        if choice < 8 and len(live) > choice % 4:
            events.append((-live.pop(choice % len(live)), 0))
        if choice == 12:
            events.append((0, 0))
    return events


@given(replays(), st.booleans())
def test_it_succeeds_there_and_not_much_below(events: list[tuple[int, int]], expandable: bool) -> None:
    least = smallest_capacity(events, expandable)
    ample = CachingAllocator(expandable)
    ample.replay(events)
    assert most_live(events) <= least <= ample.peak_reserved
    assert fits(events, least, expandable)
    bounded = CachingAllocator(expandable, least)
    bounded.replay(events)
    assert bounded.failures == 0 and bounded.peak_reserved <= least
    below = least - max(2 * MIB, least // 500)
    assert below < most_live(events) or not fits(events, below, expandable)


@given(replays())
def test_an_expandable_allocator_stays_whole_when_pages_are_given_back(events: list[tuple[int, int]]) -> None:
    """Blocks neither overlap nor get lost: what is reserved is what is used and what is free."""
    allocator = CachingAllocator(expandable=True)
    for name, size in events:
        if name > 0:
            allocator.malloc(name, size)
        else:
            allocator.free(-name)
        if name % 5 == 0:
            allocator.release_cached()
        free = sum(size for pool in allocator._free for size, _ in pool)
        assert allocator.reserved == allocator.allocated + free
        spans = sorted(
            (block.address, block.size) for block in (*allocator._blocks.values(), *allocator._at.values())
        )
        for (start, size_of), (following, _) in pairwise(spans):
            assert start + size_of <= following
    for name in list(allocator._blocks):
        allocator.free(name)
    allocator.release_cached()
    assert allocator.reserved == 0


def test_a_hundred_thousand_events_take_seconds() -> None:
    """Deadline against a hang only: 0.13 s a replay, nine of them, on a slow core."""
    events: list[tuple[int, int]] = []
    live: list[int] = []
    for name in range(1, 50_001):
        events.append((name, (4096, 300_000, 3 << 20, 25 << 20)[name % 4]))
        live.append(name)
        if len(live) > 300:
            events.append((-live.pop((name * 7919) % 300), 0))
    started = time.monotonic()
    assert smallest_capacity(events) >= most_live(events)
    assert time.monotonic() - started < 120
