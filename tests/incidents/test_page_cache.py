"""A job a few MiB below what it works with: its files are thrown out of memory and read again all the time. It is told so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Cgroup, Lab, SmallMachine

from oomproof.machine import cache_faults

MIB = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Of 48 MiB, on disk and not in memory."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True).stdout
    if kind.strip() in ("tmpfs", "ramfs"):
        pytest.skip("the test's folder is on no disk")
    path = tmp_path / "weights.bin"
    with path.open("wb") as file:
        file.write(os.urandom(MIB) * 48)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def read_back(machine: Cgroup) -> cache_faults.CacheFaults:
    version = 2 if (machine.directory / "memory.max").exists() else 1
    faults = cache_faults.of_cgroup(str(machine.directory), version)
    if faults is None:
        pytest.skip("this kernel does not count what is read back (Linux 5.9)")
    return faults


def test_the_kernels_counters_tell_reading_again_from_reading(
    lab: Lab, small_machine: SmallMachine, file: Path
) -> None:
    machine = small_machine(40 * MIB)
    once = [sys.executable, "-c", "import sys; print(sum(map(len, open(sys.argv[1], 'rb'))))", str(file)]
    before = read_back(machine)
    subprocess.run([*machine.prefix, *once], check=True, capture_output=True)
    after = read_back(machine)
    assert after.read_back - before.read_back < 8 * MIB, "more than fits, but once"
    subprocess.run([*machine.prefix, *lab.job("mapped.py", 1, str(file), 0)], check=True, capture_output=True)
    again = read_back(machine)
    assert again.read_back - after.read_back > 48 * MIB and again.major > after.major


@pytest.mark.long  # half a minute: it must last before it is told
@pytest.mark.usefixtures("kernel_limit")
def test_a_job_slowed_by_its_limit_is_told_live_and_at_its_end(lab: Lab, file: Path) -> None:
    slow = lab.run(
        "run",
        "--name",
        "slow",
        "--limit",
        "100M",
        "--",
        *lab.job("mapped.py", 60, str(file), 40),
        timeout=300,
    )
    assert slow.returncode == 0, slow.stderr
    live, end = (line for line in slow.stderr.splitlines() if "slowed by its limit" in line)
    assert (
        "held 6" in live and "raise --limit to about 125M" in live and end.startswith("oomproof: finished: ")
    )
    assert (
        "to run it at full speed: oomproof run --name slow --limit 125M --" in lab.run("why", "slow").stdout
    )
    assert lab.run("runs", "show", "slow").stdout.count("page-cache: slowed by its limit") == 2
    fits = lab.run(
        "run",
        "--name",
        "fits",
        "--limit",
        "135M",
        "--",
        *lab.job("mapped.py", 60, str(file), 30),
        timeout=300,
    )
    assert fits.returncode == 0 and "slowed" not in fits.stderr
