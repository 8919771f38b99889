"""A leak is told while the job runs, hours before it is full; what only looks like one is not."""

from __future__ import annotations

import random
from types import SimpleNamespace

from oomproof.guard.guarded_job import Moment
from oomproof.machine.cgroups import JobMemory
from oomproof.runner.leak_watch import LeakWatch
from oomproof.runner.sampler import Alerts, Sampler
from oomproof.trend.growth import WarmUp
from oomproof.units import GIB, MIB


def told(use: list[tuple[float, int]], limit: int) -> list[tuple[float, str]]:
    watch, said = LeakWatch(), []
    for t, held in use:
        watch.note(t, held)
        if (text := watch.look(t, limit - held)) is not None:
            said.append((t, text))
    return said


def grows(rate: float, seconds: int, noise: int = 20 * MIB) -> list[tuple[float, int]]:
    dice = random.Random(7)
    return [(float(t), int(4 * GIB + rate * t + dice.uniform(0, noise))) for t in range(0, seconds, 5)]


def test_a_leak_is_told_early_and_again_when_half_the_time_is_gone() -> None:
    said = told(grows(0.5 * MIB, 7200), 8 * GIB)
    assert 1 <= len(said) <= 5
    first, text = said[0]
    assert (
        first < 1200
        and "memory has grown by 30 MiB/min for 1" in text
        and "at this rate it is full in" in text
    )
    assert said[-1][0] > 3600, "and again as it comes nearer"


def test_what_is_far_away_is_not_told() -> None:
    """In ten times as long as was seen: nobody knows what the job does by then."""
    assert told(grows(0.1 * MIB, 3600), 64 * GIB) == []


def test_a_job_that_breathes_and_one_that_loads_are_left_alone() -> None:
    dice = random.Random(3)
    breathes = [
        (float(t), int(4 * GIB + 2 * GIB * (t % 300) / 300 + dice.uniform(0, 30 * MIB)))
        for t in range(0, 7200, 5)
    ]
    loads = [
        (float(t), int(min(20 * GIB, t * 80 * MIB) + dice.uniform(0, 30 * MIB))) for t in range(0, 7200, 5)
    ]
    assert told(breathes, 16 * GIB) == [] and told(loads, 32 * GIB) == []


def test_weeks_take_no_more_than_a_few_hundred_points() -> None:
    watch = LeakWatch()
    for t in range(0, 30 * 86400, 60):
        watch.note(float(t), 4 * GIB + t * 100)
    assert len(watch._bins) <= 720
    assert min(lowest for _, lowest, _ in watch._bins) == 4 * GIB


def test_a_leak_is_told_to_whoever_asks_the_job_what_it_holds() -> None:
    """The sampler hands it on apart from other alerts: the census is asked for then."""
    leaks: list[str] = []
    alerts: list[str] = []
    moment = Moment(available=4 * GIB)
    job = SimpleNamespace(kernel_kills=lambda: 0)
    sampler = Sampler(job, moment, None, None, Alerts(), alerts.append, WarmUp(), leaks.append)  # type: ignore[arg-type]
    for t, held in grows(0.5 * MIB, 2400):
        moment.memory = JobMemory(held, 0, 0, 0, 0, 0)
        moment.available = 8 * GIB - held
        sampler._look_for_a_leak(t)
    assert leaks and all("memory has grown by" in text for text in leaks) and alerts == []
