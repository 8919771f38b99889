"""`run --retry` on real processes: again after a death of memory and only then, one run, several attempts, and a truthful state throughout."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Lab, SmallMachine, alive, until

FULL = ("--batch-size", "64", "--accum", "1", "--most-batch", "40")


def job(lab: Lab, *words: str) -> list[str]:
    return ["--", *lab.job("shrinks.py", *words)]


def causes(lab: Lab, name: str) -> list[str | None]:
    shown = json.loads(lab.run("runs", "show", name, "--json").stdout)
    return [attempt["cause"] for attempt in shown["attempts"]]


def attempts(lab: Lab, name: str) -> list[Path]:
    folder = until(lambda: lab.folder_of(name), f"run {name}")
    return sorted(path for path in folder.iterdir() if path.name.isdigit())


@pytest.mark.usefixtures("kernel_limit")
def test_workers_that_do_not_fit_are_fewer_the_next_time(lab: Lab, tmp_path: Path) -> None:
    report = tmp_path / "verdict.json"
    done = lab.run(
        "run", "--name", "big", "--limit", "200M", "--retry", "3", "--report", str(report),
        *job(lab, "--batch-size", "64", "--accum", "1", "--workers", "16"),
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "trained with an effective batch of 64" in done.stdout
    assert "recognised by name" in done.stderr and "the effective batch stays 64" in done.stderr
    assert "\nATTEMPT" in done.stderr, "a table at the end"
    told = json.loads(report.read_text())
    plans = [attempt["plan"]["workers"] for attempt in told["attempts"]]
    assert told["verdict"]["cause"] == "finished" and told["attempt"] == len(plans) > 1
    assert [int(count) for count in plans] == sorted({int(count) for count in plans}, reverse=True)
    assert all(
        attempt["cause"] in ("stopped-by-guard", "oom-kill-memcg") for attempt in told["attempts"][:-1]
    )
    first, last = (lab.read(attempts(lab, "big")[at] / "verdict.json") for at in (0, -1))
    assert first["attempt"] == 1 and last["attempt"] == len(plans), "each has a verdict of its own"
    assert all((folder / "recording.sqlite").exists() for folder in attempts(lab, "big"))
    # what each held counts for its own command, and what was killed is a lower bound
    again = lab.run("runs", "show", "big/1").stdout
    assert "--workers 16" in again and f"1 of {len(plans)}" in again
    assert "--workers 16" in lab.run("why", "big/1").stdout
    assert f"big/{len(plans)}" in lab.run("runs").stdout
    assert lab.run("runs", "rm", "--yes", "big/1").returncode == 2, (
        "one attempt is not removed, and never the run with it"
    )
    assert lab.run("logs", "big/1").stdout.startswith("started with 64 1 16")
    assert lab.run("logs", "big").stdout.startswith(f"started with 64 1 {plans[-1]}")


def test_a_full_card_is_met_with_a_smaller_batch_and_more_accumulation(lab: Lab, tmp_path: Path) -> None:
    ends, data = tmp_path / "ends", tmp_path / "data.txt"
    data.write_text("x" * 5000)
    told = f"echo $OOMPROOF_ALERT_EXIT_STATUS >> {ends}"
    with data.open() as stdin:
        done = lab.run(
            "run", "--name", "card", "--retry", "3", "--on-end", told, *job(lab, *FULL), stdin=stdin
        )
    assert done.returncode == 0 and "trained with an effective batch of 64" in done.stdout, done.stderr
    assert causes(lab, "card") == ["cuda-oom", "finished"]
    assert "--batch-size 64 → 32, --accum 1 → 2 (half" in done.stderr
    assert "read 5000" in done.stdout, "its standard input from the beginning again"
    until(lambda: ends.exists() and ends.read_text(), "the end to be told")
    assert ends.read_text().split() == ["0"], "those who are told hear of one end"


def test_when_nothing_is_left_the_last_status_counts(lab: Lab) -> None:
    never = (*FULL, "--most-batch", "0")
    done = lab.run("run", "--name", "never", "--retry", "1", *job(lab, *never), stdin=subprocess.DEVNULL)
    assert done.returncode == 1 and "not tried again: it was tried again once" in done.stderr
    assert lab.run("wait", "never").returncode == 1
    coded = lab.run(
        "run", "--retry", "1", "--oom-exit-code", "77", *job(lab, *never), stdin=subprocess.DEVNULL
    )
    assert coded.returncode == 77


@pytest.mark.parametrize("fails", ["nan", "assert", "import"])
def test_what_is_not_memory_is_not_tried_again(lab: Lab, fails: str) -> None:
    done = lab.run("run", "--name", "once", "--retry", "3", *job(lab, *FULL, "--fails", fails))
    assert done.returncode == 1 and "not tried again: it did not run out of memory" in done.stderr
    assert len(attempts(lab, "once")) == 1


@pytest.mark.parametrize("how", ["ctrl-c", "stop"])
def test_what_a_person_ended_is_not_tried_again(lab: Lab, how: str) -> None:
    running = lab.start("mine", "--retry", "3", *job(lab, *FULL, "--fails", "wait"), stderr=subprocess.PIPE)
    running.output_has("started")
    if how == "stop":
        assert lab.run("stop", "--now", "mine").returncode == 0
    else:
        running.process.send_signal(signal.SIGINT)
    assert running.wait() != 0
    assert len(attempts(lab, "mine")) == 1
    assert running.process.stderr is not None and "attempt 2" not in running.process.stderr.read()


def is_between(lab: Lab, name: str) -> bool:
    """Its second attempt has ended, and the third is waited for, for four seconds."""
    folder = lab.folder_of(name)
    return folder is not None and (folder / "waiting.json").exists() and (folder / "2" / "exit.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("when", ["it runs", "between"])
def test_a_terminal_closed_on_the_way_ends_no_attempt(lab: Lab, when: str) -> None:
    """An ssh that breaks at night, a death of memory an hour later, and a second attempt that prints."""
    pid, master = pty.fork()
    if pid == 0:
        slowly = ("--workers", "1", "--each", "1", "--seconds", "2") if when == "it runs" else ()
        words = lab.command("run", "--name", "hup", "--retry", "3", *job(lab, *FULL, *slowly))
        os.execvpe(words[0], words, lab.environment)
    folder = until(lambda: lab.folder_of("hup"), "the run")
    first = folder / "1" / ("output.log" if when == "it runs" else "exit.json")
    until(lambda: first.exists() and first.stat().st_size, f"{first.name} of the first attempt")
    os.close(master)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert "trained with an effective batch of 64" in (folder / "2" / "output.log").read_text()


def test_a_front_killed_between_two_attempts_leaves_the_truth(lab: Lab) -> None:
    running = lab.start("cut", "--retry", "3", *job(lab, *FULL, "--most-batch", "0"))
    until(lambda: is_between(lab, "cut"), "it to wait for its next attempt")
    assert "waiting" in lab.run("runs").stdout
    running.process.kill()
    running.process.wait()
    shown = json.loads(lab.run("runs", "show", "cut", "--json").stdout)
    assert shown["run"]["state"] == "ended" and shown["run"]["cause"] == "cuda-oom"
    assert "its oomproof run was killed before it was tried again" in lab.run("runs", "show", "cut").stdout
    why = lab.run("why", "cut").stdout
    assert "out of GPU memory" in why and "killed before it was tried again" in why
    assert lab.run("wait", "cut").returncode == 1, "the status of the attempt that ended"
    assert lab.run("stop", "cut").returncode != 75


def test_a_front_killed_in_its_second_attempt_leaves_the_job(lab: Lab) -> None:
    """The first runs out of GPU memory, the second only waits."""
    command = lab.job("shrinks.py", "--most-batch", "0", "--fails={fails}")
    running = lab.start("lost", "--knob", "fails=,wait", "--retry", "1", "--", *command)
    second = running.folder / "2"
    log = second / "output.log"
    until(lambda: log.exists() and "started" in log.read_text(), "its second attempt to run")
    pid = lab.read(second / "started.json")["job"]["pid"]
    running.process.kill()
    running.process.wait()
    until(lambda: "unguarded" in lab.run("runs").stdout, "the history to say so")
    assert alive(pid) and "--fails=wait" in lab.run("runs", "show", "lost").stdout
    assert lab.run("stop", "--kill", "lost").returncode == 0
    until(lambda: not alive(pid), "it to be gone")
    assert lab.run("wait", "lost").returncode == 137
    assert causes(lab, "lost") == ["cuda-oom", "stopped-by-user"]


def test_detached_it_can_be_followed_waited_for_and_seen(lab: Lab) -> None:
    started = lab.run("run", "--detach", "--name", "away", "--retry", "3", *job(lab, *FULL))
    assert started.returncode == 0, started.stderr
    followed = lab.run("logs", "-f", "away")
    assert followed.stdout.count("started with") == 2, followed.stdout + followed.stderr
    assert "trained with an effective batch of 64" in followed.stdout
    assert lab.run("wait", "away").returncode == 0
    assert causes(lab, "away") == ["cuda-oom", "finished"]


def test_while_it_waits_for_the_next_it_can_be_stopped(lab: Lab) -> None:
    running = lab.start(
        "stopped", "--retry", "3", *job(lab, *FULL, "--most-batch", "0"), stderr=subprocess.PIPE
    )
    until(lambda: is_between(lab, "stopped"), "it to wait for its next attempt")
    stopped = lab.run("stop", "stopped")
    assert stopped.returncode == 0 and "it is not tried again" in stopped.stderr, stopped.stderr
    assert running.wait() == 1, "its last attempt's own status"
    assert (
        running.process.stderr is not None and "not tried again: cancelled" in running.process.stderr.read()
    )
    assert json.loads(lab.run("runs", "show", "stopped", "--json").stdout)["run"]["state"] == "ended"


def test_nothing_to_change_is_said_before_anything_is_started(lab: Lab) -> None:
    for words in (
        ("--", "true"),
        ("--", "python", "t.py", "--batch-size", "8"),
        ("--knob", "x=1,2", "--", "true"),
    ):
        refused = lab.run("run", "--retry", "2", *words)
        assert refused.returncode == 2 and "hint:" in refused.stderr, refused.stderr
    assert lab.run("run", "--knob", "batch=4..1", "--", "true").returncode == 2
    assert not list((lab.state / "oomproof" / "runs").glob("*"))


def test_anothers_growth_changes_nothing_and_is_waited_out(
    lab: Lab, small_machine: SmallMachine, unmanaged: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """A machine of 500 MiB: 200 in training, and a loader of somebody's that takes the rest. The training is stopped for it, waits
    until it has gone, and runs again as it was."""
    machine = small_machine(500 << 20)
    lab.prefix = machine.prefix
    words = ("--floor", "60M", "--margin", "120M", "--grace", "2", "--leave-unmanaged", "--retry", "2")
    command = lab.job("shrinks.py", "--workers", "1", "--each", "200", "--seconds", "6")
    training = lab.start("training", *words, "--", *command, stderr=subprocess.PIPE)
    training.entered()
    training.output_has("started")
    loader = unmanaged(machine, tmp_path / "load_model.py", 60, 400, ("setsid",))
    until(lambda: lab.read(training.attempt / "verdict.json"), "the training to be stopped")
    until(lambda: (training.folder / "waiting.json").exists(), "it to wait for memory")
    assert loader.poll() is None
    loader.kill()
    loader.wait()
    assert training.wait() == 0
    assert training.process.stderr is not None
    said = training.process.stderr.read()
    lab.prefix = []
    assert "attempt 2 of at most 3: unchanged, when there is memory again" in said, said
    second: dict[str, Any] = lab.read(training.folder / "2" / "attempt.json")
    assert second["argv"] == command and not second["change"]
