"""How often the guard of the machine looks: a hundred times a second only while there may be something to do."""

from __future__ import annotations

from dataclasses import replace

from oomproof.guard.machine_guard import is_settled
from oomproof.guard.view import Settings, UnmanagedView, View
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
