"""A large block that finds its cached one only by luck."""

from __future__ import annotations

from oomproof.sizing.caching_allocator import CachingAllocator
from oomproof.sizing.log_variants import reserved_beside_others, usual

MIB = 1 << 20


def _reserved(events: list[tuple[int, int]]) -> int:
    allocator = CachingAllocator()
    allocator.replay(events)
    return allocator.peak_reserved


def test_a_cached_block_that_is_cut_for_a_small_one() -> None:
    """1000 MiB are free when the next 1000 are asked for, unless something small has no other place."""
    events = [(1, 1000 * MIB), (2, 40 * MIB), (-2, 0), (-1, 0)]
    for number in range(3, 203):  # what a small tensor finds is the block of 40
        events += [(number, 36 * MIB), (-number, 0)]
    events += [(300, 36 * MIB), (301, 1000 * MIB)]
    assert _reserved(events) == 1040 * MIB
    assert max(reserved_beside_others(events)) > 2000 * MIB
    assert usual(_reserved(events), reserved_beside_others(events)) > 2000 * MIB, "most do not find it"


def test_a_steady_log_stays_what_it_is() -> None:
    events = [(1, 400 * MIB), (2, 40 * MIB), (-2, 0), (3, 40 * MIB), (-3, 0)]
    assert max(reserved_beside_others(events)) == _reserved(events)
    assert reserved_beside_others([]) == []


def test_what_most_replays_come_to_is_expected() -> None:
    few, many = 7118 * MIB, 8100 * MIB
    assert usual(few, [many, many, many + MIB, few]) == many
    assert usual(few, [many, few, few, many]) == few
    assert usual(few, [few - 20 * MIB] * 4) == few, "what is held makes as much of a difference"
    assert usual(308 * MIB, [284 * MIB] * 4) == 308 * MIB
    assert usual(few, [many]) == few, "a long log is tried once, which says little"
