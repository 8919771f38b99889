"""Random mixes of jobs on one small machine, by seed, and what an oracle could save of them. Pure: no machine is touched.

The oracle knows what each job will hold, and has the same means as the guard: it pauses and resumes, at any moment, also a
job that has just begun. A pause frees nothing: what a paused job holds it keeps.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

CAPACITY = 700  # MiB that the machine of 1 GB surely gives to jobs: 780 are available when idle
BASE = 12  # MiB of an interpreter that holds nothing yet
_SCARCE = 1.15  # at some moment they would hold at least so many times what there is


@dataclass(frozen=True)
class MixJob:
    """Takes ``size`` MiB at ``rate`` MiB/s from ``start`` on, holds them for ``hold`` seconds, gives all back."""

    size: int
    rate: int
    start: float
    hold: float
    managed: bool = False  # started with `oomproof run`, where that is the guard
    declared: bool = False  # and with --need

    @property
    def peak(self) -> int:
        return self.size + BASE

    @property
    def seconds(self) -> float:
        return self.size / self.rate + self.hold

    def held(self, t: float) -> float:
        """MiB at that moment, if nobody stops it."""
        if not self.start <= t < self.start + self.seconds:
            return 0.0
        return BASE + min(self.size, (t - self.start) * self.rate)


@dataclass(frozen=True)
class Outcome:
    finished: frozenset[int]  # positions in the mix
    seconds: float  # from the first start to the last end


def draw(seed: int) -> list[MixJob]:
    """Three to five jobs that each fit alone and together do not."""
    choose = random.Random(seed)
    while True:
        jobs = [_job(choose, first=number == 0) for number in range(choose.randint(3, 5))]
        if wanted(jobs) >= CAPACITY * _SCARCE:
            return sorted(jobs, key=lambda job: job.start)


def wanted(jobs: Sequence[MixJob]) -> float:
    """MiB that they would hold at once at most if nobody were stopped."""
    return max(sum(job.held(full.start + full.size / full.rate) for job in jobs) for full in jobs)


def _job(choose: random.Random, first: bool) -> MixJob:
    managed = choose.random() < 0.5
    return MixJob(
        size=choose.randrange(80, 421, 20),
        rate=choose.choice((20, 40, 60, 80)),
        start=0.0 if first else float(choose.randint(1, 20)),
        hold=float(choose.randint(10, 25)),
        managed=managed,
        declared=managed and choose.random() < 0.5,
    )


def oracle(jobs: Sequence[MixJob], capacity: int = CAPACITY) -> Outcome:
    """Each job in the order of its start runs to its end once its peak fits beside those that run; else it waits, paused, with
    its interpreter's memory, which those that are still to come will hold too. One that can never fit is lost, alone."""
    arrivals = sorted(range(len(jobs)), key=lambda at: jobs[at].start)
    now, last = 0.0, 0.0
    waiting: list[int] = []
    running: dict[int, float] = {}  # position -> when it ends
    finished: set[int] = set()
    while arrivals or waiting or running:
        while arrivals and jobs[arrivals[0]].start <= now:
            waiting.append(arrivals.pop(0))
        for at in list(waiting):
            idle = len(waiting) - 1 + len(arrivals)
            others = sum(jobs[other].peak for other in running) + BASE * idle
            if others + jobs[at].peak <= capacity:
                waiting.remove(at)
                running[at] = now + jobs[at].seconds
        if not running and waiting and not arrivals:
            waiting.remove(max(waiting, key=lambda at: jobs[at].peak))  # nobody will ever make way for it
            continue
        now = min([*running.values(), *(jobs[at].start for at in arrivals[:1])], default=now)
        for at in [at for at, end in running.items() if end <= now]:
            del running[at]
            finished.add(at)
            last = now
    return Outcome(frozenset(finished), last)
