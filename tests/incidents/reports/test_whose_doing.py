"""Whose doing it was, with real processes: a pool that lost a worker, a reader that went away, a signal passed on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Cgroup, Lab, until
from test_without_cgroups import around, bare

from oomproof.recording.reader import open_recording
from oomproof.recording.series import JobRow

__all__ = ["around", "bare"]  # the fixtures: no right to any cgroup


@pytest.mark.usefixtures("kernel_limit")
def test_a_pool_that_lost_a_worker_is_told_while_it_hangs_and_when_it_is_interrupted(
    lab: Lab, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    said = tmp_path / "said"
    with said.open("w") as terminal:
        running = lab.start("pool", "--limit", "150M", "--", *lab.job("pool.py", go, 400), stderr=terminal)
    running.output_has("waiting")
    running.process.send_signal(signal.SIGSTOP)  # the guard would be quicker than the kernel
    go.touch()
    counter = Path(running.started()["backend"]["memory"])
    names = ("memory.events", "memory.oom_control")
    files = [counter / name for name in names if (counter / name).exists()]
    until(lambda: "oom_kill 1" in files[0].read_text(), "the kernel to kill the worker")
    used = next(
        path for name in ("memory.current", "memory.usage_in_bytes") if (path := counter / name).exists()
    )
    until(
        lambda: int(used.read_text()) < 100 << 20, "its memory to be free"
    )  # else the guard ends the rest as well
    running.process.send_signal(signal.SIGCONT)
    until(lambda: "the kernel killed a process of the job" in said.read_text(), "to be told of it")
    for _ in range(
        6
    ):  # a pool that lost a worker sometimes hangs in its own end too: people press Ctrl-C again
        running.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.process.wait(20)
            break
    running.wait()
    verdict = lab.verdict("pool")["verdict"]
    assert (verdict["cause"], verdict["certainty"]) == ("oom-kill-memcg", "proven"), verdict
    assert "can never finish" in verdict["why"]
    assert "interrupted" not in verdict["headline"]


def test_without_a_cgroup_of_its_own_a_hung_pool_is_told_too(
    bare: Lab, around: Cgroup, tmp_path: Path
) -> None:
    """In a container nobody counts the job's kills but the machine: it hung without a word. Only the job is in the small machine:
    while the kernel frees a victim it can take a second one, and that was oomproof."""
    go, said = tmp_path / "go", tmp_path / "said"
    inside = ["nsenter", f"--mount=/proc/{os.getpid()}/ns/mnt", "--", *around.smaller(700 << 20).prefix]
    with said.open("w") as terminal:
        running = bare.start("pool", "--", *inside, *bare.job("pool.py", go, 1200), stderr=terminal)
    running.output_has("waiting")
    go.touch()
    until(lambda: "the kernel killed " in said.read_text(), "to be told of it")
    assert "never ends" in said.read_text()
    for _ in range(6):  # a pool that lost a worker sometimes hangs in its own end too
        running.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.process.wait(20)
            break
    running.wait()
    assert "can never finish" in bare.verdict("pool")["verdict"]["why"]


@pytest.mark.parametrize("command", [["yes"], [sys.executable, "-uc", "while True: print('y')"]])
def test_a_reader_that_went_away_is_named(lab: Lab, command: list[str]) -> None:
    running = lab.start("piped", "--", *command, stdout=subprocess.PIPE)
    assert running.process.stdout is not None
    assert running.process.stdout.readline() == "y\n"
    running.process.stdout.close()
    running.process.wait(120)
    verdict = lab.verdict("piped")["verdict"]
    assert verdict["cause"] == "interrupted" and "the reader of its output went away" in verdict["headline"]
    assert "who or what sends" not in verdict["next"]


def test_a_sigterm_to_oomproof_run_is_told_as_passed_on(lab: Lab) -> None:
    running = lab.start("passed", "--", *lab.job("grow.py", 10, 1))
    running.output_has("ready")
    running.process.send_signal(signal.SIGTERM)
    running.wait()
    verdict = lab.verdict("passed")["verdict"]
    assert "which passed it on" in verdict["headline"] and "did not send" not in verdict["why"]


FILLS_SHM = """
import os, sys, time
file = open("/dev/shm/x", "wb")
file.write(b"x" * (62 << 20))
file.flush()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
os.kill(os.getpid(), 7)
"""


def test_shm_of_the_jobs_own_mount_namespace(lab: Lab, tmp_path: Path) -> None:
    """64 MiB of its own, full: never "4 MiB of 23.5 GiB free"."""
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"no mount namespace here: {probe.stderr.strip()}")
    program, go = tmp_path / "fills.py", tmp_path / "go"
    program.write_text(FILLS_SHM)
    inside = f"mount -t tmpfs -o size=64m tmpfs /dev/shm && {sys.executable} {program} {go}; exit $?"
    running = lab.start("shm", "--", "sh", "-c", f"unshare -m sh -c '{inside}'; exit $?")

    def sampled() -> bool:
        with open_recording(running.attempt / "recording.sqlite").series() as series:
            rows = series.newest(JobRow, 60.0)
            return any(row.shm_total == 64 << 20 and (row.shm_free or 0) < 4 << 20 for row in rows)

    until(sampled, "a sample of its own /dev/shm, full")
    go.touch()
    running.wait()
    verdict = lab.verdict("shm")["verdict"]
    assert verdict["cause"] == "shm-exhausted", verdict
    assert "of 64 MiB free" in verdict["headline"]


def test_shm_of_a_job_that_fails_before_anybody_looked(lab: Lab, tmp_path: Path) -> None:
    """Its own /dev/shm is told by the job itself: the machine's was "full, 23.5 GiB of 23.5 GiB free"."""
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"no mount namespace here: {probe.stderr.strip()}")
    program = tmp_path / "fails.py"
    words = "unable to allocate shared memory(shm) for file </torch_1_2_0>: No space left on device (28)"
    program.write_text(f"raise RuntimeError({words!r})\n")
    inside = f"mount -t tmpfs -o size=20m tmpfs /dev/shm && {sys.executable} {program}; exit $?"
    lab.run("run", "--name", "early", "--", "unshare", "-m", "sh", "-c", inside)
    verdict = lab.verdict("early")["verdict"]
    assert verdict["cause"] == "shm-exhausted", verdict
    assert "(20 MiB in all)" in verdict["headline"]
