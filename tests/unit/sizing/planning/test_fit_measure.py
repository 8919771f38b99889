"""A batch between two virtual runs: each tensor on its own line, then the allocator."""

from __future__ import annotations

from oomproof.errors import OomproofError
from oomproof.plans.knobs import template_of
from oomproof.plans.plan import Plan
from oomproof.sizing.card_constants import ANY_CARD
from oomproof.sizing.host_figures import HostFigures
from oomproof.sizing.planning.fit_measure import BetweenRuns, card_needs
from oomproof.sizing.planning.fit_points import NATIVE, Point, Source, predict
from oomproof.sizing.planning.fit_search import FitRequest, fit
from oomproof.sizing.planning.fit_tiers import Capacity
from oomproof.sizing.virtual_gpu.child_results import BatchFacts, VirtualResult
from oomproof.sizing.virtual_run import VirtualRun
from oomproof.units import GIB, MIB


def logged(batch: int, layers: int = 40) -> VirtualRun:
    """Weights, then a step whose activations grow with the batch and are given back in the other order; odd sizes, so that blocks and
    segments of the allocator are not on a line."""
    events = [(1, 400 * MIB)]
    kept = range(2, 2 + layers)
    events += [(name, batch * (3 * MIB + 7777 * name)) for name in kept]
    for name in reversed(kept):
        events += [(name + layers, batch * 5 * MIB + 512), (-name, 0), (-name - layers, 0)]
    marks = [(2, "train")]
    return VirtualRun(VirtualResult(marks=marks, phases={"train": 1}), events, bytes(2 + 2 * layers))


def measured(batch: int, layers: int = 40) -> Point:
    run = logged(batch, layers)
    host = HostFigures({"process": GIB + batch * MIB}, (), 0, True)
    return Point(
        batch, card_needs(run, ANY_CARD), host, {"train": 1}, BatchFacts(), source=Source(run, ANY_CARD)
    )


def test_as_a_run_of_that_batch_would_have_it() -> None:
    small, large, runs = measured(8), measured(32), BetweenRuns()
    for batch in (9, 17, 31, 64, 100):
        between, run = runs.point(small, large, batch), measured(batch)
        assert between is not None and between.scaled
        assert between.card == run.card
        assert runs.least(small, large, batch) == run.card[NATIVE].least
        assert between.host == run.host
        assert not predict([small, large, between], batch, None).measured


def test_a_line_through_two_sums_would_be_off() -> None:
    small, large = measured(8), measured(32)
    line = predict([small, large], 17, None).gpu
    assert line is not None
    assert line.expected != measured(17).card[NATIVE].estimate.expected


def test_other_tensors_or_no_log_give_none() -> None:
    small = measured(8)
    assert BetweenRuns().point(small, measured(32, layers=80), 16) is None
    bare = Point(32, small.card, small.host, {}, BatchFacts())
    assert BetweenRuns().point(small, bare, 16) is None and BetweenRuns().least(small, bare, 16) is None


def test_the_search_needs_three_runs_and_its_tiers_are_as_runs_would_be() -> None:
    runs: list[int] = []

    def measure(plan: Plan) -> Point:
        runs.append(int(plan.get("batch") or 0))
        if runs[-1] > 5000:
            raise OomproofError("far too large")
        return measured(runs[-1])

    template = template_of(["train.py", "--batch-size", "{batch}"], [])
    between = BetweenRuns()
    answer = fit(FitRequest(template, Capacity(24 * GIB, 30 * GIB)), measure, between.point, between.least)
    assert len(runs) <= 3
    for tier in answer.chosen.tiers:
        assert tier.predicted is not None and tier.predicted.gpu is not None
        again = measured(tier.predicted.batch).card[NATIVE]
        assert tier.predicted.gpu.expected == again.estimate.expected
        assert tier.predicted.least == again.least
