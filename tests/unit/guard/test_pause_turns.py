"""A turn into the floor and the end of a paused run beside it know of each other."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from test_pause_policy import DESKTOP, LOADER, paused, still

from oomproof.guard.detect_pause import PARTS, line_beside_a_turn, pause_threshold, turn_floor
from oomproof.guard.detect_resume import end_line
from oomproof.guard.ladder import choose
from oomproof.guard.view import Settings
from oomproof.units import GIB, MIB

floors = st.integers(32 * MIB, 4 * GIB)
rates = st.floats(0.0, 3.0 * GIB)


@given(floors, rates, st.integers(0, 9))
def test_a_turn_is_over_before_a_paused_run_is_ended_for_it(floor: int, rate: float, turns: int) -> None:
    """A job started by hand had its turn into the last eighth, and the paused run was killed at a line above that."""
    settings = Settings(margin=5 * floor, floor=turn_floor(floor, turns), grace=30.0)
    over = pause_threshold(settings, replace(LOADER, shrink=rate))
    assert over > min(line_beside_a_turn(floor, rate), floor / 2 - 1)


@given(floors, st.integers(0, 9))
def test_each_turn_is_as_deep_as_the_one_before_or_deeper(floor: int, turns: int) -> None:
    assert turn_floor(floor, turns + 1) <= turn_floor(floor, turns) <= floor // PARTS[0]


def test_beside_a_turn_a_paused_run_waits_longer_than_beside_other_growth() -> None:
    beside = still(available=200 * MIB, shrink=50.0 * MIB, drain=50.0 * MIB, unmanaged_wait=True)
    by_hand = replace(beside, running=0, unmanaged_runs=True)
    nobodys = replace(beside, running=2)
    state = paused(paused_left=900 * MIB)
    assert end_line(DESKTOP, by_hand) < end_line(DESKTOP, nobodys) < end_line(DESKTOP, replace(beside, unmanaged_wait=False))  # fmt: skip
    assert choose(DESKTOP, by_hand, state).kind == "none"
    assert choose(DESKTOP, nobodys, state).kind == "term"
    assert choose(DESKTOP, replace(by_hand, available=50 * MIB), state).kind == "term"
