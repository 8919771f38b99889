"""The process that resumes what a killed guard had paused: whoever was stopped runs, whoever somebody else stopped does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oomproof.guard import resumer
from oomproof.leaf.proc_files import boottime, is_stopped, start_time


@pytest.fixture
def sleepers() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "1000"]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def stop(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    process.send_signal(signal.SIGSTOP)
    until(lambda: is_stopped(process.pid))
    return process.pid, start_time(process.pid) or 0


def start_resumer() -> subprocess.Popen[bytes]:
    started = subprocess.Popen(resumer.start_command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert started.stdout is not None and started.stdout.readline() == b"ready\n"
    return started


def test_when_the_guard_is_gone_everybody_runs(
    sleepers: Callable[[], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    paused, beside, by_hand, reused = (stop(sleepers()) for _ in range(4))
    file = tmp_path / "paused"
    file.touch()
    message = {
        "pid": paused[0], "start": paused[1], "members": [beside, by_hand, (reused[0], reused[1] + 1)],
        "skip": [by_hand[0]], "until": boottime() + 1000, "file": str(file),
    }  # fmt: skip
    process = start_resumer()
    os.kill(process.pid, signal.SIGTERM)  # a logout: it has work to do
    process.communicate(b"not json\n[]\n" + json.dumps(message).encode() + b"\n", timeout=60)
    assert process.returncode == 0 and not file.exists()
    assert not is_stopped(paused[0]) and not is_stopped(beside[0])
    assert is_stopped(by_hand[0]), "somebody else stopped it before"
    assert is_stopped(reused[0]), "its pid is another process's by now"


def test_a_pause_that_is_over_is_forgotten(sleepers: Callable[[], subprocess.Popen[bytes]]) -> None:
    pid, start = stop(sleepers())
    process = start_resumer()
    lines = [
        {"pid": pid, "start": start, "until": boottime() + 1000},
        {"pid": pid, "start": start, "over": True},
    ]
    process.communicate(b"".join(json.dumps(line).encode() + b"\n" for line in lines), timeout=60)
    assert is_stopped(pid), "resumed and stopped again by somebody else meanwhile"


def test_a_guard_that_hangs_is_not_waited_for(sleepers: Callable[[], subprocess.Popen[bytes]]) -> None:
    pid, start = stop(sleepers())
    process = start_resumer()
    assert process.stdin is not None
    process.stdin.write(json.dumps({"pid": pid, "start": start, "until": boottime() - 60}).encode() + b"\n")
    process.stdin.flush()
    until(lambda: not is_stopped(pid))
    process.communicate(timeout=60)


def test_one_that_has_not_stopped_yet_is_told_too(sleepers: Callable[[], subprocess.Popen[bytes]]) -> None:
    running = sleepers()
    assert resumer.resume_tree(running.pid, start_time(running.pid) or 0) == 1
