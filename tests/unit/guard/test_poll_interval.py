"""Between two looks a job that stands still, and its machine, are only glanced at: cheaper, and no later for any growth."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.guard import guard_loop, poll_interval
from oomproof.guard.guard_loop import Guard
from oomproof.guard.view import JobView, Settings, UnmanagedView, View
from oomproof.ledger.ledger_snapshot import STALE
from oomproof.machine.cgroups import CgroupV1, CgroupV2, ChargeAlarm
from oomproof.records import replace
from oomproof.units import GIB, MIB

SETTINGS = Settings(margin=GIB, floor=GIB // 4, grace=30.0, limit=GIB, limit_floor=46 * MIB)


def still(headroom: int | None = 900 * MIB, **others: Any) -> JobView:
    return JobView("me", 100 * MIB, limit_headroom=headroom, still=True, **others)


def view(job: JobView, available: int = 20 * GIB) -> View:
    return View(1000.0, available, 0, 0.0, 0.0, 0.0, (job,))


def test_only_a_still_job_far_from_all_limits_is_glanced_at() -> None:
    ample = view(still())
    assert poll_interval.glances(SETTINGS, ample, still()) is not None
    assert poll_interval.glances(SETTINGS, ample, still(None)) is not None, "the machine alone"
    assert poll_interval.glances(SETTINGS, ample, JobView("me", 1, limit_headroom=GIB)) is None, "it grows"
    assert poll_interval.glances(SETTINGS, ample, still(paused="guard")) is None
    assert poll_interval.glances(SETTINGS, ample, still(GIB // 4 - 1)) is None, "each look counts there"
    assert poll_interval.glances(SETTINGS, view(still(), GIB), still()) is None, "the machine is short"
    for matters in ({"stall": 0.1}, {"searching": True}, {"unmanaged": (UnmanagedView((1, 1), "x", 1),)}):
        assert poll_interval.glances(SETTINGS, replace(ample, **matters), still()) is None, matters


@given(st.integers(GIB // 4, 1 << 40))
def test_glances_come_as_often_as_looks_would(headroom: int) -> None:
    job = still(headroom)
    glances = poll_interval.glances(SETTINGS, view(job, 1 << 41), job)
    assert glances is not None
    without = poll_interval.poll_seconds(SETTINGS, view(job, 1 << 41), job, still=True)
    assert glances.every == without
    reached = glances.change + glances.every * poll_interval.STILL_FILL
    if headroom >= GIB // 2:  # below, the shortest interval counts, as it does for looks
        assert reached < headroom - SETTINGS.limit_floor, (
            "before the next glance the job cannot be at its limit"
        )


@given(st.integers(2 * GIB, 1 << 40))
def test_the_machine_is_never_filled_between_two_glances(available: int) -> None:
    left = available - SETTINGS.floor
    still_job, calm_job = still(None), still(None, calm=True)
    usual = poll_interval.glances(SETTINGS, view(still_job, available), still_job)
    calm = poll_interval.glances(SETTINGS, view(calm_job, available), calm_job)
    assert usual is not None and calm is not None
    assert usual.every == poll_interval.poll_seconds(SETTINGS, view(still_job, available), still_job, True)
    assert calm.every == usual.every or calm.every * poll_interval.CALM_FILL <= left * 1.001
    assert usual.every <= calm.every <= poll_interval.GLANCE_MAX
    assert poll_interval.GLANCE_MAX < STALE, "what the run says of itself is believed until the next glance"


def test_a_calm_job_is_looked_at_every_ten_seconds() -> None:
    for limit in (None, 900 * MIB):
        job, calm = still(limit), still(limit, calm=True)
        seconds = poll_interval.poll_seconds(SETTINGS, view(job), job, True, glanced_at=True)
        assert seconds == poll_interval.POLL_STILL
        seconds = poll_interval.poll_seconds(SETTINGS, view(calm), calm, True, glanced_at=True)
        assert seconds == poll_interval.POLL_CALM == poll_interval.SAMPLE_CALM


def test_rows_of_a_calm_job_come_sooner_as_soon_as_anything_is_short() -> None:
    def seconds(available: int = 20 * GIB, limit_headroom: int | None = None, rate: float = 0.0) -> float:
        return poll_interval.sampling(SETTINGS, available, limit_headroom, rate, True, calm=True)[0]

    assert seconds() == seconds(limit_headroom=900 * MIB) == poll_interval.SAMPLE_CALM
    assert seconds(available=GIB) < poll_interval.SAMPLE_MAX
    assert seconds(limit_headroom=200 * MIB) < poll_interval.SAMPLE_MAX
    assert seconds(rate=GIB) < poll_interval.SAMPLE_MAX


class Asleep:
    """A guard whose sleep takes no time: each is told, and what happens meanwhile is the test's."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, charges: list[int | None], available: int = 20 * GIB
    ) -> None:
        self.now, self.slept, self.charges = 0.0, list[float](), iter(charges)
        self.available, self.glanced = available, list[float]()
        monkeypatch.setattr(guard_loop.time, "monotonic", lambda: self.now)
        self.guard = Guard.__new__(Guard)
        job = SimpleNamespace(
            name="me",
            job=SimpleNamespace(charge=lambda: next(self.charges), alarm=None),
            glance=lambda *_: self.glanced.append(self.now),
            moment=SimpleNamespace(t=0.0),
            pause=SimpleNamespace(by=""),
        )
        self.job = job
        self.guard._jobs, self.guard._settings = {"me": job}, {"me": SETTINGS}  # type: ignore[dict-item]
        self.guard._background = [SimpleNamespace(next_row=1e9)]  # type: ignore[list-item]
        self.guard._reader = SimpleNamespace(glance=lambda _: (self.available, 0))  # type: ignore[assignment]
        self.guard._acting = threading.RLock()
        self.guard._doze = self.doze  # type: ignore[method-assign]

    def doze(self, seconds: float) -> bool:
        self.now += seconds
        self.slept.append(seconds)
        return False


def test_a_still_job_is_looked_at_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = Asleep(monkeypatch, [100 * MIB] * 100)
    asleep.guard._sleep(view(still()))
    assert sum(asleep.slept) == pytest.approx(poll_interval.POLL_STILL) and len(asleep.slept) > 5


def test_a_calm_job_costs_a_few_glances_at_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = Asleep(monkeypatch, [100 * MIB] * 100, 200 * GIB)
    asleep.guard._sleep(view(still(None, calm=True), 200 * GIB))
    assert sum(asleep.slept) == pytest.approx(poll_interval.POLL_CALM) and len(asleep.slept) == 3
    assert len(asleep.glanced) == 2, "the third is the look itself"
    asleep = Asleep(monkeypatch, [100 * MIB] * 100, 200 * GIB)
    asleep.guard._sleep(view(still(calm=True), 200 * GIB))
    assert len(asleep.slept) > 30, "its limit is as near as ever"
    assert 2 <= len(asleep.glanced) <= 4, "the machine's is not"
    gaps = [later - before for before, later in pairwise([0.0, *asleep.glanced, asleep.now])]
    assert max(gaps) <= poll_interval.GLANCE_MAX


@pytest.mark.parametrize("charge", [120 * MIB, 80 * MIB, None])
def test_a_glance_that_sees_a_change_or_nothing_ends_the_sleep(
    monkeypatch: pytest.MonkeyPatch, charge: int | None
) -> None:
    asleep = Asleep(monkeypatch, [100 * MIB, 100 * MIB + 4096, charge])
    asleep.guard._sleep(view(still()))
    assert len(asleep.slept) == 2, "the second glance wakes the guard"


@pytest.mark.parametrize("what", ["less", "unreadable", "paused"])
def test_a_glance_at_the_machine_ends_the_sleep(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    asleep = Asleep(monkeypatch, [100 * MIB] * 9)
    ample = view(still(None, calm=True))
    if what == "less":
        asleep.available = 18 * GIB
    elif what == "paused":
        asleep.job.pause.by = "hand"
    else:
        asleep.guard._reader = SimpleNamespace()  # type: ignore[assignment]
        asleep.guard._reader.glance = unreadable  # type: ignore[method-assign]
    asleep.guard._sleep(ample)
    assert len(asleep.slept) == 1


def unreadable(_: float) -> tuple[int, int]:
    raise OSError("no descriptors")


def test_without_a_counter_it_is_looked_at_as_often_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no cgroup can be had."""
    for headroom in (900 * MIB, None):
        asleep = Asleep(monkeypatch, [None])
        job = still(headroom, calm=True)
        asleep.guard._sleep(view(job))
        assert asleep.slept == [poll_interval.poll_seconds(SETTINGS, view(job), job, still=True)]


NEEDS_EVENTFD = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="Linux's")


class Alarm(ChargeAlarm):
    """One that the test sets off."""

    def set(self, above: int) -> bool:
        self.clear()
        self.fd, self._above = os.eventfd(0, os.EFD_NONBLOCK), above
        return True


@NEEDS_EVENTFD
def test_where_the_kernel_wakes_us_only_the_machine_is_glanced_at(monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = Asleep(monkeypatch, [100 * MIB] * 100)
    guard, alarm = asleep.guard, Alarm("")
    asleep.job.job.alarm = alarm
    guard._poller, guard._alarms, guard._wake_read = select.poll(), {}, 0
    guard._sleep(view(still(calm=True)))
    assert len(asleep.slept) <= 6 and alarm.stands(108 * MIB, 2 * MIB)
    first = alarm.fd
    guard._sleep(view(still(calm=True)))
    assert alarm.fd == first, "it stands"
    assert first is not None
    os.eventfd_write(first, 1)
    assert Guard._doze(guard, 10.0), "wakes at once"
    assert alarm.fd is None and not guard._alarms
    assert not Guard._doze(guard, 0.0), "and only once"


@NEEDS_EVENTFD
def test_growth_just_before_the_alarm_was_set_is_seen_by_a_glance(monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = Asleep(monkeypatch, [100 * MIB, 400 * MIB, 400 * MIB])
    guard, alarm = asleep.guard, Alarm("")
    asleep.job.job.alarm = alarm
    guard._poller, guard._alarms, guard._wake_read = select.poll(), {}, 0
    guard._sleep(view(still(calm=True)))
    assert len(asleep.slept) == 1 and asleep.slept[0] < 0.5
    alarm.clear()


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
