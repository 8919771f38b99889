"""The live runs of one user: their records on disk, and the latch between their guards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from oomproof.ledger import live_runs
from oomproof.ledger.live_runs import BY_HAND, Live


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    old = live_runs.LiveRun("old", 1.0, tmp_path, protected=True, leader=(77, 88), need=5)
    new = live_runs.LiveRun("new", 2.0, tmp_path)
    old.update(100, 5.0, 7.5, BY_HAND)
    (seen,) = new.others(6.0)
    assert seen == Live(old.name, 100, 5.0, 7, BY_HAND, True, 77, 88, True, need=5)
    assert seen.id == "old"
    half = (tmp_path / "live" / old.name).read_bytes()[:-8]
    assert live_runs.parsed(old.name, half) == Live(old.name), "just being made"
    (silent,) = new.others(60.0)
    assert silent.rate == 0, "the growth of a guard that has been silent for a minute is not believed"
    assert live_runs.count(tmp_path) == 2
    old.leave()
    assert new.others(6.0) == [] and live_runs.count(tmp_path) == 1
    new.leave()


def test_latch_lets_one_act_at_a_time(tmp_path: Path) -> None:
    one, two = live_runs.LiveRun("one", 1.0, tmp_path), live_runs.LiveRun("two", 2.0, tmp_path)
    assert one.take_latch(100.0)
    assert not two.take_latch(100.5)
    assert not two.take_latch(103.0, 5.0), "going on waits longer"
    assert two.take_latch(101.5)
    for each in (one, two):
        each.leave()


def test_a_run_that_goes_on_does_not_wait_for_itself(tmp_path: Path) -> None:
    """Its own thaw, and it fills the machine at once: it must be ended now, not in a second."""
    mine = live_runs.LiveRun("mine", 1.0, tmp_path)
    assert mine.take_latch(100.0, 5.0, resume=True)
    script = (
        "from pathlib import Path; from oomproof.ledger.live_runs import LiveRun\n"
        f"print(LiveRun('other', 2.0, Path({str(tmp_path)!r})).take_latch(100.1))"
    )
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert other.stdout == "False\n", "but everybody else waits to see what it takes"
    assert mine.take_latch(100.2)
    assert not mine.take_latch(100.3)
    mine.leave()


def test_killed_guards_leave_the_list(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from oomproof.ledger.live_runs import LiveRun\n"
        f"r = LiveRun('dead', 5.0, Path({str(tmp_path)!r})); r.update(1 << 40, 0.0); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == -9
    mine = live_runs.LiveRun("mine", 1.0, tmp_path)
    assert mine.others(0.0) == []
    assert len(list((tmp_path / "live").iterdir())) == 1
    mine.leave()
