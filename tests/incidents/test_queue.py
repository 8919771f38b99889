"""Two heavy jobs, one machine: the second waits its turn, by real processes on a small machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Cgroup, Lab, Running, alive, until

MIB = 1 << 20
HOLD = "import sys; x = bytearray(b'x') * (int(sys.argv[1]) << 20); print('holding', flush=True); sys.stdin.read()"


@pytest.fixture
def machine(lab: Lab, small_machine: Callable[[int], Cgroup]) -> Lab:
    """400 MiB, a quarter of it margin: 300 MiB to give away, less what the runs' own processes take."""
    lab.prefix = small_machine(400 * MIB).prefix
    return lab


def hold(lab: Lab, name: str, size: int, *words: str) -> Running:
    """A run that holds until its standard input is closed."""
    return lab.start(name, *words, "--", sys.executable, "-c", HOLD, str(size), stdin_pipe=True)


def let_go(running: Running) -> None:
    assert running.process.stdin is not None
    running.process.stdin.close()


def waits(lab: Lab, name: str) -> bool:
    listed = json.loads(lab.run("runs", "--json").stdout)["runs"]
    return any(one["name"] == name and one["state"] == "waiting" for one in listed)


def said(running: Running) -> str:
    assert running.process.stderr is not None
    return running.process.stderr.read()


def test_the_second_waits_and_starts_by_itself(machine: Lab) -> None:
    first = hold(machine, "first", 60, "--need", "160M")
    first.output_has("holding")
    second = machine.start("second", "--need", "150M", "--", "echo", "ran", stderr=subprocess.PIPE)
    until(lambda: waits(machine, "second"), "the second to wait")
    # what a run holds is told once a second
    until(lambda: "first holds 6" in machine.run("check").stdout, "the first's own word")
    check = machine.run("check", "--need", "150M")
    assert check.returncode == 75
    assert "second waits for 150 MiB" in check.stdout
    ledger = json.loads(machine.run("check", "--json").stdout)
    assert [one["name"] for one in ledger["ledger"]["running"]] == ["first"]
    assert ledger["budget"]["reserved_bytes"] == sum(
        one["reserved_bytes"] for one in ledger["ledger"]["running"]
    )
    assert first.process.poll() is None
    let_go(first)
    assert first.wait() == 0 and second.wait() == 0
    second.output_has("ran")
    text = said(second)
    assert (
        "waits: needs 150 MiB" in text and "in the way: first holds" in text and "starts now, after" in text
    )


def test_what_is_promised_counts_before_it_is_held(machine: Lab) -> None:
    """The first holds almost nothing yet: a look at free memory alone would let the second in."""
    first = hold(machine, "first", 1, "--need", "200M")
    first.output_has("holding")
    refused = machine.run("run", "--need", "120M", "--no-wait", "--", "true")
    assert refused.returncode == 75
    assert "reserved for running jobs: short by" in refused.stderr
    assert machine.run("run", "--need", "30M", "--no-wait", "--", "true").returncode == 0
    let_go(first)
    assert first.wait() == 0
    assert machine.run("run", "--need", "120M", "--no-wait", "--", "true").returncode == 0


PHASES = """
import time, oomproof
seen = False
for name in ("train", "eval", "train"):
    with oomproof.phase(name):
        held = bytearray(b"x") * ((120 if name == "eval" else 40) << 20)
        time.sleep(2.5)
        print("second train" if name == "train" and seen else name, flush=True)
        if name == "eval" or seen:
            input()
    held, seen = None, True
"""


def test_a_run_of_unknown_need_keeps_room_for_its_next_eval(machine: Lab) -> None:
    job = machine.start("phases", "--", sys.executable, "-c", PHASES, stdin_pipe=True)
    assert job.process.stdin is not None

    def told(key: str) -> int:
        running = json.loads(machine.run("check", "--json").stdout)["ledger"]["running"]
        return int(running[0][key] or 0) if running else 0

    job.output_has("eval")
    until(lambda: told("held_bytes") > 120 * MIB, "the guard to have seen the eval")
    job.process.stdin.write("\n")
    job.process.stdin.flush()
    job.output_has("second train")
    until(
        lambda: 70 * MIB < told("reserved_bytes") < 100 * MIB,
        "the eval's 80 MiB above the training to be promised",
    )
    refused = machine.run("run", "--need", "210M", "--no-wait", "--", "true")
    assert refused.returncode == 75 and "reserved for running jobs" in refused.stderr
    job.process.stdin.write("\n")
    job.process.stdin.close()
    assert job.wait() == 0
    assert machine.run("run", "--need", "210M", "--no-wait", "--", "true").returncode == 0


def test_check_says_who_is_paused(machine: Lab) -> None:
    first = hold(machine, "first", 60)
    first.output_has("holding")
    # one that reserved nothing is in the ledger once it has lasted a moment
    until(lambda: "first holds" in machine.run("check").stdout, "the first's own word")
    assert machine.run("pause", "first").returncode == 0
    assert "first (paused) holds" in machine.run("check").stdout
    assert json.loads(machine.run("check", "--json").stdout)["ledger"]["running"][0]["paused"] is True
    assert machine.run("resume", "first").returncode == 0
    assert "(paused)" not in machine.run("check").stdout
    let_go(first)
    assert first.wait() == 0


def test_never_is_said_at_once(machine: Lab) -> None:
    refused = machine.run("run", "--need", "350M", "--", "true")
    assert refused.returncode == 69
    assert "never fits, short by" in refused.stderr
    assert machine.run("runs", "--json").stdout.count('"id"') == 0


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_giving_up_leaves_nothing_behind(machine: Lab, number: signal.Signals, status: int) -> None:
    first = hold(machine, "first", 1, "--need", "200M")
    first.output_has("holding")
    second = machine.start("second", "--need", "150M", "--", "true")
    until(lambda: waits(machine, "second"), "the second to wait")
    second.process.send_signal(number)
    assert second.wait() == status
    assert machine.folder_of("second") is None
    ledger = json.loads(machine.run("check", "--json").stdout)["ledger"]
    assert ledger["waiting"] == [] and [one["name"] for one in ledger["running"]] == ["first"]
    let_go(first)
    assert first.wait() == 0, "the one that runs is not touched"


def test_a_waiting_run_that_was_killed_is_forgotten(machine: Lab) -> None:
    first = hold(machine, "first", 1, "--need", "200M")
    first.output_has("holding")
    dead = machine.start("dead", "--need", "150M", "--", "true")
    until(lambda: waits(machine, "dead"), "it to wait")
    dead.process.kill()
    dead.wait()
    third = machine.start("third", "--need", "150M", "--", "true")
    until(lambda: waits(machine, "third"), "the next to wait")
    assert machine.folder_of("dead") is None
    waiting = json.loads(machine.run("check", "--json").stdout)["ledger"]["waiting"]
    assert [one["name"] for one in waiting] == ["third"]
    let_go(first)
    assert first.wait() == 0 and third.wait() == 0


def test_the_reservation_outlives_a_killed_front_and_ends_with_the_job(machine: Lab) -> None:
    first = hold(machine, "first", 1, "--need", "200M")
    first.output_has("holding")
    started = first.started()
    until(
        lambda: json.loads(machine.run("check", "--json").stdout)["ledger"]["running"],
        "it to stand in the ledger",
    )
    first.process.kill()
    first.process.wait()
    assert alive(started["job"]["pid"])
    assert machine.run("run", "--need", "150M", "--no-wait", "--", "true").returncode == 75
    os.kill(started["job"]["pid"], signal.SIGKILL)
    until(lambda: not alive(started["keeper"]["pid"]), "the keeper to end")
    assert machine.run("run", "--need", "150M", "--no-wait", "--", "true").returncode == 0


def test_waiting_in_the_background_and_being_stopped(machine: Lab) -> None:
    first = hold(machine, "first", 1, "--need", "200M")
    first.output_has("holding")
    away = machine.run("run", "--detach", "--name", "away", "--need", "150M", "--", "true")
    assert away.returncode == 0 and "waiting in the background: needs 150 MiB" in away.stderr
    assert waits(machine, "away")
    also = machine.run("run", "--detach", "--name", "also", "--need", "140M", "--", "sh", "-c", "exit 5")
    assert also.returncode == 0
    stopped = machine.run("stop", "away")
    assert stopped.returncode == 0 and "never started" in stopped.stderr
    assert not waits(machine, "away") and waits(machine, "also")
    let_go(first)
    assert first.wait() == 0
    assert machine.run("wait", "also").returncode == 5


def test_wait_max_and_not_before(machine: Lab) -> None:
    first = hold(machine, "first", 1, "--need", "200M")
    first.output_has("holding")
    late = machine.run("run", "--need", "150M", "--wait-max", "1s", "--", "true")
    assert late.returncode == 75 and "\noomproof: still not enough memory after 1.0 s" in late.stderr
    assert "\noomproof: needs 150 MiB" in late.stderr.partition("still not")[2]
    # each line is told by us, or belongs to the one above it
    assert all(line.startswith(("oomproof: ", "  ")) for line in late.stderr.splitlines()), late.stderr
    assert machine.run("run", "--not-before", "2199-01-01T00:00", "--no-wait", "--", "true").returncode == 75
    assert machine.run("run", "--not-before", "2001-01-01T00:00", "--", "true").returncode == 0
    let_go(first)
    assert first.wait() == 0


def test_priority_goes_first_and_a_small_one_is_let_past(machine: Lab) -> None:
    first = hold(machine, "first", 1, "--need", "200M")
    first.output_has("holding")
    order = machine.state.parent / "order"
    plain = machine.start("plain", "--need", "150M", "--", "sh", "-c", f"echo plain >> {order}; sleep 0.1")
    until(lambda: waits(machine, "plain"), "it to wait")
    urgent = machine.start(
        "urgent", "--need", "151M", "--priority", "5", "--", "sh", "-c", f"echo urgent >> {order}; sleep 0.1"
    )
    until(lambda: waits(machine, "urgent"), "it to wait")
    # whoever of them starts first finds 100 MiB more than it needs: ten are in nobody's way
    small = machine.run("run", "--need", "10M", "--", "sh", "-c", f"echo small >> {order}")
    assert small.returncode == 0, small.stderr
    let_go(first)
    assert first.wait() == 0 and urgent.wait() == 0 and plain.wait() == 0
    assert order.read_text().split() == ["small", "urgent", "plain"]


def test_the_peak_of_one_run_is_the_need_of_the_next(machine: Lab) -> None:
    command = ["--", *machine.job("hold_for.py", 100, 3)]
    first = machine.run("run", "-v", *command)
    assert first.returncode == 0 and "need unknown: starts at once" in first.stderr
    again = machine.run("run", "-v", *command)
    assert again.returncode == 0 and "reserved 10" in again.stderr and "in its last run" in again.stderr
    other = machine.run("run", "-v", "--", *machine.job("hold_for.py", 90, 0))
    assert "need unknown" in other.stderr


def test_a_killed_attempt_only_raises_the_lower_bound(machine: Lab, tmp_path: Path) -> None:
    job = machine.job("hold_for.py", 100, 600)
    running = machine.start("shot", "--", *job)
    running.output_has("holding")
    csv = lambda: machine.run("runs", "export", "--csv", "shot").stdout.count("\n") > 3  # noqa: E731
    until(csv, "samples of what it holds")
    os.kill(running.job_pid, signal.SIGKILL)
    assert running.wait() == 137
    again = machine.start("again", "-v", "--", *job, stderr=subprocess.PIPE)
    again.output_has("holding")
    again.process.send_signal(signal.SIGTERM)
    again.wait()
    assert "at least: what it held in a run that ended early" in said(again)


def test_a_lost_ledger_is_rebuilt_from_what_runs(machine: Lab) -> None:
    first = hold(machine, "first", 1, "--need", "200M")
    first.output_has("holding")
    file = until(lambda: next((machine.state / "oomproof").glob("ledger-*.sqlite"), None), "the ledger")
    until(
        lambda: json.loads(machine.run("check", "--json").stdout)["ledger"]["running"],
        "it to stand in the ledger",
    )
    for part in (machine.state / "oomproof").glob("ledger-*.sqlite*"):
        part.unlink()
    file.write_bytes(b"rubbish" * 5000)
    refused = machine.run("run", "--need", "150M", "--no-wait", "--", "true")
    assert refused.returncode == 75, "the run of now still has its reservation"
    shown = machine.run("check")
    assert len(list((machine.state / "oomproof").glob("*.kept"))) == 1 and "first holds" in shown.stdout
    let_go(first)
    assert first.wait() == 0


def test_a_stranger_who_grows_is_left_his_room(lab: Lab, small_machine: Callable[[int], Cgroup]) -> None:
    """60 MiB a second by a process that is no run: what fits at this moment will not fit in ten seconds."""
    lab.prefix = small_machine(2048 * MIB).prefix
    ask = ["run", "--need", "900M", "--no-wait", "--", "true"]

    def beside(rate: int, total: int, line: bytes) -> subprocess.CompletedProcess[str]:
        unmanaged = subprocess.Popen(
            [*lab.prefix, *lab.job("grow.py", rate, total)], stdout=subprocess.PIPE, env=lab.environment
        )
        try:
            assert unmanaged.stdout is not None
            while unmanaged.stdout.readline() != line:
                pass
            asked = lab.run(*ask)
            assert unmanaged.poll() is None, "a stranger is never touched"
            return asked
        finally:
            unmanaged.kill()
            unmanaged.wait()

    grows = beside(60, 1100, b"growing\n")
    assert grows.returncode == 75, grows.stderr
    sits = beside(1000, 400, b"ready\n")
    assert sits.returncode == 0, sits.stderr
