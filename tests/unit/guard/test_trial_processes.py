"""Of a sweep's agent only the trial that fills memory is ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from oomproof.guard.actuator import end_trial, is_sweep_agent, trial_to_end
from oomproof.machine import processes
from oomproof.machine.processes import ProcessMemory

COMMANDS = {
    10: ["/usr/bin/python3", "/venv/bin/wandb", "agent", "me/p/abc"],
    11: ["/venv/bin/wandb-core"],
    12: ["/usr/bin/python3", "train.py", "--batch=64"],
    13: ["/usr/bin/python3", "train.py", "--batch=64"],
}


def sample(pid: int, parent: int, held: int) -> ProcessMemory:
    return ProcessMemory(pid, 1, parent, "python3", held << 20, 0, 0, 0)


@pytest.mark.parametrize(
    ("command", "agent"),
    [
        ("wandb agent me/p/abc", True),
        ("/venv/bin/python /venv/bin/wandb agent --count 3 abc", True),
        ("env A=b /venv/bin/python -m wandb agent abc", True),
        ("wandb sync wandb/run-1", False),
        ("python train.py --logger wandb --mode agent", False),
        ("python agent.py", False),
    ],
)
def test_who_starts_trials(command: str, agent: bool) -> None:
    assert is_sweep_agent(command.split()) is agent


def test_the_largest_trial_with_its_workers() -> None:
    job = [sample(10, 1, 60), sample(11, 10, 30), sample(12, 10, 500), sample(13, 12, 200)]
    trial = trial_to_end(job, COMMANDS.__getitem__)
    assert trial is not None and (trial.pid, trial.held, trial.pids) == (12, 700 << 20, (12, 13))
    assert trial.shown == "/usr/bin/python3 train.py --batch=64 (pid 12, held 700 MiB)"


def test_an_agent_that_grew_itself_is_no_trials_fault() -> None:
    assert trial_to_end([sample(10, 1, 600), sample(12, 10, 50)], COMMANDS.__getitem__) is None
    assert trial_to_end([sample(12, 1, 600), sample(13, 12, 50)], COMMANDS.__getitem__) is None, "no agent"


def test_the_trial_goes_and_the_agent_stays(tmp_path: Path) -> None:
    trial = "held = bytearray(b'x') * (40 << 20); print('ready', flush=True); input()"
    agent = tmp_path / "wandb"
    agent.write_text(
        "import subprocess, sys\n"
        f"print('trial ended with', subprocess.call([sys.executable, '-S', '-c', {trial!r}]), flush=True)\n"
        "input()\n"
    )
    command = [sys.executable, "-S", str(agent), "agent", "abc"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        pids = [process.pid, *processes.children(process.pid)]
        ended = end_trial(pids)
        assert ended is not None and ended.pids == (pids[1],) and ended.held >= 40 << 20
        assert process.stdout.readline() == "trial ended with -9\n", "and the agent goes on"
        assert end_trial([process.pid]) is None
        process.stdin.close()
