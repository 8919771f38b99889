"""What the guard of the machine costs over a long time: how often it looks, and what it remembers."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from oomproof.guard.machine_guard import is_settled
from oomproof.guard.unmanaged_guard import UnmanagedGuard
from oomproof.guard.view import ActionHistory, Settings, UnmanagedView, View
from oomproof.leaf.proc_files import start_time
from oomproof.units import GIB, MIB

DESKTOP = Settings(margin=5 * GIB, floor=GIB, grace=30.0)
PAUSED = UnmanagedView((7, 1), "loader", 8 * GIB, paused="guard")
FULL = View(1000.0, 900 * MIB, 0, 0.2, 20.0 * MIB, 20.0 * MIB, (), unmanaged=(PAUSED,))


def test_with_the_job_paused_a_full_machine_that_only_breathes_is_looked_at_calmly() -> None:
    """A pause may last for an hour, and the machine stays as full as that meanwhile."""
    assert is_settled(DESKTOP, FULL)
    by_another = replace(FULL, unmanaged=(replace(PAUSED, paused="other"),))
    assert is_settled(DESKTOP, by_another)


def test_another_that_grows_and_a_fast_fill_are_not_waited_for() -> None:
    other = UnmanagedView((8, 1), "second", GIB, 300.0 * MIB)
    assert not is_settled(DESKTOP, replace(FULL, unmanaged=(PAUSED, other)))
    assert is_settled(DESKTOP, replace(FULL, unmanaged=(PAUSED, replace(other, tie="it has a window"))))
    assert not is_settled(DESKTOP, replace(FULL, shrink=600.0 * MIB)), "who it is is not known yet"
    assert not is_settled(DESKTOP, replace(FULL, unmanaged=())), "nobody is paused: somebody may have to be"


def test_jobs_that_were_given_up_and_have_ended_are_forgotten(tmp_path: Path) -> None:
    """A service that runs for months meets thousands of them."""
    guard = UnmanagedGuard(DESKTOP, "oomproof guard", set, lambda *_: None, folder=lambda: tmp_path)
    alive = (os.getpid(), start_time(os.getpid()) or 0)
    guard.state = {
        alive: ActionHistory(gave_up=True),
        **{((1 << 30) + n, 1): ActionHistory(gave_up=True) for n in range(40)},
    }
    guard.decide_and_act(replace(FULL, unmanaged=()), lambda resume: True)
    assert guard.state == {alive: ActionHistory(gave_up=True)}
    guard.close()
