"""Who among the live runs acts: records on disk, and the pure rule over them."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from oomproof.ledger import live
from oomproof.ledger.live import BY_GUARD, BY_HAND, RUNS, Live, turns
from oomproof.units import MIB

WORTH = 64 * MIB


def run(age: int, use: int = 500, rate: int = 0, **more: object) -> Live:
    return Live(f"{age:015d}-r{age}", use=use * MIB, rate=rate * MIB, **more)  # type: ignore[arg-type]


def ask(me: Live, *others: Live, shrink: float = 0.0, can_push: bool = False) -> live.Turns:
    return turns(me, others, WORTH, shrink * MIB, can_push)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    old = live.LiveRun("old", 1.0, tmp_path, protected=True, leader=(77, 88), reserved=True)
    new = live.LiveRun("new", 2.0, tmp_path)
    old.update(100, 5.0, 7.5, BY_HAND)
    (seen,) = new.others(6.0)
    assert seen == Live(old.name, 100, 5.0, 7, BY_HAND, True, 77, 88, True)
    assert seen.id == "old"
    (silent,) = new.others(60.0)
    assert silent.rate == 0, "the growth of a guard that has been silent for a minute is not believed"
    assert live.count(tmp_path) == 2
    old.leave()
    assert new.others(6.0) == [] and live.count(tmp_path) == 1
    new.leave()


def test_a_record_of_the_first_version_is_understood(tmp_path: Path) -> None:
    old, new = live.LiveRun("old", 1.0, tmp_path), live.LiveRun("new", 2.0, tmp_path)
    os.pwrite(old._fd, struct.pack("=qd", 123, 4.0), 0)
    assert new.others(4.0) == [Live(old.name, 123, 4.0)]
    for one in (old, new):
        one.leave()


def test_latch_lets_one_act_at_a_time(tmp_path: Path) -> None:
    one, two = live.LiveRun("one", 1.0, tmp_path), live.LiveRun("two", 2.0, tmp_path)
    assert one.take_latch(100.0)
    assert not two.take_latch(100.5)
    assert not two.take_latch(103.0, 5.0), "going on waits longer"
    assert two.take_latch(101.5)
    for each in (one, two):
        each.leave()


def test_a_run_that_goes_on_does_not_wait_for_itself(tmp_path: Path) -> None:
    """Its own thaw, and it fills the machine at once: it must be ended now, not in a second."""
    mine = live.LiveRun("mine", 1.0, tmp_path)
    assert mine.take_latch(100.0, 5.0, thaw=True)
    script = (
        "from pathlib import Path; from oomproof.ledger.live import LiveRun\n"
        f"print(LiveRun('other', 2.0, Path({str(tmp_path)!r})).take_latch(100.1))"
    )
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert other.stdout == "False\n", "but everybody else waits to see what it takes"
    assert mine.take_latch(100.2)
    assert not mine.take_latch(100.3)
    mine.leave()


def test_killed_guards_leave_the_list(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from oomproof.ledger.live import LiveRun\n"
        f"r = LiveRun('dead', 5.0, Path({str(tmp_path)!r})); r.update(1 << 40, 0.0); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == -9
    mine = live.LiveRun("mine", 1.0, tmp_path)
    assert mine.others(0.0) == []
    assert len(list((tmp_path / "live").iterdir())) == 1
    mine.leave()


def test_newest_that_helps_is_ended_first() -> None:
    assert not ask(run(1), run(2)).to_end and ask(run(2), run(1)).to_end
    assert ask(run(1), run(2, use=10)).to_end, "a young run that holds too little to help is passed over"
    assert not ask(run(1), run(2, use=10, rate=80), shrink=80).to_end, "unless it is the growth"


def test_the_protected_come_last() -> None:
    young = run(2, protected=True)
    assert ask(run(1), young).to_end and not ask(young, run(1)).to_end
    assert ask(run(1, rate=80), young, shrink=80).to_freeze
    assert not ask(young, run(1), shrink=80).to_freeze
    assert ask(young, run(1, protected=True)).to_end, "of two protected runs, the newest"


def test_without_swap_the_newest_that_grows_is_frozen() -> None:
    """A pause stops growth: pausing the one that sits still would free nothing."""
    old, still = run(1, rate=80), run(2)
    assert ask(old, still, shrink=80).to_freeze and not ask(still, old, shrink=80).to_freeze
    both = run(3, use=5, rate=40)
    assert ask(both, old, still, shrink=120).to_freeze and not ask(old, both, still, shrink=120).to_freeze


def test_one_that_reserved_nothing_is_frozen_before_one_that_did() -> None:
    old, young = run(1, rate=50), run(2, rate=50, reserved=True)
    assert ask(old, young, shrink=100).to_freeze and not ask(young, old, shrink=100).to_freeze


def test_with_swap_the_newest_is_frozen() -> None:
    old, still = run(1, rate=80), run(2)
    assert ask(still, old, shrink=80, can_push=True).to_freeze
    assert not ask(old, still, shrink=80, can_push=True).to_freeze


def test_frozen_runs_are_not_frozen_again_and_thaw_oldest_first() -> None:
    old, middle, new = run(1), run(2, frozen=BY_GUARD), run(3, frozen=BY_GUARD)
    seen = ask(new, old, middle)
    assert not seen.to_freeze and not seen.to_thaw and (seen.running, seen.waiting) == (1, 1)
    assert ask(middle, old, new).to_thaw
    assert ask(new, old, run(2, frozen=BY_HAND)).to_thaw, "a run that the user froze is not waited for"


ages = st.lists(st.integers(1, 9), min_size=1, max_size=6, unique=True)


@given(ages, st.data(), st.floats(0, 500), st.booleans())
def test_at_most_one_is_chosen(numbers: list[int], data: st.DataObject, shrink: float, push: bool) -> None:
    """Whatever they hold and do: never two to freeze, never two to end of those that hold enough."""
    everybody = [
        run(
            age,
            use=data.draw(st.integers(0, 900)),
            rate=data.draw(st.integers(-50, 300)),
            frozen=data.draw(st.sampled_from([RUNS, BY_GUARD, BY_HAND])),
            protected=data.draw(st.booleans()),
        )
        for age in numbers
    ]
    seen = {
        me.name: ask(me, *(one for one in everybody if one is not me), shrink=shrink, can_push=push)
        for me in everybody
    }
    assert sum(one.to_freeze for one in seen.values()) <= 1
    worthy = [me for me in everybody if me.use >= WORTH]
    assert sum(seen[me.name].to_end for me in worthy) <= 1
    waiting = [me for me in everybody if me.frozen == BY_GUARD]
    assert sum(seen[me.name].to_thaw for me in waiting) == (1 if waiting else 0), "somebody may always go on"
    for me in everybody:
        assert not (seen[me.name].to_freeze and (me.protected or me.frozen))
