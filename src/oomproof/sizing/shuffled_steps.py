"""What a cache may come to where batches of many shapes come in another order than the one that was followed. Pure.

Each step that was followed is a piece of the log, and can be replayed at any place of an epoch: as often as the epoch has steps, in orders
drawn at random. Of molecules with 60 batches, an H200 reserved 16.7 GB in its own order, and our log 8.0 in another.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from oomproof.records import dataclass, field
from oomproof.sizing.caching_allocator import CachingAllocator

Events = Sequence[tuple[int, int]]
_ORDERS = 6
_LONGEST = 2_500_000  # events of all orders together: two to four seconds of replay
_FEWEST = 3  # steps: fewer show no order


@dataclass(slots=True)
class _Step:
    """``taken``: what it gives back of earlier ones, number and bytes; ``handed``: what it makes and a later one gives back; ``lasting``: what
    it makes and none gives back, which a second time would be there already."""

    events: Events
    taken: dict[int, int] = field(default_factory=dict)
    handed: dict[int, int] = field(default_factory=dict)
    lasting: dict[int, int] = field(default_factory=dict)


def reserved_in_other_orders(
    events: Events,
    step_ends: Sequence[int],
    seen: int,
    batches: int | None,
    expandable: bool = False,
    start: int = 0,
) -> list[int]:
    """Bytes for each of these orders; none where too few steps were followed. ``seen`` batches of an epoch's ``batches``
    (None: a stream) were in those steps, and ``start`` events before the first."""
    ends = [start, *(end for end in step_ends if end > start)]
    if len(ends) <= 1 + _FEWEST:
        return []
    steps = _steps(events, ends)
    wanted = len(steps) if not batches or not seen else max(len(steps), len(steps) * batches // seen)
    usual = max(1, (ends[-1] - start) // len(steps))
    orders = min(_ORDERS, max(1, _LONGEST // (usual * wanted)))
    wanted = max(len(steps), min(wanted, _LONGEST // usual))
    draw = random.Random(0)
    return [
        _reserved(events[:start], steps, _order(len(steps), wanted, draw), expandable) for _ in range(orders)
    ]


def _order(count: int, wanted: int, draw: random.Random) -> list[int]:
    """Every step once, and as many more of them as the epoch has."""
    order = [*range(count), *(draw.randrange(count) for _ in range(wanted - count))]
    draw.shuffle(order)
    return order


def _steps(events: Events, ends: Sequence[int]) -> list[_Step]:
    """The pieces between the ends."""
    makers: dict[int, tuple[int, int]] = {}  # number → the piece that makes it, bytes
    steps = [_Step(events[start:end]) for start, end in pairwise(ends)]
    for number, size in events[: ends[0]]:
        if number > 0:
            makers[number] = (-1, size)
    for index, step in enumerate(steps):
        for number, size in step.events:
            if number > 0:
                makers[number] = (index, size)
                step.lasting[number] = size
            elif number < 0 and -number in makers:
                maker, made = makers.pop(-number)
                if maker >= 0:
                    del steps[maker].lasting[-number]
                if maker != index:
                    step.taken[-number] = made
                    if maker >= 0:
                        steps[maker].handed[-number] = made
    passed = {size for step in steps for size in step.handed.values()}
    last = steps[-1]
    for number in [number for number, size in last.lasting.items() if size in passed]:
        last.handed[number] = last.lasting.pop(number)  # its gradients, which the next step would give back
    return steps


def _reserved(loaded: Events, steps: Sequence[_Step], order: Sequence[int], expandable: bool) -> int:
    allocator = CachingAllocator(expandable)
    allocator.replay(loaded)
    apart = 1 + max((abs(number) for step in steps for number, _ in step.events), default=0)
    apart = max(apart, 1 + max((number for number, _ in loaded), default=0))
    lost = {number for step in steps for number in step.taken}
    living = {number for number, _ in loaded if number > 0 and number in lost}
    before: set[int] = set()  # the steps that were replayed already
    passed: dict[int, list[int]] = defaultdict(list)  # bytes → numbers that an earlier step has handed on
    for turn, index in enumerate(order, 1):
        step, shift = steps[index], turn * apart
        known: dict[int, int] = step.lasting if index in before else {}
        before.add(index)
        named: dict[int, int] = {}
        rest = passed
        passed = defaultdict(list)
        for number, size in step.taken.items():
            if number in living:
                living.discard(number)
                named[number] = number
            elif rest[size]:
                named[number] = rest[size].pop(0)
            elif turn > 1:  # as a batch that was sent to the card during the step before
                named[number] = number + shift
                allocator.malloc(number + shift, size)
        for number, size in step.events:
            if number > 0:
                if number not in known:
                    allocator.malloc(number + shift, size)
            elif number < 0:
                allocator.free(named.get(-number, -number + shift))
            else:
                allocator.release_cached()
        if turn == 1 and index:  # the optimizer's state comes with whichever is first
            allocator.replay(list(steps[0].lasting.items()))
            before.add(0)
        for numbers in rest.values():
            for number in numbers:
                allocator.free(number)
        for number, size in step.handed.items():
            passed[size].append(number + shift)
    return allocator.peak_reserved
