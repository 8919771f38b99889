"""A real kill by the kernel, in a small memory cgroup: `why --system` lists it, and knows whether it was ours."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import DEADLINE, Lab

from oomproof.diagnosis.outage_verdict import SystemHistory
from oomproof.evidence.system_kills import system_kills
from oomproof.machine import kernel_log
from oomproof.recording.run_folders import Run
from oomproof.reports.system_kill_table import system_text

LIMIT = 120 << 20


@pytest.fixture
def log_readable() -> None:
    if (reason := kernel_log.read(0.0).reason) is not None:
        pytest.skip(f"the kernel's log cannot be read here: {reason}")


@pytest.mark.usefixtures("log_readable")
def test_a_strangers_death_is_listed(small_machine) -> None:
    machine = small_machine(LIMIT)
    began = time.time()
    taker = "held = [bytearray(8 << 20) for _ in range(200)]"
    victim = subprocess.Popen([*machine.prefix, sys.executable, "-c", taker])
    assert victim.wait(DEADLINE) == -signal.SIGKILL
    found = system_kills(began - 1, runs=[])
    (kill,) = [each for each in found.kills if each.pid == victim.pid]
    assert (kill.cause, kill.certainty, kill.run) == ("oom-kill-memcg", "proven", None)
    assert kill.limit == LIMIT
    assert kill.held is not None and LIMIT * 0.7 < kill.held <= LIMIT
    assert kill.wall is not None and began - 1 <= kill.wall <= time.time() + 1
    # its cgroup still stands: the kernel's own count beside the log's words
    assert any(each.path.endswith(machine.directory.name) and each.kills == 1 for each in found.cgroups)
    assert found.counted is None or found.counted >= found.logged
    text = system_text(SystemHistory(found))
    assert f"({victim.pid})" in text and "kernel: cgroup limit 120 MiB" in text


@pytest.mark.usefixtures("log_readable", "kernel_limit")
def test_our_own_runs_death_is_joined_with_its_run(lab: Lab, tmp_path: Path) -> None:
    began, go = time.time(), tmp_path / "go"
    assert lab.kernel_kill("mine", "--limit", "100M", job=lab.job("burst.py", go, 400), go=go) == 137
    folder = lab.folder_of("mine")
    assert folder is not None
    found = system_kills(began - 1, runs=[Run(folder)])
    ours = [each for each in found.kills if each.run == folder.name]
    assert len(ours) == 1, "once, though the log, the counters and the run tell of it"
    assert (ours[0].cause, ours[0].run_name) == ("oom-kill-memcg", "mine")
    assert f"oomproof why {folder.name}" in system_text(SystemHistory(found))


def test_a_quiet_second_has_no_kills_of_ours(lab: Lab) -> None:
    """The negative: a run that ended well is in no list."""
    began = time.time()
    assert lab.run("run", "--name", "calm", "--", sys.executable, "-c", "pass").returncode == 0
    folder = lab.folder_of("calm")
    assert folder is not None
    found = system_kills(began, runs=[Run(folder)])
    assert not [each for each in found.kills if each.run is not None]
