"""The rules of torch's allocator, as its source states them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomproof.sizing.caching_allocator import CachingAllocator, segment_size

MIB = 1 << 20


def test_requests_are_rounded_to_512_bytes() -> None:
    allocator = CachingAllocator()
    allocator.malloc(1, 1)
    assert allocator.allocated == 512
    allocator.malloc(2, 513)
    assert allocator.allocated == 512 + 1024


def test_segments_by_size_of_the_request() -> None:
    assert segment_size(MIB) == 2 * MIB
    assert segment_size(MIB + 512) == 20 * MIB
    assert segment_size(10 * MIB - 512) == 20 * MIB
    assert segment_size(10 * MIB) == 10 * MIB
    assert segment_size(11 * MIB) == 12 * MIB


def test_of_free_blocks_of_one_size_the_lowest_is_taken() -> None:
    """Ranges of addresses follow one another downwards; what is left of the newest is used first, from its start."""
    allocator = CachingAllocator()
    for name, size in ((1, 40), (2, 40), (3, 20), (4, 2), (5, 20)):
        allocator.malloc(name, size * MIB)
    at = {name: block.address // MIB for name, block in allocator._blocks.items()}
    assert [at[1] - at[2], at[2] - at[3], at[4] - at[2], at[3] - at[5]] == [64, -40, 64 + 40, 40 + 32]


def test_small_requests_share_a_segment_and_large_ones_another() -> None:
    allocator = CachingAllocator()
    allocator.malloc(1, MIB)
    allocator.malloc(2, MIB)
    assert allocator.reserved == 2 * MIB
    allocator.malloc(3, 512)
    assert allocator.reserved == 4 * MIB
    allocator.malloc(4, 9 * MIB)
    allocator.malloc(5, 9 * MIB)
    assert allocator.reserved == 24 * MIB


def test_the_best_fitting_block_is_taken() -> None:
    allocator = CachingAllocator()
    for name, size in ((1, 40), (2, 12), (3, 20)):
        allocator.malloc(name, size * MIB)
    for name in (1, 2, 3):
        allocator.free(name)
    allocator.malloc(4, 12 * MIB)
    allocator.malloc(5, 20 * MIB)
    allocator.malloc(6, 40 * MIB)
    assert allocator.reserved == 72 * MIB, "each fitted into a block of its own size"


def test_a_large_block_keeps_a_rest_of_a_mebibyte() -> None:
    allocator = CachingAllocator()
    allocator.malloc(1, 12 * MIB)
    allocator.free(1)
    allocator.malloc(2, 11 * MIB)
    assert allocator.allocated == 12 * MIB, "too little to split off"
    allocator.free(2)
    allocator.malloc(3, 11 * MIB - 512)
    assert allocator.allocated == 11 * MIB - 512


def test_free_neighbours_are_joined() -> None:
    allocator = CachingAllocator()
    for name in (1, 2):
        allocator.malloc(name, 9 * MIB)
    for name in (1, 2):
        allocator.free(name)
    allocator.malloc(3, 20 * MIB)
    assert allocator.reserved == 20 * MIB


def test_a_live_block_between_two_free_ones_splits_the_segment() -> None:
    allocator = CachingAllocator()
    for name in range(1, 4):
        allocator.malloc(name, 6 * MIB)
    allocator.free(1)
    allocator.free(3)
    allocator.malloc(4, 12 * MIB)
    assert allocator.reserved == 32 * MIB


def test_cached_segments_are_given_back_before_it_gives_up() -> None:
    allocator = CachingAllocator(capacity=100 * MIB)
    allocator.malloc(1, 60 * MIB)
    allocator.free(1)
    allocator.malloc(2, 80 * MIB)
    assert (allocator.retries, allocator.failures, allocator.reserved) == (1, 0, 80 * MIB)
    allocator.malloc(3, 30 * MIB)
    assert allocator.failures == 1


def test_expandable_segments_grow_at_their_end() -> None:
    """Sizes that rise step by step: the old blocks are of use for the new ones."""
    plain, expandable = CachingAllocator(), CachingAllocator(expandable=True)
    for size in range(20, 200, 20):
        for allocator in (plain, expandable):
            allocator.malloc(size, size * MIB)
            allocator.free(size)
    assert plain.reserved == sum(range(20, 200, 20)) * MIB
    assert expandable.reserved == 180 * MIB


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 64 * MIB)), max_size=60), st.booleans())
def test_nothing_is_lost(requests: list[tuple[int, int]], expandable: bool) -> None:
    """A name that is live is freed, one that is not is taken; in the end all is free and no byte was made or lost."""
    allocator, live = CachingAllocator(expandable), set()
    for name, size in requests:
        if name in live:
            allocator.free(name)
            live.remove(name)
        else:
            allocator.malloc(name, size)
            live.add(name)
        assert allocator.allocated <= allocator.reserved
    for name in live:
        allocator.free(name)
    assert allocator.allocated == 0
    free = sum(size for pool in allocator._free for size, _ in pool)
    assert free == allocator.reserved
    allocator.release_cached()
    assert expandable or allocator.reserved == 0
