"""The mixes of bench/replay.py and what its oracle makes of them."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from replay_mixes import BASE, CAPACITY, MixJob, draw, oracle, wanted


@pytest.mark.parametrize("seed", range(50))
def test_a_mix_is_scarce_and_each_of_it_fits_alone(seed: int) -> None:
    jobs = draw(seed)
    assert jobs == draw(seed) and 3 <= len(jobs) <= 5
    assert wanted(jobs) > CAPACITY > max(job.peak for job in jobs) + BASE * len(jobs)
    assert jobs[0].start == 0 and all(one.start <= other.start for one, other in pairwise(jobs))
    assert not any(job.declared and not job.managed for job in jobs)
    assert oracle(jobs).finished == set(range(len(jobs)))


def test_mixes_differ() -> None:
    assert len({tuple(draw(seed)) for seed in range(50)}) == 50


def test_what_they_want_at_once() -> None:
    jobs = [MixJob(300, 100, 0, 7), MixJob(200, 100, 8, 7), MixJob(400, 100, 10, 7)]
    assert [job.held(9) for job in jobs] == [300 + BASE, 100 + BASE, 0]
    assert wanted(jobs) == 200 + 400 + 2 * BASE, "the first has ended by then"


def test_those_that_fit_together_run_together() -> None:
    outcome = oracle([MixJob(300, 100, 0, 7), MixJob(200, 100, 1, 7)], capacity=600)
    assert outcome.finished == {0, 1} and outcome.seconds == 10


def test_one_that_does_not_fit_beside_the_first_waits_for_it() -> None:
    outcome = oracle([MixJob(300, 100, 0, 7), MixJob(400, 100, 1, 6)], capacity=600)
    assert outcome.finished == {0, 1} and outcome.seconds == 20


def test_a_smaller_one_passes_the_one_that_waits() -> None:
    jobs = [MixJob(300, 100, 0, 7), MixJob(400, 100, 1, 6), MixJob(100, 100, 2, 3)]
    assert oracle(jobs, capacity=600).seconds == 20


def test_what_paused_ones_hold_counts() -> None:
    jobs = [MixJob(400, 100, 0, 6), MixJob(400 - BASE, 100, 1, 6)]
    assert oracle(jobs, capacity=400 + 2 * BASE).finished == {0, 1}
    assert oracle(jobs, capacity=400 + BASE).seconds == pytest.approx(20.88), "the first fits only when alone"
    assert oracle([*jobs, MixJob(400, 100, 2, 6)], capacity=400 + BASE).finished == {1, 2}


def test_one_larger_than_the_machine_is_lost_alone() -> None:
    jobs = [MixJob(900, 100, 0, 5), MixJob(300, 100, 1, 7)]
    outcome = oracle(jobs, capacity=700)
    assert outcome.finished == {1} and outcome.seconds == 11
