"""Between two looks a job that stands still under its limit is only glanced at: cheaper, and no later for any growth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.guard import guard_loop, poll_interval
from oomproof.guard.guard_loop import Guard
from oomproof.guard.view import JobView, Settings, View
from oomproof.machine.cgroups import CgroupV1, CgroupV2
from oomproof.units import GIB, MIB

SETTINGS = Settings(margin=GIB, floor=GIB // 4, grace=30.0, limit=GIB, limit_floor=46 * MIB)


def still(headroom: int | None = 900 * MIB, **others: Any) -> JobView:
    return JobView("me", 100 * MIB, limit_headroom=headroom, still=True, **others)


def view(job: JobView, available: int = 20 * GIB) -> View:
    return View(1000.0, available, 0, 0.0, 0.0, 0.0, (job,))


def test_only_a_still_job_under_a_limit_is_glanced_at() -> None:
    assert poll_interval.glances(SETTINGS, still()) is not None
    assert poll_interval.glances(SETTINGS, still(None)) is None
    assert poll_interval.glances(SETTINGS, JobView("me", 1, limit_headroom=GIB)) is None, "it grows"
    assert poll_interval.glances(SETTINGS, still(GIB // 4 - 1)) is None, "each look counts there"


@given(st.integers(GIB // 4, 1 << 40))
def test_glances_come_as_often_as_looks_would(headroom: int) -> None:
    job = still(headroom)
    glances = poll_interval.glances(SETTINGS, job)
    assert glances is not None
    without = poll_interval.poll_seconds(SETTINGS, view(job, 1 << 41), job, still=True)
    assert glances.every == without
    reached = glances.growth + glances.every * poll_interval.STILL_FILL
    if headroom >= GIB // 2:  # below, the shortest interval counts, as it does for looks
        assert reached < headroom - SETTINGS.limit_floor, (
            "before the next glance the job cannot be at its limit"
        )


def test_looks_in_between_are_as_rare_as_without_a_limit() -> None:
    job = still()
    assert (
        poll_interval.poll_seconds(SETTINGS, view(job), job, True, glanced_at=True)
        == poll_interval.POLL_STILL
    )
    short = view(job, GIB)
    assert poll_interval.poll_seconds(SETTINGS, short, job, True, glanced_at=True) < 0.2, (
        "the machine is short"
    )


class Asleep:
    """A guard whose sleep takes no time: each is told, and what happens meanwhile is the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, charges: list[int | None]) -> None:
        self.now, self.slept, self.charges = 0.0, list[float](), iter(charges)
        monkeypatch.setattr(guard_loop.time, "monotonic", lambda: self.now)
        self.guard = Guard.__new__(Guard)
        job = SimpleNamespace(job=SimpleNamespace(charge=lambda: next(self.charges)))
        self.guard._jobs, self.guard._settings = {"me": job}, {"me": SETTINGS}  # type: ignore[dict-item]
        self.guard._background = [SimpleNamespace(next_row=1e9)]  # type: ignore[list-item]
        self.guard._doze = self.doze  # type: ignore[method-assign]

    def doze(self, seconds: float) -> bool:
        self.now += seconds
        self.slept.append(seconds)
        return False


def test_a_still_job_is_looked_at_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = Asleep(monkeypatch, [100 * MIB] * 100)
    asleep.guard._sleep(view(still()))
    assert sum(asleep.slept) == pytest.approx(poll_interval.POLL_STILL) and len(asleep.slept) > 5


@pytest.mark.parametrize("charge", [120 * MIB, None])
def test_a_glance_that_sees_growth_or_nothing_ends_the_sleep(
    monkeypatch: pytest.MonkeyPatch, charge: int | None
) -> None:
    asleep = Asleep(monkeypatch, [100 * MIB, 100 * MIB + 4096, charge])
    asleep.guard._sleep(view(still()))
    assert len(asleep.slept) == 2, "the second glance wakes the guard"


def test_without_a_counter_it_is_looked_at_as_often_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no cgroup can be had."""
    asleep = Asleep(monkeypatch, [None])
    asleep.guard._sleep(view(still()))
    job = still()
    assert asleep.slept == [poll_interval.poll_seconds(SETTINGS, view(job), job, still=True)]


@pytest.fixture(params=[(CgroupV1, "memory.usage_in_bytes"), (CgroupV2, "memory.current")])
def cgroup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    kind, name = request.param
    (tmp_path / "memory.stat").write_text("total_rss 1\nanon 1\n")
    (tmp_path / name).write_text("12345678\n")
    made = kind(str(tmp_path))
    yield made, tmp_path / name
    made.close()


def test_the_charge_is_one_number_of_the_kernels(cgroup: Any) -> None:
    made, path = cgroup
    assert made.charge() == 12345678
    path.write_text("")  # as of a cgroup that was removed
    assert made.charge() is None
