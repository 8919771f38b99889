"""A run's guard beside the guard of the machine: who decides, and how long it is waited for."""

from __future__ import annotations

import pytest

from oomproof.guard import unmanaged_guard
from oomproof.guard.unmanaged_growth import Culprit
from oomproof.guard.unmanaged_guard import Choice, UnmanagedGuard
from oomproof.guard.view import Action, ActionHistory, Settings, UnmanagedView
from oomproof.leaf.action_kinds import PAUSE_UNMANAGED
from oomproof.ledger.paused_jobs import PausedJob
from oomproof.machine.jobs import Job
from oomproof.units import GIB, MIB

SETTINGS = Settings(margin=5 * GIB, floor=1 * GIB, grace=30.0)
KEY = (812, 4711)
JOB = Job(*KEY, 1000, ("python", "load.py"), (812,), 8 * GIB, 0, 0, True)
DUE = Action(PAUSE_UNMANAGED, unmanaged=UnmanagedView(KEY, "python load.py", 8 * GIB, 200.0 * MIB))


def guard(choice: Choice = unmanaged_guard.ANY_OF_MINE) -> UnmanagedGuard:
    return UnmanagedGuard(SETTINGS, "run x", set, lambda kind, text, key: None, choice=choice)


@pytest.mark.parametrize(("took", "waits", "then"), [(0.0, 0.9, 1.1), (1.0, 2.9, 3.1), (60.0, 5.9, 6.1)])
def test_the_guard_of_the_machine_is_waited_for_as_long_as_two_looks_take(
    took: float, waits: float, then: float
) -> None:
    mine = guard()
    mine.growth.culprits = (Culprit(JOB, "python load.py", 200.0 * MIB, "", 100.0, took),)
    for seconds, gave_up in ((0.0, False), (waits, False), (then, True)):
        mine._leave_to_it([DUE], 100.0 + seconds)
        assert mine.state.get(KEY, ActionHistory()).gave_up is gave_up, seconds


def test_the_guard_of_the_system_asks_for_no_users_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot make a user's folder, and said so at each shortage."""
    asked: list[str] = []
    monkeypatch.setattr(unmanaged_guard.guard_lease, "holder", lambda: asked.append("asked"))
    assert not guard(Choice(every_user=True))._is_decided_elsewhere() and asked == []
    assert not guard()._is_decided_elsewhere() and asked == ["asked"]


def test_a_job_that_another_guard_had_paused_is_known_while_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    job = PausedJob(*KEY, "python load.py", 2 * GIB, "short", "guard", 0.0, 3600.0)
    written, alive = [job], {KEY}
    monkeypatch.setattr(unmanaged_guard.paused_jobs, "read", lambda folder: list(written))
    monkeypatch.setattr(unmanaged_guard.processes, "is_alive", lambda *key: key in alive)
    mine = guard()
    (seen,) = mine.view(near=True)
    assert seen.paused == "other" and not seen.waited
    written.clear()
    assert mine.view(near=False) == ()
    (seen,) = mine.view(near=True)
    assert seen.waited and not seen.paused
    alive.clear()
    assert mine.view(near=True) == ()


def test_one_that_holds_much_is_in_the_view_while_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    alive = {KEY}
    monkeypatch.setattr(unmanaged_guard.paused_jobs, "read", lambda folder: [])
    monkeypatch.setattr(unmanaged_guard.processes, "is_alive", lambda *key: key in alive)
    mine = guard()
    mine.growth.holders = (Culprit(JOB, "python load.py", 0.0, ""),)
    (seen,) = mine.view(near=True)
    assert (seen.use, seen.rate, seen.paused, seen.tie) == (8 * GIB, 0.0, "", "")
    alive.clear()
    assert mine.view(near=True) == ()
