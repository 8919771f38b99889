"""Tokens that were not made, from those that were."""

from __future__ import annotations

from oomproof.sizing.caching_allocator import CachingAllocator
from oomproof.sizing.log_variants import Event, continued

MIB = 1 << 20


def generation(tokens: int, layers: int = 3, start: int = 40) -> tuple[list[Event], list[int]]:
    """A cache that is copied into a larger one for each token, with a temporary; the events, and where each token begins."""
    events: list[Event] = [(1, 500 * MIB)]
    number, cuts = 2, []
    caches = []
    for _ in range(layers):
        events.append((number, start * MIB))
        caches.append(number)
        number += 1
    for token in range(1, tokens + 1):
        cuts.append(len(events))
        for layer in range(layers):
            events.append((number, (start + token) * MIB))
            events.append((-caches[layer], 0))
            caches[layer] = number
            events += [(number + 1, 7 * MIB), (-number - 1, 0)]
            number += 2
    cuts.append(len(events))
    return events + [(-cache, 0) for cache in caches] + [(number, 3 * MIB)], cuts


def reserved(events: list[Event]) -> tuple[int, int, int]:
    allocator = CachingAllocator()
    allocator.replay(events)
    return allocator.peak_allocated, allocator.peak_reserved, allocator.allocated


def test_as_if_all_tokens_had_been_made() -> None:
    whole, _ = generation(200)
    seen, cuts = generation(12)
    longer = continued(seen, cuts, 188, 10_000)
    assert longer is not None
    assert reserved(longer) == reserved(whole)
    assert reserved(longer)[1] > 2 * reserved(seen)[1], "the blocks of ever new sizes"


def test_tokens_without_a_pattern_are_left_alone() -> None:
    seen, cuts = generation(12)
    seen[cuts[-2] : cuts[-2]] = [(9_000, MIB), (-9_000, 0)]
    cuts[-1] += 2
    assert continued(seen, cuts, 188, 10_000) is None
    assert continued(seen, cuts[-3:], 188, 10_000) is None, "too few"
