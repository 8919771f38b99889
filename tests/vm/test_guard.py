"""The other half of I0: the loader was started by hand. 1 GB of RAM, a training of 480 MB, a loader of 480 MB; both finish."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from lab import Handle, Machine
from test_replay import ENOUGH, LOAD, TRAIN, bystander, deeds
from test_run import IN_GUEST, User, ada, oom_kills, room  # noqa: F401 - a fixture too

pytestmark = pytest.mark.vm

Record = Callable[[str, object], None]


def by_hand(user: User, command: str) -> tuple[Handle, int]:
    """Typed into the shell, without us: its handle, and the pid of the program itself."""
    assert user.session is not None
    handle = user.session.start(command)
    script = command.split()[1]
    pid = user.machine.wait_until(f"pgrep -u ada -f '^python3 {script}'").out.split()[-1]
    return handle, int(pid)


def paused(machine: Machine, pid: int) -> None:
    machine.wait_until(f"grep -q '^State:.T' /proc/{pid}/status")


def finished(machine: Machine, handle: Handle) -> None:
    assert machine.wait(handle, timeout=240).rc == 0
    assert "intact" in machine.output(handle)


@contextmanager
def nobody_dies(user: User) -> Iterator[Callable[[], float]]:
    """Beside 128 MB of zram, which is no extra memory. Gives a bystander's longest stall so far."""
    user.machine.zram(128)
    before = oom_kills(user.machine)
    try:
        with bystander(user) as longest_stall:
            yield longest_stall
    finally:
        user.machine.swapoff()
    assert oom_kills(user.machine) == before


def kept_in_ram(machine: Machine) -> int:
    """Of the desktop's slices, in bytes."""
    return int(machine.run("cat /sys/fs/cgroup/user.slice/memory.low").out)


@contextmanager
def service(user: User, *, system: bool, flags: str = "") -> Iterator[str]:
    """The guard as shipped, with its unit's sandbox; gives the words that follow its log."""
    asked = user.machine if system else user.session
    assert asked is not None
    whose = "--system" if system else ""
    since = user.machine.run("date +%s").out.strip()
    asked.run(f"oomproof guard install {whose} {flags}")
    unit = "_SYSTEMD_UNIT" if system else "_SYSTEMD_USER_UNIT"
    log = f"journalctl -o cat --since=@{since} {unit}=oomproof-guard.service"
    try:
        user.machine.wait_until(f"{log} | grep -q 'guarding this machine'")
        assert (kept_in_ram(user.machine) > 0) == system
        yield log
    finally:
        print(user.machine.run(log, check=False).out)  # shown where the test fails
        begun = time.monotonic()
        asked.run(f"oomproof guard uninstall {whose}")
        print(f"uninstalled in {time.monotonic() - begun:.1f} s")
        assert user.machine.run("pgrep -f '[c]li.main guard'", check=False).out == ""
        assert kept_in_ram(user.machine) == 0
        assert user.machine.run("find /etc/systemd -name '*oomproof*'").out == ""


def test_the_loader_was_started_by_hand(guest: Machine, ada: User, record_testsuite_property: Record) -> None:  # noqa: F811
    """The training under `run`, without any daemon: its own guard pauses the loader."""
    with nobody_dies(ada) as longest_stall:
        training = ada.run("training", f"-- {TRAIN}")
        training.printed("step 10")
        loader, pid = by_hand(ada, LOAD)
        paused(guest, pid)
        assert training.lives()
        assert f"pid {pid}" in ada.oomproof("guard status", check=False)
        guest.run(f"touch {ENOUGH}")
        assert training.status() == 0, training.words()
        finished(guest, loader)
        record_testsuite_property("longest stall, loader by hand, s", longest_stall())
    # a request may come first where a look at all processes takes seconds, as in this emulation; nothing here answers it
    assert not {"pause", "term", "kill"} & set(deeds(training))
    assert f"(pid {pid}), which was not started by oomproof" in training.words()


@pytest.mark.long
@pytest.mark.parametrize("system", [True, False], ids=["system", "user"])
def test_neither_was_started_by_us(
    system: bool,
    guest: Machine,
    ada: User,  # noqa: F811
    record_testsuite_property: Record,
) -> None:
    with service(ada, system=system) as log, nobody_dies(ada) as longest_stall:
        training, _ = by_hand(ada, TRAIN)
        guest.wait_until(f"grep -q 'step 10' {training.output}")
        loader, pid = by_hand(ada, LOAD)
        paused(guest, pid)
        guest.wait_until(f"{log} | grep -q 'paused .*pid {pid}'")
        guest.run(f"touch {ENOUGH}")
        finished(guest, training)
        finished(guest, loader)
        whose = "system" if system else "user"
        record_testsuite_property(f"longest stall, {whose} guard, s", longest_stall())
    assert ada.session is not None and "which was not started by oomproof" in ada.session.screen(), (
        "its terminal was told"
    )


@pytest.mark.long
def test_the_service_is_killed_in_the_middle(guest: Machine, ada: User) -> None:  # noqa: F811
    """The run's own guard takes over; whatever happens in between, the loader is not left paused."""
    with service(ada, system=True), nobody_dies(ada):
        training = ada.run("training", f"-- {TRAIN}")
        training.printed("step 10")
        loader, pid = by_hand(ada, LOAD)
        paused(guest, pid)
        guest.run("systemctl kill -s KILL --kill-whom=main oomproof-guard")
        guest.run(f"touch {ENOUGH}")
        assert training.status() == 0, training.words()
        finished(guest, loader)


@pytest.mark.long
def test_another_users_job_is_not_touched(guest: Machine, ada: User) -> None:  # noqa: F811
    """A user's guard sees root's loader fill the machine: it names it and leaves it alone."""
    with service(ada, system=False) as log:
        loader = guest.start(f"setsid -f true; python3 {IN_GUEST}/loader.py 80 700 0")
        try:
            guest.wait_until(f'{log} | grep -q "not paused: it is another user\'s"')
            assert guest.run(f"{log} | grep -c 'oomproof: paused'", check=False).out.strip() == "0"
        finally:
            guest.run("pkill -9 -u root -f loader.py", check=False)
            guest.wait(loader, timeout=240)


FELT = {
    f"python3 {IN_GUEST}/grows_as.py editor 40 330": "it is used at its terminal",
    f"python3 {IN_GUEST}/grows_as.py database 40 330": "it serves TCP port",
    f"unshare --user --map-root-user --pid --fork python3 {IN_GUEST}/grows_as.py plain 40 330": "it runs in a container",
    f"unshare --user --map-root-user --mount python3 {IN_GUEST}/grows_as.py fuse 40 330": "it serves a FUSE mount",
}


@pytest.mark.long
def test_what_others_would_feel_is_only_warned_of(guest: Machine, ada: User) -> None:  # noqa: F811
    """In front at her terminal, one after the other; each is named, none is paused. Each meets a guard that has just begun: within
    seconds of one warning no other is told."""
    assert ada.session is not None
    guest.run("modprobe fuse")
    for command, reason in FELT.items():
        with service(ada, system=False) as log, room(guest, 450):
            ada.session.type(f"{command}\n")
            try:
                guest.wait_until(f"{log} | grep -q 'not paused: {reason}'")
                guest.run("! grep -q '^State:.T' $(pgrep -u ada -f [g]rows_as | sed 's,.*,/proc/&/status,')")
            finally:
                guest.run("pkill -9 -u ada -f [g]rows_as", check=False)
                guest.wait_until("! pgrep -u ada -f [g]rows_as")
            assert guest.run(f"{log} | grep -c 'oomproof: paused'", check=False).out.strip() == "0"


@pytest.mark.long
def test_a_dry_run_acts_on_nothing(guest: Machine, ada: User) -> None:  # noqa: F811
    with service(ada, system=True, flags="--dry-run") as log, room(guest, 450):
        loader, pid = by_hand(ada, f"python3 {IN_GUEST}/loader.py 40 330 20")
        guest.wait_until(f"{log} | grep -q 'would pause .*pid {pid}'")
        guest.run(f"! grep -q '^State:.T' /proc/{pid}/status")
        assert "only says whom it would pause" in ada.oomproof("guard status")
        finished(guest, loader)
