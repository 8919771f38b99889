"""Which batch to measure next, and which to take: small ones first, each next one where the ones before say that it fits. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from oomproof.records import dataclass
from oomproof.sizing.batch_search import allowed_sizes, largest_batch
from oomproof.sizing.caching_allocator import CachingAllocator, Events, fits, smallest_capacity
from oomproof.sizing.fitting.memory_meter import Reading
from oomproof.sizing.scaled_log import LogPair, log_pair

START = 2  # batch normalisation fails on one sample, and kernels for one are often others
_SECOND = 0.6  # of the capacity: so far the second look goes, if all grew with the batch; what is fixed makes it less
_NEAR = 0.9  # the same where the first look is already large
# How far beyond the largest batch measured the answer may be: with each tensor's own line, with one line through two sums, and with such a
# line where two logs show other tensors: from some batch on other kernels are taken, and a third look may have a log that matches
_REACH_OF_LOGS, _REACH_OF_A_LINE, _REACH_OF_UNLIKE_LOGS = 4.0, 1.6, 1.05
_INTO_REST_BY_LOGS, _INTO_REST_BY_A_LINE = 0.75, 0.5
_STEEPER = 1.05  # a kink between the two looks makes the line too flat beyond them
_LEAP, _LEAP_ON_HOST = 64, 8  # times the largest measured, at most; there a step too far is a kernel's kill
_WARMED = 8  # by as much the first steps of a process may take more than a batch does
_NEAR_ENOUGH = 0.99  # of the answer: another measurement would cost more than it gives
_ROUGHLY = 4  # looks at what is only the next to be measured
_EXPLAINS = 0.9  # of the capacity: a figure as high as that says why memory ran out, a lower one does not
_FAILED_AT = 0.97  # of the figure at which memory ran out: so much is believed in next
_MOST_PROBES = 8
# Of what there is. With a little more memory the allocator keeps other blocks, and what fits into less may fail: tried at each of these
_SHARES = (1.0, 0.9975, 0.995)
_STEPS_DOWN = 8


@dataclass(frozen=True, slots=True)
class Probe:
    """``reading``: None where memory ran out, of the kind that ``cause`` names."""

    batch: int
    reading: Reading | None
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Next:
    """``is_answer``: take it; else measure it first. ``most``: the largest batch that would fit, allowed or not. 0: not even the smallest fits."""

    batch: int
    is_answer: bool
    need: int | None = None
    most: int | None = None
    squares: int = 0
    tight: bool = False  # fits only since the allocator gives cached memory back, at every step


def next_batch(
    probes: Sequence[Probe],
    *,
    capacity: int | None = None,
    candidates: Sequence[int] | None = None,
    most: int | None = None,
    start: int = START,
    confirm: bool = False,
    expandable: bool = False,
) -> Next:
    """``capacity``: bytes that may be taken; None: what the last probe found there. ``confirm``: the answer is measured too."""
    sizes = allowed_sizes(most, candidates)
    failed = min((probe.batch for probe in probes if probe.cause is not None), default=None)
    ceiling = sizes[-1] if failed is None else min(sizes[-1], failed - 1)
    good = sorted(
        ((probe.batch, probe.reading) for probe in probes if probe.reading is not None),
        key=lambda pair: pair[0],
    )
    if failed is not None and failed <= sizes[0]:
        return Next(0, True)
    if not good:
        return Next(min(start, ceiling) if failed is None else max(1, failed // 2), False)
    available = good[-1][1].capacity if capacity is None else capacity
    within = [(batch, reading) for batch, reading in good if reading.need <= available]
    farthest = good[-1][0]
    between = ceiling if failed is None else max(farthest + 1, (farthest + failed) // 2)
    if len(good) == 1 and (second := _second(*good[0], available, min(ceiling, between))) is not None:
        return Next(second, False)
    need, pair, beyond = _needs(good, expandable)
    if failed is not None and need(failed) < available * _EXPLAINS:
        ceiling = min(ceiling, between)  # the figures do not say why it failed: half way, from here on
    learned = _learned(need, failed, available)
    answer, largest = _answer(need, within, learned, sizes, ceiling)
    if pair is not None:
        answer = _surely(pair, learned - beyond, expandable, answer, sizes, _proven(within, sizes))
    if answer == 0:
        return Next(0, True, need(sizes[0]))
    reach = int(farthest * _reach(good, pair))
    proven = _proven(within, sizes)
    squares = pair.squares if pair is not None else 0
    if len(probes) >= _MOST_PROBES:
        if confirm and answer > proven:
            answer = proven or answer
    elif answer > max(reach, farthest):
        return Next(
            _further(need, farthest, reach, available, ceiling, sizes, has_logs=pair is not None), False
        )
    elif confirm and answer > proven and proven < answer * _NEAR_ENOUGH:
        return Next(answer, False)
    elif confirm and proven:
        answer = min(answer, proven)
    tight = pair is not None and _reserved(pair.at(answer), expandable) > available
    return Next(answer, True, need(answer), largest, squares, tight)


def _reach(good: Sequence[tuple[int, Reading]], pair: LogPair | None) -> float:
    if pair is not None:
        return _REACH_OF_LOGS
    has_logs = len(good) > 1 and all(reading.events for _, reading in good[-2:])
    return _REACH_OF_UNLIKE_LOGS if has_logs else _REACH_OF_A_LINE


def _learned(need: Callable[[int], int], failed: int | None, capacity: int) -> int:
    """What can be had, where a batch failed that by its figure should have fitted."""
    if failed is None or not capacity * _EXPLAINS <= need(failed) <= capacity:
        return capacity
    return int(need(failed) * _FAILED_AT)


def _allowed(sizes: Sequence[int], batch: int) -> int:
    """The largest size up to that; 0: none."""
    count = bisect_right(sizes, batch)
    return sizes[count - 1] if count else 0


def _reserved(events: Events, expandable: bool) -> int:
    ample = CachingAllocator(expandable)
    ample.replay(events)
    return ample.peak_reserved


def _further(
    need: Callable[[int], int],
    farthest: int,
    reach: int,
    capacity: int,
    ceiling: int,
    sizes: Sequence[int],
    *,
    has_logs: bool,
) -> int:
    """The next look where the answer is too far away to be believed: into part of the memory that is left, so that what was taken for a line may
    turn out twice as steep."""
    at = need(farthest)
    share = _INTO_REST_BY_LOGS if has_logs else _INTO_REST_BY_A_LINE
    top = min(ceiling, farthest * (_LEAP if has_logs else _LEAP_ON_HOST))
    goal = at + int(share * (capacity - at))
    wanted = largest_batch(need, goal, start=farthest, most=top, calls=_ROUGHLY).batch
    wanted = min(top, max(wanted, reach, farthest + 1))
    allowed = _allowed(sizes, wanted)
    return allowed if allowed > farthest else wanted


def _proven(within: Sequence[tuple[int, Reading]], sizes: Sequence[int]) -> int:
    """The largest allowed size that is no larger than one that was measured and fits; 0: none."""
    return _allowed(sizes, within[-1][0]) if within else 0


def _second(batch: int, reading: Reading, capacity: int, ceiling: int) -> int | None:
    """The second look: None where the first says all. Above it as far as is safe, else below."""
    if reading.need > capacity:
        return batch // 2 or None
    if batch >= ceiling:
        return None
    fixed = max(reading.before, reading.kept)
    taken = max(1, reading.need - fixed, (reading.need - reading.before) // _WARMED)
    leap = _LEAP_ON_HOST if reading.on_host else _LEAP
    for share in (_SECOND, _NEAR):
        reached = min(ceiling, batch * leap, int(batch * (share * capacity - fixed) / taken))
        if reached > batch:
            return reached
    return batch // 2 or None


def _needs(
    good: Sequence[tuple[int, Reading]], expandable: bool
) -> tuple[Callable[[int], int], LogPair | None, int]:
    """What any batch needs: by the logs of the two largest where they show the same tensors, else by a line. Beside it what no log shows."""
    if len(good) == 1:
        batch, reading = good[0]
        return lambda other: reading.need * max(other, batch) // batch, None, 0
    (small, first), (large, second) = good[-2:]
    pair = None
    if first.events is not None and second.events is not None:
        pair = log_pair(small, first.events, large, second.events)
    known = {batch: reading.need for batch, reading in good}
    if pair is None:
        slope = max(0.0, (second.need - first.need) / (large - small))

        def on_the_line(batch: int) -> int:
            steeper = _STEEPER if batch > large else 1.0
            return known.get(batch) or int(second.need + slope * steeper * (batch - large))

        return on_the_line, None, 0
    seen: dict[int, int] = dict(known)
    beyond = max(0, second.need - smallest_capacity(second.events or (), expandable))

    def need(batch: int) -> int:
        if batch not in seen:
            seen[batch] = smallest_capacity(pair.at(batch), expandable) + beyond
        return seen[batch]

    return need, pair, beyond


def _surely(
    pair: LogPair, capacity: int, expandable: bool, answer: int, sizes: Sequence[int], proven: int
) -> int:
    """The largest from there on down that succeeds at what there is, not only at less."""
    batch = answer
    for _ in range(_STEPS_DOWN):
        if batch <= proven or all(
            fits(pair.at(batch), int(capacity * share), expandable) for share in _SHARES
        ):
            return batch
        batch = _allowed(sizes, batch - 1) or batch
    return max(proven, batch)


def _answer(
    need: Callable[[int], int],
    within: Sequence[tuple[int, Reading]],
    capacity: int,
    sizes: Sequence[int],
    ceiling: int,
) -> tuple[int, int]:
    """The largest allowed, and the largest of any size."""
    start = within[-1][0] if within else 1
    largest = largest_batch(need, capacity, start=start, most=ceiling).batch
    largest = max([largest, *(batch for batch, _ in within)])
    return _allowed(sizes, largest), largest
