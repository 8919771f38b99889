"""No right to any cgroup: the guard goes by the processes alone. Forked workers are no growth, and growth is seen."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

import pytest
from conftest import Cgroup, Lab

from oomproof.recording import state_files
from oomproof.recording.reader import open_recording

MIB = 1 << 20
HIDE = 'mount -t tmpfs tmpfs /sys/fs/cgroup && exec "$@"'


@pytest.fixture
def around(small_machine: Callable[[int], Cgroup]) -> Cgroup:
    """Around it all, so that a guard that fails does not fill the machine; it knows the truth."""
    return small_machine(1500 * MIB)


@pytest.fixture
def bare(lab: Lab, around: Cgroup) -> Lab:
    """No cgroup to be seen."""
    probe = subprocess.run(["unshare", "-m", "sh", "-c", HIDE, "sh", "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"cannot hide the cgroups here: {probe.stderr.strip()}")
    lab.prefix = [*around.prefix, "unshare", "-m", "sh", "-c", HIDE, "sh"]
    return lab


def actions(lab: Lab, name: str) -> list[str]:
    folder = lab.folder_of(name)
    assert folder is not None
    return [line["action"] for line in state_files.read_lines(folder / "1" / "actions.jsonl")]


def held_at_most(lab: Lab, name: str) -> int:
    """By the samples, and by what the guard saw when it acted: on a starved machine that is the later of the two."""
    folder = lab.folder_of(name)
    assert folder is not None
    peak = open_recording(folder / "1" / "recording.sqlite").figures().peaks.use
    assert peak is not None
    acted = [line["facts"].get("use", 0) for line in state_files.read_lines(folder / "1" / "actions.jsonl")]
    return max([peak, *acted])


def charged_at_most(machine: Cgroup) -> int:
    """All that the job and we held there, at any moment, page cache included: by the kernel's own count."""
    for name in ("memory.max_usage_in_bytes", "memory.peak"):
        if (machine.directory / name).exists():
            return int((machine.directory / name).read_text())
    pytest.skip("no peak of a cgroup here (Linux 5.19)")


def test_forked_workers_that_sleep_are_left_alone(bare: Lab) -> None:
    """200 MiB and eight workers that share it: 200 MiB under a limit of 600, not 1.8 GiB."""
    for number in range(3):
        name = f"forks{number}"
        done = bare.run(
            "run", "--name", name, "--limit", "600M", "--grace", "1", "--", *bare.job("forks.py", 200, 8)
        )
        assert done.returncode == 0, done.stderr
        assert actions(bare, name) == [], done.stderr
        assert bare.verdict(name)["verdict"]["cause"] == "finished"
        # what the next run of this command is taken to need
        assert 190 * MIB < held_at_most(bare, name) < 320 * MIB


def test_workers_that_write_to_what_they_inherited_are_seen(bare: Lab, around: Cgroup) -> None:
    """Copies of shared pages change no process's own figure; they fill the machine all the same. How far they come on a starved
    machine is its affair; that no page counts twice is ours."""
    done = bare.run(
        "run",
        "--name",
        "copies",
        "--limit",
        "600M",
        "--grace",
        "1",
        "--",
        *bare.job("forks.py", 200, 4, "write"),
    )
    assert {"request", "term", "kill"} & {*actions(bare, "copies")}, done.stderr
    assert bare.verdict("copies")["verdict"]["cause"] == "stopped-by-guard"
    assert 400 * MIB < held_at_most(bare, "copies") <= charged_at_most(around)


@pytest.mark.parametrize("rate", [100, 2000])
def test_a_leak_beside_workers_is_ended_near_its_limit(bare: Lab, around: Cgroup, rate: int) -> None:
    job = bare.job("forks.py", 100, 8)
    grow = bare.job("grow.py", rate, 2000)
    script = " ".join(job) + " & exec " + " ".join(grow)
    done = bare.run("run", "--name", "leak", "--limit", "500M", "--grace", "0.5", "--", "sh", "-c", script)
    assert done.returncode in (128 + signal.SIGTERM, 128 + signal.SIGKILL), done.stderr
    assert bare.verdict("leak")["verdict"]["cause"] == "stopped-by-guard"
    assert held_at_most(bare, "leak") <= charged_at_most(around)
    if rate == 100:  # at 2000 MiB/s a starved guard's tenth of a second is two hundred more
        assert held_at_most(bare, "leak") < 700 * MIB
