"""GPU pauses on a machine without a card: what is said, that nothing is touched, and that the keeper looks after the job.

What needs a card is shown by hand: tests/gpu/pause.py.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from conftest import Lab, alive, until

from oomproof.machine import processes
from oomproof.recording import run_folders, state_files

needs_no_card = pytest.mark.skipif(
    os.path.exists("/dev/nvidiactl"), reason="there is a card here: tests/gpu/pause.py"
)
JOB = [sys.executable, "-u", "-c", "import time\nprint('up')\nwhile True: time.sleep(0.05); print('on')"]


@needs_no_card
def test_without_a_driver_the_job_runs_on_and_the_user_is_told(lab: Lab) -> None:
    job = lab.start("job", "--", *JOB)
    job.output_has("up")
    done = lab.run("pause", "job", "--gpu")
    assert done.returncode != 0
    assert "cannot be given back: there is no CUDA driver here" in done.stderr
    assert "oomproof pause job" in done.stderr
    assert run_folders.Run(job.folder).state() == "running"
    assert not (job.attempt / "gpu_paused.json").exists()
    assert not (job.attempt / "paused.json").exists()
    lab.run("stop", "job", "--now")


def test_a_lost_guard_leaves_the_card_to_the_keeper(lab: Lab, tmp_path: Path) -> None:
    """The processes that were noted are gone by now: the keeper's helper finds that and takes the note away."""
    job = lab.start("job", "--", *JOB)
    job.output_has("up")
    note = {"boot_id": processes.boot_id(), "pids": [[2**22 + 5, 1]], "cards": {"0": 1 << 30}}
    (job.attempt / "gpu_paused.json").write_text(json.dumps(note))
    assert run_folders.Run(job.folder).state() == "paused"
    job.process.kill()
    job.process.wait()
    tried = until(
        lambda: [
            one["event"]
            for one in state_files.read_lines(job.attempt / "keeper.jsonl")
            if "gpu" in one["event"]
        ],
        "the keeper to try",
    )
    gone = not (job.attempt / "gpu_paused.json").exists()
    assert tried[0] == ("gpu-resume" if gone else "gpu-resume-failed")
    assert gone == os.path.exists("/dev/nvidiactl")  # without a driver nobody can say, and the note stays
    assert alive(job.job_pid)
    assert lab.run("stop", "job", "--now").returncode == 0
    assert not alive(job.job_pid)


@needs_no_card
def test_sharing_a_card_that_is_not_there(lab: Lab) -> None:
    done = lab.run("run", "--gpu-share", "--", "true")
    assert done.returncode == 75
    assert "no NVIDIA GPU here to share" in done.stderr
    assert "true" not in lab.run("runs").stdout, "what was not started leaves no run behind"
