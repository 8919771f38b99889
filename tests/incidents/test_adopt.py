"""A process that runs already is taken under watch: recorded, counted, guarded, left alone when asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from conftest import DEADLINE, Cgroup, Lab, alive, until


@pytest.fixture
def job(lab: Lab) -> Iterator[subprocess.Popen[str]]:
    """A job somebody started without oomproof; it holds until its standard input is closed."""
    code = "import sys; x = bytearray(b'x') * (60 << 20); print('ready', flush=True); sys.stdin.read(); sys.exit(7)"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=lab.environment,
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def adopt(lab: Lab, pid: int, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        lab.command("adopt", str(pid), *words), env=lab.environment, stderr=subprocess.PIPE, text=True
    )


def running(lab: Lab) -> list[dict[str, object]]:
    return list(json.loads(lab.run("check", "--json").stdout)["ledger"]["running"])


def test_an_adopted_job_is_recorded_counted_and_its_end_is_told(lab: Lab, job: subprocess.Popen[str]) -> None:
    watching = adopt(lab, job.pid, "--name", "found", "--need", "200M")
    (entry,) = until(lambda: running(lab), "it to stand in the ledger")
    assert entry["name"] == "found" and entry["need_bytes"] == 200 << 20
    assert 60 << 20 < int(str(entry["held_bytes"])) < 120 << 20
    second = lab.run("adopt", str(job.pid))
    assert second.returncode == 2 and "was adopted already, as found" in second.stderr
    assert "it is guarded already; see it: oomproof runs show found" in second.stderr
    assert job.stdin is not None
    job.stdin.close()
    job.wait()
    said = watching.communicate(timeout=DEADLINE)[1]
    # where neither the zombie nor the kernel tells, the status is said to be unknown
    assert watching.returncode == 7 or "cannot be known" in said
    assert "watching pid" in said and not running(lab)
    shown = json.loads(lab.run("runs", "show", "found", "--json").stdout)
    assert shown["run"]["peak_bytes"] > 60 << 20
    folder = lab.folder_of("found")
    assert folder is not None
    run = json.loads((folder / "run.json").read_text())
    assert run["flags"] == {"name": "found", "need": "200M"}, "for the command that starts it again"


def test_resumed_it_is_not_told_to_follow_output_that_is_not_ours(
    lab: Lab, job: subprocess.Popen[str]
) -> None:
    watching = adopt(lab, job.pid, "--name", "found")
    until(lambda: running(lab), "it to stand in the ledger")
    assert lab.run("pause", "found").returncode == 0
    resumed = lab.run("resume", "found")
    assert "found resumed" in resumed.stderr and "logs -f" not in resumed.stderr
    lab.run("stop", "--kill", "found")
    watching.communicate(timeout=DEADLINE)


def test_ctrl_c_leaves_it_running_and_watch_goes_on(lab: Lab, job: subprocess.Popen[str]) -> None:
    watching = adopt(lab, job.pid, "--name", "found")
    until(lambda: running(lab), "it to stand in the ledger")
    watching.send_signal(signal.SIGINT)
    said = watching.communicate(timeout=DEADLINE)[1]
    assert watching.returncode == 0 and "run found: watching pid" in said
    assert "keeps running, unguarded. To guard it again: oomproof watch found" in said
    assert "hint: guard it again: oomproof watch found" in lab.run("adopt", str(job.pid)).stderr
    assert alive(job.pid)
    assert "unguarded" in lab.run("runs").stdout
    again = subprocess.Popen(
        lab.command("watch", "found"), env=lab.environment, stderr=subprocess.PIPE, text=True
    )
    assert again.stderr is not None
    assert "guarding found again" in again.stderr.readline()
    stopped = lab.run("stop", "--now", "found")
    assert stopped.returncode == 0
    job.wait(DEADLINE)
    again.communicate(timeout=DEADLINE)
    assert again.returncode in (143, 125)


def test_in_the_background(lab: Lab, job: subprocess.Popen[str]) -> None:
    away = lab.run("adopt", str(job.pid), "--detach", "--name", "away")
    assert away.returncode == 0 and "watching pid" in away.stderr
    assert "oomproof runs show away" in away.stderr and "logs" not in away.stderr, "its output is not ours"
    told = lab.run("logs", "-f", "away")
    assert told.returncode == 0 and "its output is where it always went" in told.stderr
    until(lambda: running(lab), "it to stand in the ledger")
    assert job.stdin is not None
    job.stdin.close()
    job.wait()
    assert lab.run("wait", "away").returncode in (7, 125)


def test_a_leak_is_asked_by_its_signal(lab: Lab, small_machine: Callable[[int], Cgroup]) -> None:
    """The guard acts by signals on what it did not start; a bystander beside it is not touched."""
    lab.prefix = small_machine(250 << 20).prefix
    bystander = subprocess.Popen([*lab.prefix, "sleep", "600"])
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))\n"
        "held = []\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    held.append(bytearray(b'x') * (1 << 20)); time.sleep(0.05)\n"
    )
    job = subprocess.Popen(
        [*lab.prefix, sys.executable, "-c", code], stdout=subprocess.PIPE, env=lab.environment
    )
    try:
        assert job.stdout is not None
        job.stdout.readline()
        watching = subprocess.run(
            lab.command("adopt", str(job.pid), "--grace", "3", "--stop-signal", "USR1"),
            env=lab.environment,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE,
        )
        assert job.wait(DEADLINE) in (3, -signal.SIGTERM)
        assert "asked the job to save and stop" in watching.stderr or "sent SIGTERM" in watching.stderr
        assert bystander.poll() is None
    finally:
        for process in (job, bystander):
            process.kill()
            process.wait()


def test_what_must_not_be_adopted(lab: Lab) -> None:
    guarded = lab.start("guarded", "--", "sleep", "600")
    started = guarded.started()
    cases = {
        "1": "pid 1 is the machine's own first process",
        str(os.getpid()): "started this very command",
        str(started["job"]["pid"]): "belongs to the run guarded",
        str(started["keeper"]["pid"]): "oomproof's own",
        str(guarded.process.pid): "oomproof's own",
        "-4": "is not a pid",
        "4194305": "there is no process",
    }
    for pid, why in cases.items():
        refused = lab.run("adopt", "--", pid)
        assert refused.returncode in (2, 127) and why in refused.stderr, (pid, refused.stderr)
    assert alive(started["job"]["pid"])
    lab.run("stop", "--kill", "guarded")


def test_another_users_process_is_refused(lab: Lab) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can be two users")
    theirs = subprocess.Popen(["sleep", "600"], user=4001)
    try:
        refused = lab.run("adopt", str(theirs.pid))
        assert refused.returncode == 2 and "belongs to user 4001" in refused.stderr
        assert theirs.poll() is None
    finally:
        theirs.kill()
        theirs.wait()
