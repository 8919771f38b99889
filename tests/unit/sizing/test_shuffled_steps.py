"""Batches of many shapes in other orders than the one that was followed."""

from __future__ import annotations

from oomproof.sizing.caching_allocator import CachingAllocator
from oomproof.sizing.shuffled_steps import most_reserved

MIB = 1 << 20
Log = tuple[list[tuple[int, int]], list[int]]


def _log(batches: list[int], parameters: int = 100 * MIB) -> Log:
    """A training as torch's: gradients of one step go when the next begins, activations with their step, the optimizer's state comes with the first."""
    events: list[tuple[int, int]] = [(1, parameters)]
    ends: list[int] = []
    number, gradient = 2, 0
    for batch in batches:
        if gradient:
            events.append((-gradient, parameters))
        kept = []
        for part in (3, 5, 2):
            events.append((number, part * batch))
            kept.append(number)
            number += 1
        gradient = number
        events.append((number, parameters))
        events += [(-name, 0) for name in reversed(kept)]
        if not ends:
            events.append((number + 1, 2 * parameters))
        number += 2
        ends.append(len(events))
    return events, ends


def _reserved(events: list[tuple[int, int]]) -> int:
    allocator = CachingAllocator()
    allocator.replay(events)
    return allocator.peak_reserved


def test_batches_that_grow_take_more_than_the_largest_first() -> None:
    sizes = [(40 + 7 * index) * MIB for index in range(12)]
    events, ends = _log(sizes[::-1])
    other = most_reserved(events, ends, 12, 12, start=1)
    assert other > 1.05 * _reserved(events)
    assert other <= 2 * _reserved(_log(sizes)[0]), "some orders of these, none of more"
    assert other == most_reserved(events, ends, 12, 12, start=1), "the same again"


def test_the_first_batch_may_be_another_too() -> None:
    """Molecules on an H200: the largest batch came first in our log, and not on the card, which reserved twice as much."""
    events, ends = _log([120 * MIB, *[(30 + 8 * index) * MIB for index in range(9)]])
    assert most_reserved(events, ends, 10, 10, start=1) > 1.2 * _reserved(events)


def test_batches_that_are_all_alike_take_what_they_took() -> None:
    events, ends = _log([60 * MIB] * 8)
    assert most_reserved(events, ends, 8, 8, start=1) == _reserved(events), "gradients are handed from step to step"


def test_an_epoch_goes_on_behind_the_batches_that_were_followed() -> None:
    events, ends = _log([(40 + 7 * index) * MIB for index in range(6)][::-1])
    assert most_reserved(events, ends, 6, 60, start=1) > 1.05 * _reserved(events)


def test_what_is_made_for_good_is_made_once() -> None:
    events = [(number, 20 * MIB) for number in range(1, 11)]
    assert most_reserved(events, list(range(1, 11)), 10, 900) == 200 * MIB


def test_too_few_steps_say_nothing() -> None:
    events, ends = _log([40 * MIB, 60 * MIB])
    assert most_reserved(events, ends, 2, 40, start=1) == 0
    assert most_reserved([], [], 0, None) == 0
