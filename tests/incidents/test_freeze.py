"""I0 on a small scale: pause instead of kill. Each story checks who lived, what was said, and what must not happen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import DEADLINE, Cgroup, Lab, Running, alive, until

from oomproof.recording import run_folders, state_files

PYTHON = sys.executable
SHORT = ("--floor", "60M", "--margin", "120M", "--grace", "2")
SmallMachine = Callable[[int], Cgroup]


def actions(running: Running) -> list[str]:
    return [line["action"] for line in state_files.read_lines(running.attempt / "actions.jsonl")]


def events(running: Running) -> list[dict[str, Any]]:
    return state_files.read_lines(running.attempt / "keeper.jsonl")


def printed(running: Running) -> str:
    log = running.attempt / "output.log"
    return log.read_text(errors="replace") if log.exists() else ""


def is_paused(running: Running) -> bool:
    return run_folders.Run(running.folder).state() == "paused"


def said(running: Running) -> str:
    path = running.attempt / "memory_alerts.log"
    return path.read_text() if path.exists() else ""


def stands_still(running: Running) -> bool:
    """Nothing was printed for a while: the job prints every 50 ms. What it had printed before may come a little later."""
    end = time.monotonic() + 20
    before = printed(running)
    while time.monotonic() < end:
        time.sleep(0.5)
        if before and printed(running) == before:
            return True
        before = printed(running)
    return False


def test_both_finish_and_nobody_dies(lab: Lab, small_machine: SmallMachine, tmp_path: Path) -> None:
    """A machine of 600 MiB: 250 in training, and a loader that wants 300 more."""
    lab.prefix = small_machine(600 << 20).prefix
    training = lab.start("training", *SHORT, "--", *lab.job("train_loop.py", 250, tmp_path / "enough"))
    training.output_has("step 1")
    loader = lab.start("loader", *SHORT, "--", *lab.job("loader.py", 80, 300, 0))
    until(lambda: is_paused(loader), "the loader to be paused")
    assert "paused" in lab.run("runs").stdout
    assert alive(training.job_pid) and alive(loader.job_pid)
    (tmp_path / "enough").touch()
    assert (training.wait(), loader.wait()) == (0, 0)
    assert "intact" in printed(training) and "intact" in printed(loader), "every byte as it was"
    assert actions(loader).count("pause") >= 1 and actions(loader).count("pause") == actions(loader).count(
        "resume"
    )
    assert not {"request", "term", "kill"} & {*actions(loader), *actions(training)}
    assert "pause" not in actions(training), "the old one is never touched"
    for one in (training, loader):
        assert one.verdict()["verdict"]["cause"] == "finished"
    told = said(loader)
    assert "paused: " in told and "another run continues" in told and "at the latest" in told
    assert "only its growth is stopped" in told and "oomproof resume loader" in told
    assert "resumed: " in told and "available again" in told
    shown = lab.run("runs", "show", "loader").stdout
    assert "paused: " in shown and "resumed: " in shown


def test_a_lone_growing_job_is_not_paused(lab: Lab, small_machine: SmallMachine) -> None:
    lab.prefix = small_machine(400 << 20).prefix
    lone = lab.start("lone", *SHORT, "--", *lab.job("grow.py", 60, 2000))
    assert lone.wait() == 128 + signal.SIGTERM
    assert "pause" not in actions(lone)
    assert lone.verdict()["verdict"]["cause"] == "stopped-by-guard"


def test_deadlock_goes_on_down_the_ladder(lab: Lab, small_machine: SmallMachine) -> None:
    """The paused loader holds what the training needs: it is ended after all, and the training finishes."""
    lab.prefix = small_machine(700 << 20).prefix
    wide = ("--floor", "120M", "--margin", "160M", "--grace", "2")  # time to act, also on a busy machine
    old = lab.start("old", *wide, "--", *lab.job("grow.py", 15, 300))
    old.output_has("growing")
    new = lab.start("new", *wide, "--", *lab.job("loader.py", 60, 900, 0))
    assert new.wait() == 128 + signal.SIGTERM
    taken = actions(new)
    assert taken.index("pause") < taken.index("term"), taken
    assert new.verdict()["verdict"]["cause"] == "stopped-by-guard"
    assert "pausing it did not help" in said(new)
    old.output_has("ready")
    assert alive(old.job_pid)
    lab.prefix = []
    assert lab.run("stop", "old").returncode == 0
    assert old.wait() == 0


def test_a_pause_has_an_end(lab: Lab, small_machine: SmallMachine) -> None:
    """After --pause-max the ladder goes on; the old one stays."""
    lab.prefix = small_machine(600 << 20).prefix
    old = lab.start("old", *SHORT, "--", *lab.job("grow.py", 300, 250))
    old.output_has("ready")
    new = lab.start("new", *SHORT, "--pause-max", "6", "--", *lab.job("loader.py", 60, 900, 0))
    assert new.wait() == 128 + signal.SIGTERM
    taken = actions(new)
    assert [one for one in taken if one in ("pause", "resume", "term")] == ["pause", "resume", "term"], taken
    assert "the longest it may be" in said(new)
    assert alive(old.job_pid)
    lab.prefix = []
    lab.run("stop", "old")
    assert old.wait() == 0


def test_a_protected_run_is_not_paused(lab: Lab, small_machine: SmallMachine, tmp_path: Path) -> None:
    lab.prefix = small_machine(600 << 20).prefix
    young = lab.start(
        "precious", *SHORT, "--protect", "--", *lab.job("train_loop.py", 250, tmp_path / "enough")
    )
    young.output_has("step 1")
    other = lab.start("other", *SHORT, "--", *lab.job("loader.py", 80, 300, 0))
    until(lambda: is_paused(other), "the unprotected one to be paused")
    (tmp_path / "enough").touch()
    assert (young.wait(), other.wait()) == (0, 0)
    assert not {"pause", "request", "term", "kill"} & set(actions(young))


@pytest.mark.parametrize("options", [[], ["--watch-only"]], ids=["best backend", "signals only"])
def test_by_hand(lab: Lab, options: list[str]) -> None:
    running = lab.start("counting", *options, "--", *lab.job("counter.py"))
    for name in ("main 3", "a 3", "b 3"):
        running.output_has(name)
    done = lab.run("pause", "counting")
    assert done.returncode == 0, done.stderr
    assert "is paused" in done.stderr and "of memory: there is no disk swap" in done.stderr
    assert ("SIGSTOP" in done.stderr) == bool(options)
    assert stands_still(running)
    assert "paused" in lab.run("runs").stdout
    assert lab.run("pause", "counting").returncode == 0, "twice is harmless"
    time.sleep(2.5)
    assert stands_still(running), "the guard leaves it to the user"
    before = printed(running)
    done = lab.run("resume", "counting")
    assert done.returncode == 0 and "resumed" in done.stderr
    until(lambda: len(printed(running)) > len(before) + 100, "it to go on")
    assert is_paused(running) is False
    assert "is not paused" in lab.run("resume", "counting").stderr
    lab.run("stop", "--grace", "1", "counting")
    assert running.wait() == 128 + signal.SIGTERM
    assert running.verdict()["verdict"]["cause"] == "stopped-by-user"


def test_errors_say_the_cure(lab: Lab) -> None:
    lab.run("run", "--name", "over", "--", "true")
    for verb in ("pause", "resume"):
        done = lab.run(verb, "over")
        assert done.returncode != 0 and "not running" in done.stderr and "oomproof runs" in done.stderr
        assert "no run is called" in lab.run(verb, "nobody").stderr


@pytest.mark.parametrize("options", [[], ["--watch-only"]], ids=["best backend", "signals only"])
@pytest.mark.parametrize("how", ["stop", "kill", "signal"])
def test_a_frozen_job_can_be_ended(lab: Lab, options: list[str], how: str) -> None:
    running = lab.start("frozen", *options, "--", *lab.job("counter.py"))
    running.output_has("b 3")
    pid = running.job_pid
    lab.run("pause", "frozen")
    assert stands_still(running)
    if how == "stop":
        assert lab.run("stop", "--grace", "0.5", "frozen").returncode == 0
    elif how == "kill":
        assert lab.run("stop", "--kill", "frozen").returncode == 0
    else:
        running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 128 + (signal.SIGKILL if how == "kill" else signal.SIGTERM)
    assert not alive(pid)
    assert not (running.attempt / "paused.json").exists()


def test_a_guard_that_dies_leaves_no_frozen_job(lab: Lab, small_machine: SmallMachine) -> None:
    """Nobody would let it go on any more: the keeper does, and says so."""
    lab.prefix = small_machine(620 << 20).prefix
    wide = ("--floor", "100M", "--margin", "120M", "--grace", "2")
    old = lab.start("old", *wide, "--", *lab.job("train_loop.py", 250, 600))
    old.output_has("step 1")
    new = lab.start("new", *wide, "--", *lab.job("loader.py", 60, 240, 0))
    until(lambda: is_paused(new), "the loader to be paused")
    new.process.kill()
    new.process.wait()
    kinds = until(
        lambda: (found := [one["event"] for one in events(new)]) and "resume" in found and found, "the keeper"
    )
    assert kinds.index("guard-lost") < kinds.index("resume")
    until(lambda: lab.read(new.attempt / "exit.json"), "the job to finish by itself")
    assert "intact" in printed(new)
    lab.prefix = []
    assert alive(old.job_pid)
    lab.run("stop", "--now", "old")
    assert old.wait() == 128 + signal.SIGTERM


def test_frozen_by_hand_outlives_the_guard_and_watch_takes_it_up(lab: Lab) -> None:
    running = lab.start("mine", "--", *lab.job("counter.py"))
    running.output_has("a 3")
    lab.run("pause", "mine")
    running.process.kill()
    running.process.wait()
    until(lambda: [one for one in events(running) if one["event"] == "guard-lost"], "the keeper to notice")
    assert stands_still(running), "the user froze it, the user thaws it"
    watching = subprocess.Popen(
        lab.command("watch", "mine"), env=lab.environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    until(lambda: is_paused(running), "the new guard to hold it")
    assert stands_still(running)
    before = printed(running)
    assert lab.run("resume", "mine").returncode == 0
    until(lambda: len(printed(running)) > len(before), "it to go on")
    lab.run("stop", "--grace", "1", "mine")
    watching.communicate(timeout=DEADLINE)
    assert watching.returncode == 128 + signal.SIGTERM


def test_a_second_guard_that_dies_leaves_no_frozen_job_either(lab: Lab, small_machine: SmallMachine) -> None:
    """`oomproof watch` has no line to the keeper: its lock tells."""
    lab.prefix = small_machine(600 << 20).prefix
    old = lab.start("old", *SHORT, "--", *lab.job("grow.py", 300, 250))
    old.output_has("ready")
    new = lab.start("new", *SHORT, "--", *lab.job("counter.py"))
    new.output_has("a 3")
    new.process.kill()
    new.process.wait()
    until(lambda: "unguarded" in lab.run("runs").stdout, "the history to say so")
    watching = subprocess.Popen(lab.command("watch", "new"), env=lab.environment, stderr=subprocess.DEVNULL)
    until(lambda: run_folders.Run(new.folder).guard_lives(), "the new guard")
    # as its guard would have left it: paused, with its mark
    backend = new.started()["backend"]
    (new.attempt / "paused.json").write_text('{"by": "guard"}')
    Path(backend["freezer"]).write_text("1" if backend["freezer"].endswith("cgroup.freeze") else "FROZEN")
    assert stands_still(new)
    watching.kill()
    watching.wait()
    until(lambda: [one for one in events(new) if one["event"] == "resume"], "the keeper to let it go on")
    before = printed(new)
    until(lambda: printed(new) != before, "it to go on")
    lab.prefix = []
    for name in ("new", "old"):
        lab.run("stop", "--grace", "1", name)
    old.wait()


def test_the_newest_goes_first_should_it_come_to_the_kernel(lab: Lab) -> None:
    """oom_score_adj by age: alone unchanged, then 300 and 100 more a run; children inherit it; a protected run has none."""
    usual = int(Path("/proc/self/oom_score_adj").read_text())
    started: list[Running] = []
    for name, options, more in (
        ("one", [], 0),
        ("two", [], 300),
        ("safe", ["--protect"], 0),
        ("four", [], 500),
    ):
        running = lab.start(name, *options, "--", *lab.job("counter.py"))
        running.entered()  # the next one counts the runs that are older
        started.append(running)
        children = Path(f"/proc/{running.job_pid}/task/{running.job_pid}/children")
        until(lambda c=children: len(c.read_text().split()) == 2, "both children")
        pids = [running.job_pid, *map(int, children.read_text().split())]
        for pid in pids:
            assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) == min(1000, usual + more), name
        assert int(Path(f"/proc/{running.process.pid}/oom_score_adj").read_text()) == usual, "not the guard"
    for running in started:
        running.process.send_signal(signal.SIGTERM)
    for running in started:
        running.wait()


def test_stopping_a_crowd_that_forks(lab: Lab) -> None:
    """The last action: signals only, and processes that come and go while they are counted."""
    job = (
        "import os, sys, time\n"
        "for _ in range(20):\n"
        "    if os.fork() == 0:\n"
        "        while True:\n"
        "            pid = os.fork()\n"
        "            if pid == 0:\n"
        "                time.sleep(0.002); os._exit(0)\n"
        "            os.waitpid(pid, 0)\n"
        "print('forking', flush=True)\n"
        "time.sleep(600)\n"
    )
    running = lab.start("crowd", "--watch-only", "--", PYTHON, "-c", job)
    running.output_has("forking")
    done = lab.run("pause", "crowd")
    assert "is paused (SIGSTOP)" in done.stderr and "not all" not in done.stderr
    keeper = running.started()["keeper"]["pid"]

    def family() -> dict[int, str]:
        found, queue = {}, [keeper]
        while queue:
            pid = queue.pop()
            for task in Path(f"/proc/{pid}/task").iterdir():
                queue += map(int, (task / "children").read_text().split())
            found[pid] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        del found[keeper]
        return found

    seen = family()
    assert len(seen) >= 21 and set(seen.values()) <= {"T", "D", "Z"}
    time.sleep(0.3)
    assert family() == seen, "nobody came or went"
    assert os.path.exists(running.attempt / "paused.json")
    assert lab.run("stop", "--kill", "crowd").returncode == 0
    assert running.wait() == 137
