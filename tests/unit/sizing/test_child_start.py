"""A child in a session of its own is ended by whoever started it, also when the Ctrl-C comes before anybody watches it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from oomproof.sizing import child_start

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_an_interrupt_right_after_the_fork_ends_the_child(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Seen on a starved machine: the child had begun to measure when its parent had not come back from the fork."""
    pids: list[int] = []
    start = subprocess.Popen

    def interrupted(*words: Any, **options: Any) -> Any:
        child = start(*words, **options)
        pids.append(child.pid)
        os.kill(os.getpid(), signal.SIGINT)
        return child

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest-xdist ignores it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with pytest.raises(KeyboardInterrupt), child_start.started(SLEEPS):
        pytest.fail("it was not interrupted")
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_leaving_the_block_ends_it() -> None:
    with child_start.started(SLEEPS) as child:
        assert child.poll() is None
    assert child.returncode == -signal.SIGKILL


def test_a_program_that_is_not_there_leaves_nothing_held() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(FileNotFoundError), child_start.started(["/no/such/program"]):
        pass
    assert signal.getsignal(signal.SIGINT) is before
