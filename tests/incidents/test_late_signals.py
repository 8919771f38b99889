"""A signal that comes after the job's end finds the status, the verdict and the run's folder as they were."""

from __future__ import annotations

import signal
import subprocess
from itertools import repeat

import pytest
from conftest import Lab, until


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("times", [1, 200])
def test_a_signal_after_the_end_leaves_the_status(lab: Lab, number: int, times: int) -> None:
    """Once, or again and again until it is gone: an impatient Ctrl-C must not make a 7 a 130."""
    for round_number in range(3):
        name = f"late-{round_number}"
        running = lab.start(name, "--", "sh", "-c", "sleep 0.3; exit 7", stderr=subprocess.PIPE)
        attempt = running.attempt
        until(lambda a=attempt: (a / "exit.json").exists(), "its end")
        for _ in repeat(None, times):
            if running.process.poll() is not None:
                break
            running.process.send_signal(number)
            try:
                running.process.wait(0.002)
            except subprocess.TimeoutExpired:
                continue
        assert running.process.wait(30) == 7
        assert attempt.exists(), "the run's folder is still there"
        if times == 1:
            assert running.process.stderr is not None and "verdict" in running.process.stderr.read()
            assert running.verdict()["verdict"]["cause"] == "other-error"
