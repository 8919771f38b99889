"""I0 at its full (scaled) size, on cgroup v2, for an ordinary user: 1 GB of RAM, a training of 480 MB, a loader of 480 MB.

Without us the kernel kills the training (bench/freeze.py has the table, with the seconds). Here: who lived.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from lab import Machine
from test_run import IN_GUEST, Run, User, ada, oom_kills  # noqa: F401 - a fixture too

pytestmark = pytest.mark.vm

ENOUGH, STALL = "/tmp/enough", "/tmp/stall"
TRAIN = f"python3 {IN_GUEST}/train_loop.py 480 {ENOUGH}"
LOAD = f"python3 {IN_GUEST}/loader.py 80 480 0"


@contextmanager
def bystander(user: User) -> Iterator[Callable[[], float]]:
    """A program that wakes every 100 ms; gives its longest stall so far, in seconds."""
    assert user.session is not None
    user.session.start(f"python3 {IN_GUEST}/bystander.py {STALL}")
    user.machine.wait_until(f"test -s {STALL}")
    try:
        yield lambda: float(user.machine.get(STALL))
    finally:
        user.machine.run(f"kill -9 $(cat {STALL}.pid); rm -f {STALL} {STALL}.pid {ENOUGH}")


def frozen(run: Run) -> None:
    """Waits until its guard has paused it and the kernel says that all of it is paused."""
    run.machine.wait_until(f"test -s {run.attempt}/paused.json")
    run.machine.wait_until(f"grep -q 'frozen 1' {run.backend()['memory']}/cgroup.events")


def deeds(run: Run) -> list[str]:
    text = run.machine.run(f"cat {run.attempt}/actions.jsonl", check=False).out
    return [json.loads(line)["action"] for line in text.splitlines() if line.startswith("{")]


def nobody_died(guest: Machine, before: int, *runs: Run) -> None:
    for run in runs:
        assert run.status() == 0
        run.printed("intact")
        done = run.machine.run(f"cat {run.attempt}/actions.jsonl", check=False).out
        assert run.verdict()[0] == "finished", done
        assert not {"request", "term", "kill"} & set(deeds(run)), done
    assert oom_kills(guest) == before


def test_both_jobs_finish(
    guest: Machine,
    ada: User,  # noqa: F811
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    """128 MB of zram, which is no extra memory; nothing declared, nothing asked for."""
    guest.zram(128)
    before = oom_kills(guest)
    try:
        with bystander(ada) as longest_stall:
            training = ada.run("training", f"-- {TRAIN}")
            training.printed("step 10")
            loader = ada.run("loader", f"-- {LOAD}")
            assert loader.backend()["name"] == "systemd user scope"
            frozen(loader)
            assert training.lives() and loader.lives() and loader.lives("keeper")
            guest.run(f"touch {ENOUGH}")
            nobody_died(guest, before, training, loader)
            record_testsuite_property("longest stall beside zram, s", longest_stall())
    finally:
        guest.swapoff()
    assert deeds(loader).count("pause") == deeds(loader).count("resume") >= 1
    assert "pause" not in deeds(training)
    assert "paused: " in loader.words() and "resumed: " in loader.words()
    assert "only its growth is stopped" in loader.words()


@pytest.mark.long
def test_with_disk_swap_the_paused_job_is_pushed_out_and_comes_back_whole(
    guest: Machine,
    ada: User,  # noqa: F811
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    guest.swapon()
    before = oom_kills(guest)
    try:
        with bystander(ada) as longest_stall:
            training = ada.run("training", f"-- {TRAIN}")
            training.printed("step 10")
            loader = ada.run("loader", f"-- {LOAD}")
            frozen(loader)
            group = loader.backend()["memory"]
            guest.wait_until(f'test "$(cat {group}/memory.swap.current)" -gt 50000000')
            assert training.lives() and loader.lives()
            guest.run(f"touch {ENOUGH}")
            nobody_died(guest, before, training, loader)
            record_testsuite_property("longest stall beside disk swap, s", longest_stall())
    finally:
        guest.swapoff()
    assert "it is pushed out to swap" in loader.words() and "out to swap" in loader.words()
    assert "pause" in deeds(loader) and "pause" not in deeds(training)


@pytest.mark.long
def test_by_hand_as_an_ordinary_user(guest: Machine, ada: User) -> None:  # noqa: F811
    """In a user scope: paused and thawed by its own user, left alone by the guard, and by the guard's death."""
    job = ada.run("mine", f"-- python3 {IN_GUEST}/counter.py")
    job.printed("main 3")
    said = ada.oomproof("pause mine")
    assert "is paused (cgroup v2 freezer)" in said
    assert "paused" in ada.oomproof("runs")
    group = job.backend()["memory"]
    guest.run(f"grep -q 'frozen 1' {group}/cgroup.events")
    guest.run(f"kill -9 {job.pid('guard')}")
    guest.wait_until(f"grep -q guard-lost {job.attempt}/keeper.jsonl")
    guest.run(f"grep -q 'frozen 1' {group}/cgroup.events")
    ada.oomproof("resume mine")
    guest.run(f"grep -q 'frozen 0' {group}/cgroup.events")
    ada.oomproof("pause mine")
    ada.oomproof("stop --grace 1 mine")
    assert job.ended()["signal"] == 15


@pytest.mark.long
def test_the_newest_is_the_kernels_first_choice(guest: Machine, ada: User) -> None:  # noqa: F811
    old = ada.run("old", f"-- python3 {IN_GUEST}/counter.py")
    # the new one counts the runs that are older: the old one's guard must have entered it by then
    guest.wait_until(f"ls /run/user/1000/oomproof/live/*-{old.id}")
    new = ada.run("new", f"-- python3 {IN_GUEST}/counter.py")
    for run in (old, new):
        run.printed("a 2")
    usual, older, younger = (
        int(guest.run(f"cat /proc/{pid}/oom_score_adj").out)
        for pid in (old.pid("guard"), old.pid("job"), new.pid("job"))
    )
    assert older == usual and younger == usual + 300
    for run in (old, new):
        ada.oomproof(f"stop --now {run.name}")
        assert run.ended()["signal"] == 15
