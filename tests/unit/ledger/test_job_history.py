"""The largest job, or the largest two that were there at the same time."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from oomproof.ledger import job_history
from oomproof.ledger.job_history import JobHistory, JobPeak, largest
from oomproof.machine.asking_user import AskingUser

GIB = 1 << 30


def test_two_that_overlapped_count_together() -> None:
    train, loader = JobPeak("train", 19 * GIB, 100, 900), JobPeak("glm", 20 * GIB, 800, 850)
    assert {job.name for job in largest([train, loader])} == {"train", "glm"}


def test_two_that_never_met_do_not() -> None:
    first, second = JobPeak("a", 19 * GIB, 100, 200), JobPeak("b", 20 * GIB, 200, 300)
    assert largest([first, second]) == (second,)


def test_the_largest_alone_beats_two_small_ones() -> None:
    large = JobPeak("large", 50 * GIB, 0, 10)
    small = [JobPeak("a", 2 * GIB, 20, 30), JobPeak("b", 2 * GIB, 20, 30)]
    assert largest([large, *small]) == (large,)
    assert largest([JobPeak("tiny", 1 << 20, 0, 1)]) == ()


def test_a_real_run_is_in_it() -> None:
    code = "b = bytearray(100 << 20); import time; time.sleep(2.2)"
    command = [
        sys.executable,
        "-m",
        "oomproof",
        "run",
        "-q",
        "--name",
        "hundred",
        "--",
        sys.executable,
        "-c",
        code,
    ]
    subprocess.run(command, check=True)
    history = job_history.read()
    assert history.runs == 1 and [job.name for job in history.together] == ["hundred"]
    assert 95 << 20 < history.use < 200 << 20
    told = subprocess.run(
        [sys.executable, "-P", "-m", "oomproof.ledger.job_history"], capture_output=True, check=True
    )
    assert job_history.from_json(json.loads(told.stdout)) == history


def test_a_user_whose_runs_cannot_be_read_has_none() -> None:
    nobody = AskingUser(65534, 65534, "nobody", "/nonexistent")
    history = job_history.read_of(nobody, os.getuid())
    assert history.together == ()
    assert history == JobHistory() or "nobody" in history.problem
