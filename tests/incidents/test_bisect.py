"""Elimination runs: real experiments, real deaths at a limit, and the factor they follow."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Lab, alive, until


@pytest.mark.usefixtures("kernel_limit")
def test_the_death_follows_the_batch_size_and_not_the_accumulation(lab: Lab) -> None:
    words = [
        "--limit", "120M", "--grace", "1", "--vary", "bs=64,16,8", "--vary", "accum=4,1",
        "--env", "OMP_NUM_THREADS=1", "--", *lab.job("batches.py", "--bs", "{bs}", "--accum", "{accum}"),
    ]  # fmt: skip
    done = lab.run("bisect", "--json", *words)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["follows"] == ["bs"]
    assert answer["sentence"] == (
        "it dies with bs=64 whatever accum and OMP_NUM_THREADS are; it lives with bs=16 and less: bs is what it follows"
    )
    ends = {tuple(e["values"].values()): e["outcome"] for e in answer["experiments"]}
    assert ends == {
        ("64", "4", "unset"): "died",
        ("16", "4", "unset"): "lived",
        ("8", "4", "unset"): "lived",
        ("64", "1", "unset"): "died",
        ("64", "4", "1"): "died",
    }
    for experiment in answer["experiments"]:  # the table, the verdict and the recording agree
        verdict = lab.verdict(experiment["name"])["verdict"]
        assert verdict["cause"] == experiment["cause"]
        if experiment["outcome"] == "died":
            assert verdict["cause"] in ("oom-kill-memcg", "stopped-by-guard")
        else:
            assert verdict["cause"] == "finished"
            held = int(experiment["values"]["bs"]) * 4 << 20
            assert held <= experiment["peak_bytes"] < held + (32 << 20)
    assert done.stderr.count("oomproof: experiment ") == 2 * len(ends), "a line as each begins and ends"

    again = lab.run("bisect", "--resume", *words)
    assert again.returncode == 0
    assert "bs is what" in again.stdout and again.stderr.count("taken from") == len(ends)
    assert len(list((lab.state / "oomproof" / "runs").iterdir())) == len(ends), "nothing was run twice"


def test_another_failure_is_no_death_and_time_over_is_no_failure(lab: Lab, tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "if sys.argv[1] == 'wrong': sys.exit(2)\n"
        "print('got', sys.argv[1:], os.environ.get('COLOUR'), flush=True)\n"
        "if sys.argv[1] != 'brief': time.sleep(600)\n"
    )
    odd = 'it\'s "a" {b} $HOME'
    done = lab.run(
        "bisect", "--json", "--max-time", "1s", "--vary", f"what={odd},brief,wrong", "--env", "COLOUR=red",
        "--", sys.executable, "-c", code, "{what}",
    )  # fmt: skip
    assert done.returncode == 1, "nothing died, so nothing is followed"
    answer = json.loads(done.stdout)
    by_value = {tuple(e["values"].values()): e for e in answer["experiments"]}
    assert by_value[(odd, "unset")]["outcome"] == "lived" and by_value[(odd, "unset")]["timed_out"]
    assert by_value[("brief", "unset")]["outcome"] == "lived"
    assert not by_value[("brief", "unset")]["timed_out"]
    assert by_value[("wrong", "unset")]["outcome"] == "failed"
    assert any(note.startswith("does not count: what=wrong") for note in answer["notes"])
    assert output_of(lab, by_value[(odd, "unset")]) == f"got {[odd]} None"
    assert output_of(lab, by_value[(odd, "red")]) == f"got {[odd]} red"


def output_of(lab: Lab, experiment: dict[str, Any]) -> str:
    return (lab.state / "oomproof" / "runs" / experiment["run"] / "1" / "output.log").read_text().strip()


def test_ctrl_c_ends_the_job_in_order_and_tells_what_is_known(lab: Lab) -> None:
    code = "import sys, time\nif sys.argv[1] == 'long': time.sleep(600)\n"
    bisect = subprocess.Popen(
        lab.command("bisect", "--vary", "what=brief,long", "--", sys.executable, "-c", code, "{what}"),
        env=lab.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # an earlier test may ignore it
    )
    try:
        job = until(lambda: second_job(lab), "the second experiment to run")
        bisect.send_signal(signal.SIGINT)
        stdout, stderr = bisect.communicate(timeout=60)
    finally:
        bisect.kill()
    assert bisect.returncode == 130
    assert not alive(job["pid"], job["start"])
    assert "brief  lived    finished" in stdout and "nothing else could be compared" in stdout
    assert "--resume continues" in stderr and "Traceback" not in stderr


def second_job(lab: Lab) -> dict[str, Any] | None:
    for run in (lab.state / "oomproof" / "runs").glob("*"):
        if str(lab.read(run / "run.json").get("name")).startswith("bisect:what=long"):
            return lab.read(run / "1" / "started.json").get("job")
    return None


def test_a_command_that_is_not_there_is_told_once(lab: Lab) -> None:
    done = lab.run("bisect", "--vary", "a=1,2", "--", "nosuchprogram", "{a}")
    assert done.returncode == 127
    assert done.stderr.count("command not found") == 1 and "Traceback" not in done.stderr
