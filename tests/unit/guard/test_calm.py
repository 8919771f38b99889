"""A job that has held the same for a minute: rare looks, and everybody is awake as soon as that is over."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import simulated_guard
from simulated_guard import Situation, simulate
from situations import MACHINE, limited, ramp

from oomproof.guard.guarded_job import JobGrowth
from oomproof.trend.growth import Steady
from oomproof.units import MIB

BEGINS = 147.3
CALM = Situation(MACHINE, 160, ramp(50, 800, BEGINS), free=lambda t: 22_000)


class Seen:
    """When the job was no longer calm, and what was recorded until then."""

    def __init__(self, patch: pytest.MonkeyPatch, situation: Situation) -> None:
        self.woken: list[float] = []
        self.hurried: list[bool] = []
        self.rows: list[float] = []
        make = simulated_guard.make_guard

        def make_guard(world: Any) -> Any:
            guard, job = make(world)
            job.on_change = lambda: (
                self.woken.append(world.t),
                self.hurried.append(job.moment.hurry.is_set()),
            )
            self.rows = world.rows
            return guard, job

        patch.setattr(simulated_guard, "make_guard", make_guard)
        self.result = simulate(situation, patch)
        self.rows = [t - simulated_guard.START for t in self.rows]


def test_everybody_is_awake_when_the_calm_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(monkeypatch, CALM)
    assert len(seen.woken) == 1 and BEGINS < seen.woken[0] < BEGINS + 4.1
    assert seen.hurried == [True], "the sampler does not wait for its next turn"
    calm = [t for t in seen.rows if 80 < t < BEGINS]
    assert max(later - before for before, later in pairwise(calm)) == pytest.approx(10, 0.01)
    assert any(abs(t - seen.woken[0]) < 0.1 for t in seen.rows), "its row did not wait either"


@pytest.mark.parametrize("settings", [MACHINE, limited(2048)])
def test_the_machine_that_gets_short_ends_it_too(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    takes = replace(CALM, settings=settings, held=ramp(0, 800), free=ramp(-1000, 22_000, BEGINS), seconds=170)
    seen = Seen(monkeypatch, takes)
    near = BEGINS + (22_000 - 800 - 6_000) / 1000  # from then on rows come faster than one a second
    assert [t for t in seen.woken if near - 4 < t < near + 1]


def test_what_breathes_is_not_calm() -> None:
    growth = JobGrowth(MACHINE)
    for second in range(200):
        growth.add(float(second), (800 + 10 * (second % 7 == 0)) * MIB)
    assert not growth.is_calm
    for second in range(200, 270):
        growth.add(float(second), 800 * MIB)
        assert growth.is_calm == (second >= 197 + 60), second


def test_steady_begins_anew_with_each_change() -> None:
    steady = Steady(MIB)
    assert [steady.seconds(t, 1000 * MIB + noise) for t, noise in ((0.0, 0), (5.0, MIB), (9.0, 2 * MIB))] == [
        0,
        5,
        9,
    ]
    assert steady.seconds(10.0, 1010 * MIB) == 0.0
    assert steady.seconds(12.0, 1010 * MIB) == 2.0
    assert steady.seconds(11.0, 1010 * MIB) == 1.0 and steady.seconds(1.0, 1010 * MIB) == 0.0, (
        "a clock that jumped"
    )
