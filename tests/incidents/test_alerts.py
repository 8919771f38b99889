"""Alerts of real runs: they reach a receiver, a receiver that hangs delays nothing, nothing secret is written down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Cgroup, Lab, until

sys.path.append(str(Path(__file__).parents[1] / "unit"))
from helpers_alerts import Listener, listening

PYTHON = sys.executable


@pytest.fixture
def receiver() -> Iterator[Listener]:
    with listening() as listener:
        yield listener


def actions(attempt: Path) -> list[str]:
    return [json.loads(line)["action"] for line in (attempt / "actions.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("kernel_limit")
def test_a_receiver_that_never_answers_delays_neither_the_guard_nor_the_end(
    lab: Lab, receiver: Listener, tmp_path: Path
) -> None:
    """A leak under a limit; webhook and command hang from the first alert on. The job is ended by the guard, before the
    kernel would, and `run` returns; who hung is told the end when it answers at last."""
    receiver.go.clear()
    hung = tmp_path / "hung"
    running = lab.start(
        "leak", "--limit", "200M", "--grace", "4", "--alert-webhook", f"{receiver.url}/hidden",
        "--on-alert", f"echo $$ >> {hung}; exec sleep 1000", "--", *lab.job("grow.py", 20, 1000),
    )  # fmt: skip
    status = running.wait()
    assert status in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
    # on a busy machine SIGTERM may be the first of them
    assert actions(running.attempt)[-1] in ("term", "kill"), "it came although the first alert hung"
    verdict = running.verdict()["verdict"]
    assert verdict["cause"] == "stopped-by-guard", verdict
    assert len(receiver.posts) == 1 and receiver.kinds[0] != "end", "it hangs since the first alert"
    assert len(hung.read_text().split()) == 1
    os.kill(int(hung.read_text()), signal.SIGKILL)
    receiver.go.set()
    until(lambda: "end" in receiver.kinds, "the end to be told without oomproof run")
    _, _, end = receiver.posts[-1]
    assert end["level"] == "alert" and end["cause"] == "stopped-by-guard" and end["exit_status"] == status
    until(lambda: len(hung.read_text().split()) == 2, "--on-alert to be told of a death by memory")
    os.kill(int(hung.read_text().split()[1]), signal.SIGKILL)


def test_a_pause_and_its_end_are_told(
    lab: Lab, receiver: Listener, small_machine: Callable[[int], Cgroup], tmp_path: Path
) -> None:
    """I0 on a small scale: the loader's owner, who is elsewhere, learns why it is paused, until when, and how to resume it."""
    lab.prefix = small_machine(600 << 20).prefix
    short = ("--floor", "60M", "--margin", "120M", "--grace", "2")
    training = lab.start("training", *short, "--", *lab.job("train_loop.py", 250, tmp_path / "enough"))
    training.output_has("step 1")
    loader = lab.start(
        "loader", *short, "--alert-webhook", f"slack:{receiver.url}/", "--", *lab.job("loader.py", 80, 300, 0)
    )
    paused = until(lambda: [text for text in told(receiver) if ": paused*" in text], "the pause to be told")[
        0
    ]
    assert (
        paused.startswith("*loader on ")
        and "of RAM available" in paused
        and "another run continues" in paused
    )
    assert (
        "\nnext: " in paused
        and "at the latest" in paused
        and "\nto change it: oomproof resume loader\n" in paused
    )
    (tmp_path / "enough").touch()
    assert (training.wait(), loader.wait()) == (0, 0)
    until(lambda: any(": resumed*" in text for text in told(receiver)), "the resume to be told")


def told(receiver: Listener) -> list[str]:
    return [str(body.get("text")) for _, _, body in receiver.posts]


def test_everybody_is_told_and_nothing_secret_is_kept(lab: Lab, receiver: Listener, tmp_path: Path) -> None:
    """A threshold and an end, to a webhook, mail and commands; a file of the project names a command, which does not count."""
    tools, work = tmp_path / "bin", tmp_path / "work"
    tools.mkdir()
    work.mkdir()
    (tools / "sendmail").write_text(f"#!/bin/sh\ncat >> {tmp_path}/letters\n")
    (tools / "sendmail").chmod(0o755)
    (work / "oomproof.toml").write_text(f'on-end = "touch {tmp_path}/owned"\n')
    lab.environment["PATH"] = f"{tools}:{os.environ['PATH']}"
    lab.environment["OOMPROOF_ALERT_MAIL"] = "hidden@example.org"
    done = lab.run(
        "run", "--name", "big", "--alert-above", "20M", "--alert-webhook", f"{receiver.url}/hidden",
        "--on-alert", f'echo "$OOMPROOF_ALERT_TEXT" > {tmp_path}/alert', "--", PYTHON, "-c",
        f"import os, time; x = bytearray(60 << 20)\nwhile not os.path.exists('{tmp_path}/alert'): time.sleep(0.05)\nos._exit(3)",
        cwd=work,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    until(lambda: receiver.kinds == ["above", "end"], "both messages")
    above, end = (body for _, _, body in receiver.posts)
    assert "above 20 MiB" in above["message"] and "to change it: oomproof stop big" in above["message"]
    assert end["level"] == "news" and end["exit_status"] == 3
    assert "above 20 MiB" in (tmp_path / "alert").read_text()
    letters = until(lambda: (tmp_path / "letters").read_text(), "the letters")
    assert letters.count("To: hidden@example.org") >= 1 and "holds more than --alert-above" in letters
    assert "oomproof.toml, line 1: on_end: commands and receivers count only" in done.stderr
    assert not (tmp_path / "owned").exists()
    hidden = [path for path in lab.state.rglob("*") if path.is_file() and b"hidden" in path.read_bytes()]
    assert not hidden and "hidden" not in done.stderr


def test_a_run_that_loses_its_guard_is_told_of(lab: Lab, receiver: Listener) -> None:
    running = lab.start(
        "lost", "--alert-webhook", f"{receiver.url}/", "--", PYTHON, "-c", "import time; time.sleep(600)"
    )
    running.entered()
    job = running.job_pid
    running.process.kill()
    until(lambda: receiver.posts, "the message")
    assert receiver.kinds == ["unguarded"] and receiver.posts[0][2]["command"] == "oomproof watch lost"
    os.kill(job, signal.SIGKILL)


def test_the_end_of_an_adopted_process(lab: Lab, tmp_path: Path) -> None:
    job = subprocess.Popen(["sleep", "600"])
    try:
        line = f'echo "$OOMPROOF_ALERT_JOB $OOMPROOF_ALERT_KIND" > {tmp_path}/end'
        done = lab.run("adopt", str(job.pid), "--name", "found", "--detach", "--on-end", line)
        assert done.returncode == 0, done.stderr
    finally:
        job.kill()
        job.wait()
    until(lambda: (tmp_path / "end").exists() and (tmp_path / "end").read_text(), "--on-end")
    assert (tmp_path / "end").read_text() == "found end\n"


def test_a_receiver_that_is_not_there_is_told_at_the_end(lab: Lab) -> None:
    done = lab.run("run", "--on-end", "no-such-program", "--", "true")
    assert done.returncode == 0
    assert "alert not delivered: --on-end: exited with code 127" in done.stderr


@pytest.mark.parametrize("value", ["yes"])
def test_the_panic_switch_runs_the_command_alone(lab: Lab, tmp_path: Path, value: str) -> None:
    """Nothing is guarded, recorded or even read: settings that are wrong are not in the way."""
    (tmp_path / "oomproof.toml").write_text("no such setting")
    lab.environment["OOMPROOF_DISABLE"] = value
    code = "import os; print(os.getppid() != 0, 'OOMPROOF_RUN' in os.environ); raise SystemExit(7)"
    done = lab.run("run", "--limit", "1K", "--", PYTHON, "-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (7, "True False\n")
    assert done.stderr == "oomproof: OOMPROOF_DISABLE is set: not guarded, not limited, not recorded\n"
    assert not lab.state.exists()
    assert lab.run("run", "-q", "--", "no-such-program", cwd=tmp_path).returncode == 127
    marker = tmp_path / "marker"
    detached = lab.run("run", "-q", "--detach", "--", "touch", str(marker), cwd=tmp_path)
    assert detached.returncode == 0 and detached.stdout.strip().isdigit() and not detached.stderr
    until(marker.exists, "the command in the background")


def test_the_panic_switch_switched_off(lab: Lab) -> None:
    lab.environment["OOMPROOF_DISABLE"] = "0"
    done = lab.run("run", "--", "true")
    assert done.returncode == 0 and "finished" in done.stderr
