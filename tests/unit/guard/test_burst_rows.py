"""What came and went between two rows: a row where processes held it, none where it was page cache."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from oomproof.guard.background_tasks import BackgroundTasks
from oomproof.guard.guarded_job import LatestReading
from oomproof.guard.job_handle import Job
from oomproof.machine.cgroups import JobMemory
from oomproof.units import MIB


class Scene:
    """A job, as its cgroup and its processes are at each row; sizes in MiB."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, tuple[Any, ...]]] = []
        self.charged = self.shrunk = 0
        job = SimpleNamespace(most_charged=lambda: self.charged * MIB, shrunk=lambda: self.shrunk * MIB)
        writer = SimpleNamespace(put=lambda table, row: self.rows.append((table, row)))
        self.guarded = SimpleNamespace(job=job, writer=writer, moment=LatestReading(), best_effort=None)
        host = SimpleNamespace(ram=64 << 30, swap_total=0, psi=(0, 0))
        self.tasks = BackgroundTasks(self.guarded, host, None, None)  # type: ignore[arg-type]

    def row(self, t: float, anon: int, file: int, charged: int, shrunk: int = 0) -> None:
        self.charged, self.shrunk = charged, shrunk
        self.tasks._record(t, JobMemory(anon * MIB, 0, file * MIB, 0, 0, anon * MIB))

    @property
    def held(self) -> list[int]:
        return [row[1] // MIB for table, row in self.rows if table == "job"]


@pytest.mark.parametrize("after", [1400, 0])
def test_page_cache_that_is_gone_is_nothing_that_the_job_held(after: int) -> None:
    """A checkpoint replaces the last one: both lie in page cache for a moment. Or a dataset is read and dropped."""
    scene = Scene()
    scene.row(1.0, anon=4096, file=after, charged=5500)
    scene.row(2.0, anon=4096, file=after, charged=6900, shrunk=8)
    assert scene.held == [4096, 4096] and not [row for table, row in scene.rows if table == "look"]


@pytest.mark.parametrize("cache", [0, 300])
def test_a_burst_of_a_process_has_a_row(cache: int) -> None:
    scene = Scene()
    scene.row(1.0, anon=600, file=cache, charged=600 + cache)
    scene.row(2.0, anon=600, file=cache, charged=1500 + cache, shrunk=905)
    assert scene.held == [600, 1500, 600]
    assert [row for table, row in scene.rows if table == "look"] == [(1.5, "cgroup")]


def test_a_burst_beside_cache_counts_as_far_as_processes_were_larger() -> None:
    scene = Scene()
    scene.row(1.0, anon=4096, file=1400, charged=5500)
    scene.row(2.0, anon=4096, file=1400, charged=7800, shrunk=900)
    assert scene.held == [4096, 4996, 4096]


def test_a_count_of_processes_from_before_the_pool_was_forked_is_in_no_row() -> None:
    """A pool of four that filled its limit in half a second was told as "384 MiB in 1 process"."""
    scene = Scene()
    moment = scene.guarded.moment
    moment.processes, moment.counted_use = 1, 4 * MIB
    scene.row(1.0, anon=4, file=0, charged=4)
    scene.row(1.4, anon=384, file=0, charged=384)
    moment.processes, moment.counted_use = 5, 384 * MIB
    scene.row(2.0, anon=390, file=0, charged=390)
    assert [row[7] for table, row in scene.rows if table == "job"] == [1, None, 5]


def test_a_living_process_that_was_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    block = bytearray(64 * MIB)
    block[::4096] = b"x" * len(block[::4096])
    del block
    job = Job.__new__(Job)
    monkeypatch.setattr(job, "pids", lambda: [os.getpid(), 1 << 22], raising=False)
    assert job.shrunk() >= 32 * MIB


def test_others_are_looked_at_seldom_when_calm_and_each_second_when_short() -> None:
    scene = Scene()
    scene.guarded.settings = SimpleNamespace(margin=1000 * MIB)
    moment = scene.guarded.moment

    def looks(begin: float, end: float) -> list[float]:
        times = (begin + tenth / 10 for tenth in range(int((end - begin) * 10)))
        return [t for t in times if scene.tasks._scan_is_due(t)]

    moment.available, moment.sample_seconds = 9000 * MIB, 1.0
    assert looks(0.0, 130.0) == [2.0], "not at once: most jobs that run for so short a time are not worth one"
    assert looks(130.0, 700.0) == [602.0], "and nobody can have grown"
    moment.available = 8900 * MIB
    assert looks(700.0, 900.0) == [700.0], "somebody took 100 MiB; who, is known"
    moment.available = 8800 * MIB
    assert looks(900.0, 930.0) == [900.0]
    moment.available = 8700 * MIB
    assert looks(930.0, 990.0) == [960.0], "once a minute"
    moment.available = 8900 * MIB
    assert looks(990.0, 1030.0) == []
    moment.available = 8800 * MIB
    assert looks(1030.0, 1040.0) == [1030.0], "what was freed and taken again"
    moment.available, moment.sample_seconds = 100 * MIB, 0.1
    assert [round(t - 1040.0, 1) for t in looks(1040.0, 1043.0)] == [0.0, 1.0, 2.0]
