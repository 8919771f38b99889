"""The stop signal reaches who answers it, and never ends a process that does not; with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oomproof.evidence.script_handlers import stop_answer
from oomproof.guard.guard_actions import UNHEARD, Actions, TaskThread
from oomproof.guard.job_handle import Job
from oomproof.leaf.proc_files import with_start
from oomproof.machine import processes
from oomproof.recording.attempt import Attempt

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="masks are read from /proc")

# in short sleeps: a signal that comes just before one is handled after it
READY = "print('ready', flush=True); [time.sleep(0.05) for _ in range(1200)]"
PLAIN = f"import time; {READY}"
CATCHES = f"import os, signal, time; signal.signal(signal.SIGUSR1, lambda *_: os._exit(7)); {READY}"
IGNORES = f"import signal, time; signal.signal(signal.SIGUSR1, signal.SIG_IGN); {READY}"
WAITS = (
    "import os, signal, threading, time; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); "
    f"threading.Thread(target=lambda: (signal.sigwait([signal.SIGUSR1]), os._exit(7))).start(); {READY}"
)
BELOW = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {CATCHES!r}]).returncode)"


class Started:
    def __init__(self) -> None:
        self.popens: list[subprocess.Popen[str]] = []

    def __call__(self, code: str) -> tuple[subprocess.Popen[str], Job]:
        popen = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        self.popens.append(popen)
        assert popen.stdout is not None and popen.stdout.readline() == "ready\n"
        return popen, Job({"job": with_start(popen.pid), "keeper": {"pid": 0}})


@pytest.fixture
def start() -> Iterator[Started]:
    started = Started()
    yield started
    for popen in started.popens:
        for pid in processes.descendants(popen.pid):
            os.kill(pid, signal.SIGKILL)
        popen.kill()
        popen.communicate()


@pytest.mark.parametrize("code", [CATCHES, WAITS, BELOW], ids=["handler", "sigwait", "child of a launcher"])
def test_who_answers_gets_it(start: Started, code: str) -> None:
    popen, job = start(code)
    assert job.ask_by_signal(signal.SIGUSR1)
    assert popen.wait(20) == 7
    job.close()


@pytest.mark.parametrize("code", [PLAIN, IGNORES], ids=["plain", "ignores"])
def test_nobody_answers_and_nobody_is_ended(start: Started, tmp_path: Path, code: str) -> None:
    popen, job = start(code)
    attempt, told, tasks = Attempt(tmp_path), list[str](), TaskThread()
    actions = Actions(job, attempt, tasks, [tmp_path / "stop"], signal.SIGUSR1, tell=told.append)
    actions.take("request", "it grows", {"use": 5})
    actions.take("request", "it grows again")
    tasks.close()
    assert popen.poll() is None and (tmp_path / "stop").exists(), "the other means are used all the same"
    assert told == [
        "did not send SIGUSR1: no process of the job handles it, and it would end the job unsaved"
    ]
    first = json.loads((tmp_path / "actions.jsonl").read_text().splitlines()[0])
    assert first["facts"] == {"use": 5, UNHEARD: signal.SIGUSR1}
    run = {"settings": {"stop_signal": int(signal.SIGUSR1)}, "argv": ["python", "-c", code]}
    assert stop_answer(attempt, run) == "none", "no answer is claimed for what was never sent"
    job.close()


def test_one_that_is_gone_and_a_system_without_proc(start: Started, tmp_path: Path) -> None:
    popen, job = start(PLAIN)
    popen.kill()
    popen.wait()
    assert job.ask_by_signal(signal.SIGUSR1), "nobody can tell: nothing is said"
    assert processes.answers(popen.pid, signal.SIGUSR1, str(tmp_path)) is None
    job.close()
