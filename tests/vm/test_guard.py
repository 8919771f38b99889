"""The other half of I0: the loader was started by hand. 1 GB of RAM, a training of 480 MB, a loader of 480 MB; both finish."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from lab import Handle, Machine
from test_replay import ENOUGH, LOAD, TRAIN, bystander, deeds
from test_run import IN_GUEST, User, ada, oom_kills  # noqa: F401 - a fixture too

pytestmark = pytest.mark.vm


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
def service(user: User, *, system: bool) -> Iterator[str]:
    """The guard as shipped, with its unit's sandbox; gives the words that follow its log."""
    asked = user.machine if system else user.session
    assert asked is not None
    asked.run(f"oomproof guard install {'--system' if system else ''}")
    log = (
        "journalctl -o cat -u oomproof-guard"
        if system
        else "journalctl -o cat _SYSTEMD_USER_UNIT=oomproof-guard.service"
    )
    try:
        user.machine.wait_until(f"{log} | grep -q 'guarding this machine'")
        yield log
    finally:
        asked.run(f"oomproof guard uninstall {'--system' if system else ''}")
        assert user.machine.run("pgrep -f '[c]li.main guard'", check=False).out == ""


def test_the_loader_was_started_by_hand(
    guest: Machine,
    ada: User,  # noqa: F811
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    """The training under `run`, without any daemon: its own guard pauses the loader."""
    guest.zram(128)
    before = oom_kills(guest)
    try:
        with bystander(ada) as longest_stall:
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
    finally:
        guest.swapoff()
    assert oom_kills(guest) == before
    # a request may come first where a look at all processes takes seconds, as in this emulation; nothing here answers it
    assert not {"freeze", "term", "kill"} & set(deeds(training))
    assert f"(pid {pid}), which was not started by oomproof" in training.words()


@pytest.mark.long
@pytest.mark.parametrize("system", [True, False], ids=["system", "user"])
def test_neither_was_started_by_us(
    system: bool,
    guest: Machine,
    ada: User,  # noqa: F811
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    guest.zram(128)
    before = oom_kills(guest)
    try:
        with service(ada, system=system) as log, bystander(ada) as longest_stall:
            training, _ = by_hand(ada, TRAIN)
            guest.wait_until(f"grep -q 'step 10' {training.output}")
            loader, pid = by_hand(ada, LOAD)
            paused(guest, pid)
            guest.wait_until(f"{log} | grep -q 'paused .*pid {pid}'")
            guest.run(f"touch {ENOUGH}")
            finished(guest, training)
            finished(guest, loader)
            record_testsuite_property(
                f"longest stall, {'system' if system else 'user'} guard, s", longest_stall()
            )
    finally:
        guest.swapoff()
    assert oom_kills(guest) == before
    assert ada.session is not None and "which was not started by oomproof" in ada.session.screen(), (
        "its terminal was told"
    )


@pytest.mark.long
def test_the_service_is_killed_in_the_middle(guest: Machine, ada: User) -> None:  # noqa: F811
    """The run's own guard takes over; whatever happens in between, the loader is not left paused."""
    guest.zram(128)
    before = oom_kills(guest)
    try:
        with service(ada, system=True):
            training = ada.run("training", f"-- {TRAIN}")
            training.printed("step 10")
            loader, pid = by_hand(ada, LOAD)
            paused(guest, pid)
            guest.run("systemctl kill -s KILL --kill-whom=main oomproof-guard")
            guest.run(f"touch {ENOUGH}")
            assert training.status() == 0, training.words()
            finished(guest, loader)
    finally:
        guest.swapoff()
    assert oom_kills(guest) == before


@pytest.mark.long
def test_another_users_job_is_not_touched(guest: Machine, ada: User) -> None:  # noqa: F811
    """A user's guard sees root's loader fill the machine: it names it and leaves it alone."""
    with service(ada, system=False) as log:
        loader = guest.start(f"setsid -f true; python3 {IN_GUEST}/loader.py 80 700 0")
        try:
            guest.wait_until(f'{log} | grep -q "not paused: it is another user\'s"')
        finally:
            guest.run("pkill -9 -u root -f loader.py", check=False)
            guest.wait(loader, timeout=240)
