"""An alarm that the kernel sets off: asked for in its words, and done without where it cannot be had."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from oomproof.machine import cgroups
from oomproof.machine.cgroups import ChargeAlarm
from oomproof.units import MIB

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="cgroups are Linux's")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As a cgroup of version 1 looks, with files that take everything."""
    for name in ("memory.usage_in_bytes", "cgroup.event_control"):
        (tmp_path / name).write_text("")
    return tmp_path


def test_the_kernel_is_asked_in_its_words(folder: Path) -> None:
    alarm = ChargeAlarm(str(folder))
    assert not alarm.stands(100 * MIB, MIB)
    assert alarm.set(100 * MIB)
    event, _, above = (folder / "cgroup.event_control").read_text().split()
    assert (int(event), int(above)) == (alarm.fd, 100 * MIB)
    assert alarm.stands(100 * MIB + 4096, MIB) and not alarm.stands(102 * MIB, MIB)
    alarm.clear()
    assert alarm.fd is None and not alarm.stands(100 * MIB, MIB)


@pytest.mark.parametrize("missing", ["memory.usage_in_bytes", "cgroup.event_control"])
def test_where_it_cannot_be_had_no_descriptor_is_left(folder: Path, missing: str) -> None:
    before = os.listdir("/proc/self/fd")
    (folder / missing).unlink()
    alarm = ChargeAlarm(str(folder))
    assert not alarm.set(MIB) and alarm.fd is None
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_process_that_takes_more_sets_it_off() -> None:
    """The kernel's own, where a memory cgroup of version 1 can be made."""
    own = cgroups.own_directory("memory")
    if own is None or not os.access(own, os.W_OK) or not os.path.exists(f"{own}/cgroup.event_control"):
        pytest.skip("no memory cgroup of version 1 can be made here")
    made = f"{own}/alarm-{os.getpid()}"
    os.mkdir(made)
    alarm, poller = ChargeAlarm(made), select.poll()
    words = f"echo $$ > {made}/cgroup.procs && head -c 64M /dev/zero | tail -c 64M | wc -c"
    try:
        assert alarm.set(16 * MIB) and alarm.fd is not None
        poller.register(alarm.fd, select.POLLIN)
        assert not poller.poll(0)
        subprocess.run(["sh", "-c", words], check=True, stdout=subprocess.DEVNULL)
        assert poller.poll(5000) == [(alarm.fd, select.POLLIN)]
    finally:
        alarm.clear()
        os.rmdir(made)
