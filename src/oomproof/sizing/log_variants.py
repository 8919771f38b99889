"""Variants of the log that a virtual run wrote, for what the followed steps cannot show. Pure.

- ``continued``: generation, continued from the tokens that were followed to all that were asked for.
- ``beyond``: what a cache still takes in the rest of an epoch, when it grew over the steps that were followed.
- ``reserved_in_other_orders``: the same steps in orders drawn at random. With 60 batches of molecules an H200 reserved 16.7 GB
  in its own order, and our log 8.0 in another.
- ``reserved_beside_others``: the same log beside a few MiB that are held, which decides which cached block a large tensor finds.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from oomproof.records import dataclass, field
from oomproof.sizing.caching_allocator import LARGE_SEGMENT, CachingAllocator, segment_size
from oomproof.units import MIB

Event = tuple[int, int]
_WHOLE = 32  # of so many tokens one has all its tensors; what another takes anew at the same size, and gives back, finds its blocks cached


@dataclass(frozen=True, slots=True)
class Token:
    """One pass. ``steps``: ("new", index) or ("free", tokens ago, index), in order; ``numbers`` and ``sizes`` of what it made."""

    steps: tuple[tuple[Any, ...], ...]
    numbers: tuple[int, ...]
    sizes: tuple[int, ...]


def read_token(events: list[Event], before: Token | None) -> Token:
    """A free of what is older than the token before is not the pattern's, and left out."""
    numbers: list[int] = []
    sizes: list[int] = []
    steps: list[tuple[Any, ...]] = []
    older = {number: index for index, number in enumerate(before.numbers)} if before is not None else {}
    for number, size in events:
        if number > 0:
            steps.append(("new", len(numbers)))
            numbers.append(number)
            sizes.append(size)
        elif -number in numbers:
            steps.append(("free", 0, numbers.index(-number)))
        elif -number in older:
            steps.append(("free", 1, older[-number]))
    return Token(tuple(steps), tuple(numbers), tuple(sizes))


def continued(events: list[Event], cuts: list[int], left: int, first_number: int) -> list[Event] | None:
    """The log with ``left`` more tokens behind the last of ``cuts``, the indexes at which the last tokens began (four are needed).
    None where the tokens seen do not have one pattern."""
    if len(cuts) < 4 or left <= 0:
        return None
    begin = read_token(events[cuts[-4] : cuts[-3]], None)
    middle = read_token(events[cuts[-3] : cuts[-2]], begin)
    last = read_token(events[cuts[-2] : cuts[-1]], middle)
    if middle.steps != last.steps:
        return None
    added = _more(middle, last, left, first_number)
    return events[: cuts[-1]] + added + list(_renamed(events[cuts[-1] :], last, added))


def _more(middle: Token, last: Token, left: int, number: int) -> list[Event]:
    growth = [after - before for before, after in zip(middle.sizes, last.sizes, strict=True)]
    alike = {step[2] for step in last.steps if step[:2] == ("free", 0) and not growth[step[2]]}
    added: list[Event] = []
    previous, current = list(last.numbers), list(last.numbers)
    for token in range(1, left + 1):
        previous, current = current, []
        left_out = alike if token % _WHOLE else frozenset()
        for step in last.steps:
            if step[-1] in left_out and step[:2] != ("free", 1):
                current += [0] if step[0] == "new" else []
            elif step[0] == "new":
                added.append((number, last.sizes[step[1]] + token * growth[step[1]]))
                current.append(number)
                number += 1
            else:
                added.append((-(previous if step[1] else current)[step[2]], 0))
    return added


def _renamed(events: list[Event], last: Token, added: list[Event]) -> Any:
    """What frees the last token seen frees the last one added, and all else that was added."""
    freed = {-number for number, _ in added if number < 0}
    alive = {number for number, _ in added if number > 0} - freed
    for number, size in events:
        if -number not in last.numbers:
            yield number, size
            continue
        for rest in sorted(alive):
            yield -rest, 0
        alive.clear()
        if -number not in freed:
            yield number, size


_FIRST = 3  # steps before the cache holds what every step takes
_FEW = 8  # steps that show how it grows
_UNSEEN = 0.25  # of what is reserved: RoBERTa on padded batches, an epoch of 42, had 24 % more in the end than after three steps and its largest batch (H200)


def beyond(reserved: Sequence[int], seen: int, batches: int | None) -> int:
    """Bytes. ``reserved``: after each step that was followed, which took ``seen`` batches of an epoch's ``batches`` (None: a stream).

    A cache grows by whole blocks, when a shape comes that fits into none of those kept: ever more rarely, so as much as one step has brought
    may come once more. Nothing where the whole epoch was followed."""
    if (batches is not None and seen >= batches) or not reserved:
        return 0
    if len(reserved) < _FEW:
        return int(_UNSEEN * reserved[-1])
    return max(after - before for before, after in pairwise(reserved[_FIRST - 1 :]))


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


# How much of what is reserved hangs on small things: which cached block a large tensor finds. Pure.
#
# Two jobs on an H200 (WGAN-GP, texts packed behind a mask) reserved one large block more than their logs did when replayed, with the same
# tensors alive: a block of a gigabyte had been cut for a small one. The same logs come to what was measured when a few megabytes more are
# held from somewhere on, as any other version of a library may hold them; of the jobs that were right, most do not move.
# So the figure of one replay is that of one throw. Where most of these replays come to another, that one is expected.

# bytes that are held more, and from which share of the log on; the last four where they cost nothing to speak of (WGAN-GP's block moves in three
# of them alone; of 77 other jobs four more move, by 2 to 7 %)
_HELD = (
    (6 * MIB, 0.01), (3 * MIB, 0.02), (8 * MIB, 0.1), (12 * MIB, 0.3),
    (6 * MIB, 0.05), (12 * MIB, 0.05), (8 * MIB, 0.02), (12 * MIB, 0.1),
)  # fmt: skip
_FEWEST_REPLAYS = 4
_NAME = 1 << 60  # of no storage in a log
_SHORT = 100_000  # events
_LONGEST_LOG = 400_000  # a longer log is tried once
_SAME = 0.02  # of what is reserved: closer ones differ by what is held and by segments of 20 MiB


def reserved_beside_others(events: Events, expandable: bool = False) -> list[int]:
    """Bytes that each of these replays reserves."""
    if not events:
        return []
    count = len(_HELD) if len(events) <= _SHORT else _FEWEST_REPLAYS if len(events) <= _LONGEST_LOG else 1
    return [
        _reserved_beside(events, size, int(share * len(events)), expandable) for size, share in _HELD[:count]
    ]


def usual(reserved: int, others: Sequence[int]) -> int:
    """What is expected: the log's own figure, or the median of all where that is another one."""
    if len(others) < _FEWEST_REPLAYS:
        return reserved
    middle = int(median([reserved, *others]))
    return middle if abs(middle - reserved) > max(_SAME * reserved, 2 * LARGE_SEGMENT) else reserved


def _reserved_beside(events: Events, size: int, at: int, expandable: bool) -> int:
    allocator = CachingAllocator(expandable)
    allocator.replay(events[:at])
    allocator.malloc(_NAME, size)
    allocator.replay(events[at:])
    return allocator.peak_reserved - segment_size(size)
