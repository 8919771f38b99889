"""From one virtual run of a plan to a point of its lines: the card by each way the allocator may keep memory, the host, the phases."""

from __future__ import annotations

from itertools import pairwise

from oomproof.records import replace
from oomproof.sizing import virtual_run
from oomproof.sizing.caching_allocator import smallest_capacity
from oomproof.sizing.card_constants import Card
from oomproof.sizing.measured_workspaces import EMPTIED
from oomproof.sizing.planning.fit_points import (
    EXPANDABLE,
    NATIVE,
    QUANTIZED,
    RELEASED,
    CardNeed,
    Point,
    Source,
)
from oomproof.sizing.quantized_weights import frozen_weights
from oomproof.sizing.scaled_log import LogPair, log_pair
from oomproof.sizing.script_sizing import SizedScript
from oomproof.sizing.virtual_run import VirtualRun

_QUIET = ("eval", "generate")


def point_of(sized: SizedScript, batch: int) -> Point:
    """Of a script that could be sized."""
    assert sized.run is not None and sized.host is not None
    run = sized.run
    reached = [phase for phase in sized.sizing.phases if phase.reached]
    sizes = {phase.name: phase.gpu if run.events else phase.host for phase in reached}
    phases = {name: size for name, size in sizes.items() if size is not None}
    return Point(
        batch,
        card_needs(run, sized.card) if run.events else {},
        sized.host,
        phases,
        run.result.batch_facts,
        sized.sizing.notes,
        sized.sizing.peak,
        max((loader.samples or 0 for loader in run.result.loaders), default=0) or None,
        Source(run, sized.card),
        varies=any(loader.varies for loader in run.result.loaders),
        persistent=any(loader.persistent for loader in run.result.loaders),
    )


class BetweenRuns:
    """What two runs tell of a batch between or beyond them: each tensor on its line, and the allocator with those. None where the two did not
    make the same ones, or use no card."""

    def __init__(self) -> None:
        self._pairs: dict[
            tuple[int, int], tuple[Source, Source, LogPair | None]
        ] = {}  # sources kept: ids stay theirs

    def point(self, small: Point, large: Point, batch: int) -> Point | None:
        pair = self._pair(small, large)
        return _point_at(pair, small, large, batch) if pair is not None else None

    def least(self, small: Point, large: Point, batch: int) -> int | None:
        """Bytes of the card that are just enough."""
        pair = self._pair(small, large)
        if pair is None or large.source is None:
            return None
        needed = smallest_capacity(pair.at(batch), virtual_run.asked_expandable(large.source.run))
        return virtual_run.context_of(large.source.run, large.source.card).usual + needed

    def _pair(self, small: Point, large: Point) -> LogPair | None:
        if small.source is None or large.source is None or not (small.on_card and large.on_card):
            return None
        key = (id(small.source), id(large.source))
        if key not in self._pairs:
            first, second = small.source.run.events, large.source.run.events
            self._pairs[key] = (
                small.source,
                large.source,
                log_pair(small.batch, first, large.batch, second),
            )
        return self._pairs[key][2]


def _point_at(pair: LogPair, small: Point, large: Point, batch: int) -> Point:
    assert large.source is not None
    run, card = replace(large.source.run, events=pair.at(batch)), large.source.card
    _, phases = virtual_run.gpu_estimate(run, virtual_run.asked_expandable(run), card)
    share = (batch - small.batch) / (large.batch - small.batch)
    return replace(
        large,
        batch=batch,
        card=card_needs(run, card),
        host=small.host.towards(large.host, share),
        phases={phase.name: phase.gpu for phase in phases if phase.reached and phase.gpu is not None},
        source=None,
        scaled=True,
    )


def card_needs(run: VirtualRun, card: Card) -> dict[str, CardNeed]:
    asked = virtual_run.asked_expandable(run)
    native = _need(run, card, asked)
    needs = {NATIVE: native}
    if not asked:
        needs[EXPANDABLE] = _need(run, card, True)
    released = after_evaluations(run)
    if released is not run:
        needs[RELEASED] = CardNeed(virtual_run.gpu_estimate(released, asked, card)[0], native.least)
    frozen = frozen_weights(run.result)
    if frozen is not None:
        for kind in QUANTIZED:
            shifted = frozen.shifted(native.estimate, kind)
            needs[kind] = CardNeed(shifted, max(0, native.least - frozen.less(kind)))
    return needs


def _need(run: VirtualRun, card: Card, expandable: bool) -> CardNeed:
    estimate, _ = virtual_run.gpu_estimate(run, expandable, card)
    return CardNeed(
        estimate, virtual_run.context_of(run, card).usual + smallest_capacity(run.events, expandable)
    )


def after_evaluations(run: VirtualRun) -> VirtualRun:
    """As if cached memory were given back after each evaluation and generation (``run --release always``); the same run where there is
    none that training follows."""
    marks = virtual_run.phase_starts(run)
    ends = [after[0] for before, after in pairwise(marks) if before[1] in _QUIET and after[1] not in _QUIET]
    if not ends:
        return run
    events = list(run.events)
    for index in reversed(ends):
        events.insert(index, EMPTIED)
    moved = [(2 * (at + sum(end <= at for end in ends)), name) for at, name in marks]
    return replace(run, events=events, result=replace(run.result, marks=moved))
