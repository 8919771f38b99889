"""I0 with an unmanaged loader, and its relatives: who filled the machine, growth or size, a container's limit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Lab, Running, SmallMachine, paused_files, until

from oomproof.leaf import proc_files as processes
from oomproof.recording import state_files
from oomproof.recording.reader import open_recording

SHORT = ("--floor", "60M", "--margin", "120M", "--grace", "2")


def reasons(running: Running) -> list[dict[str, Any]]:
    return state_files.read_lines(running.attempt / "actions.jsonl")


def test_the_loader_is_paused_until_the_training_has_ended(
    lab: Lab, small_machine: SmallMachine, unmanaged: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """A machine of 500 MiB: 200 in training, and a loader nobody manages that would take 400. Both finish."""
    machine = small_machine(500 << 20)
    lab.prefix = machine.prefix
    training = lab.start("training", *SHORT, "--", *lab.job("grow.py", 400, 200), stderr=subprocess.PIPE)
    training.output_has("ready")
    loader = unmanaged(machine, tmp_path / "load_model.py", 40, 400)
    until(lambda: processes.is_stopped(loader.pid), "the loader to be paused")
    until(lambda: paused_files(lab), "the pause to be written down")
    assert training.process.poll() is None
    lab.prefix = []
    assert lab.run("stop", "--now", "training").returncode == 0
    training.wait()
    until(lambda: not processes.is_stopped(loader.pid), "the loader to be resumed when the guard left")
    assert loader.poll() is None and paused_files(lab) == []
    assert training.process.stderr is not None
    told = training.process.stderr.read()
    assert (
        f"paused {Path(sys.executable).name} load_model.py (pid {loader.pid}), which was not started by"
        in told
    )
    assert f"now: oomproof resume {loader.pid}" in told
    assert {"request", "term", "kill", "pause"}.isdisjoint(
        line["action"] for line in reasons(training) if line["by"] == "guard"
    )


def test_the_loader_was_unmanaged(
    lab: Lab, small_machine: SmallMachine, unmanaged: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """A machine of 500 MiB: 200 in training, and a loader nobody manages that takes 40 MiB/s. It leads its session, as a
    server does: then it is not paused."""
    machine = small_machine(500 << 20)
    lab.prefix = machine.prefix
    training = lab.start("training", *SHORT, "--", *lab.job("grow.py", 400, 200))
    training.output_has("ready")
    loader = unmanaged(machine, tmp_path / "load_model.py", 40, 400, ("setsid",))
    training.wait()
    lab.prefix = []
    verdict = training.verdict()
    assert verdict["verdict"]["cause"] == "stopped-by-guard"
    culprit = verdict["culprit"]
    assert (culprit["pid"], culprit["name"]) == (loader.pid, f"{Path(sys.executable).name} load_model.py")
    assert 100 << 20 < culprit["held_bytes"] < 500 << 20 and culprit["bytes_per_second"] > 5 << 20
    named = f"load_model.py (pid {loader.pid})"
    assert any(named in line["why"] for line in reasons(training)), "the guard said so at that moment"
    assert named in verdict["verdict"]["why"] and named in verdict["verdict"]["next"]
    text = lab.run("why", "training").stdout + str(verdict)
    assert "halve" not in text and "half the batch" not in text
    again = verdict["verdict"]["next"]
    assert "oomproof run --name training" in again and "--grace 2 --need" in again
    assert loader.poll() is None, "nobody ended it"


def test_the_loader_was_another_run(lab: Lab, small_machine: SmallMachine) -> None:
    """A machine of 500 MiB: 300 in training, and beside it a run that takes 25 MiB/s. The kernel kills the larger, where the
    newer one is protected: else it ranks before the older."""
    machine = small_machine(500 << 20)
    lab.prefix = machine.prefix
    training = lab.start("training", *SHORT, "--watch-only", "--", *lab.job("grow.py", 400, 300))
    training.output_has("ready")
    recording = training.attempt / "recording.sqlite"
    until(
        lambda: (open_recording(recording).figures().peaks.use or 0) >= 290 << 20, "its size to be recorded"
    )
    loader = lab.start("loader", *SHORT, "--watch-only", "--protect", "--", *lab.job("grow.py", 25, 280))
    training.wait()
    lab.prefix = []
    verdict = training.verdict()
    assert verdict["verdict"]["cause"].startswith("oom-kill"), verdict["verdict"]
    culprit = verdict["culprit"]
    assert (culprit["pid"], culprit["managed"], culprit["run"]) == (loader.job_pid, True, "loader")
    named = f"grow.py of run loader (pid {loader.job_pid}"
    assert named in verdict["verdict"]["why"] and named in verdict["verdict"]["next"]
    assert verdict["remedies"][0]["command"] == "oomproof pause loader"
    assert loader.process.poll() is None, "it lives, and can be paused"
    assert lab.run("stop", "--now", "loader").returncode == 0


def test_in_a_container_the_limit_is_the_machine(
    lab: Lab, small_machine: SmallMachine, unmanaged: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """700 MiB around oomproof; outside it, on the same machine, somebody who holds 300."""
    outside = unmanaged(small_machine(600 << 20), tmp_path / "outsider.py", 600, 300)
    lab.prefix = small_machine(700 << 20).prefix
    checked = lab.run("check").stdout
    assert "of 700 MiB (the limit here" in checked and f"pid {outside.pid}" not in checked
    lone = lab.start("lone", *SHORT, "--", *lab.job("grow.py", 120, 2000))
    assert lone.wait() != 0
    lab.prefix = []
    verdict = lone.verdict()
    assert verdict["verdict"]["cause"] == "stopped-by-guard"
    (host,) = [item["text"] for item in verdict["evidence"] if item["id"] == "sample.host"]
    assert "of 700 MiB available" in host
    for remedy in verdict["remedies"]:
        assert (remedy["saves_bytes"] or 0) <= 700 << 20, remedy
    text = lab.run("why", "lone").stdout
    assert "raise the limit around it (700 MiB" in " ".join(text.split()) and "swap (" not in text
    assert "outsider.py" not in text and "GiB saved" not in text and "free what others held" not in text


def test_the_limit_was_all_that_was_short(lab: Lab, tmp_path: Path) -> None:
    """300 MiB of a limit, with the whole machine free: raise it, far, for it was still growing; which process it was, and in what it
    held most."""
    job = lab.start("capped", "--limit", "300M", "--", *lab.job("grow.py", 60, 2000))
    assert job.wait() != 0
    verdict = job.verdict()
    following = verdict["verdict"]["next"]
    assert "to learn how much it takes: oomproof run --name capped --limit 2400M -- " in following, verdict
    assert following.startswith(("most of it was in held, a list of ", "to learn ")), (
        "the second where no look was had"
    )
    assert "halve" not in following
    told = f"(pid {job.job_pid}) grew from"
    assert told in " ".join(item["text"] for item in verdict["evidence"])
    assert told not in verdict["verdict"]["why"], "it was the only one: what the job held is what it held"


def test_a_program_within_a_line_of_shell(lab: Lab) -> None:
    """Its code is read, and who runs in the shell is no worker of it."""
    code = "x = []\nimport time\nwhile True:\n    x.append(bytearray(1 << 20)); time.sleep(0.01)\n"
    job = lab.start(
        "line", "--limit", "150M", "--grace", "1", "--", "sh", "-c", f"{sys.executable} -c '{code}' | cat"
    )
    assert job.wait() != 0
    verdict = job.verdict()
    following = verdict["verdict"]["next"]
    assert following.endswith("or make the job smaller (stream the data, keep less of it)"), following
    told = str(verdict)
    assert ", worker)" not in told and "<string>" not in told
    shown = lab.run("why", "line").stdout
    assert r"\n    x.append(bytearray" in shown, "the indentation of a program that is typed again"


def test_a_straight_line_is_told_as_growth(lab: Lab) -> None:
    job = lab.start("leak", "--limit", "300M", "--", *lab.job("grow.py", 10, 2000))
    until(lambda: job.process.poll() is not None, "the guard to end the leak", 120)
    verdict = job.verdict()
    growth = verdict["growth"]
    assert growth["kind"] == "growing" and growth["bytes_per_second"] == pytest.approx(10 << 20, rel=0.3)
    assert "without levelling off" in verdict["verdict"]["why"]
    assert "half the batch" not in str(verdict) and "halve" not in str(verdict)
