"""`oomproof guard`: jobs that nobody started with oomproof, in a small machine of their own. Who is paused, who never is,
and who resumes them when the guard is killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Cgroup, Lab, SmallMachine, paused_files, until
from test_culprit import SHORT

from oomproof.guard.host_view import HostView
from oomproof.leaf.proc_files import (
    children,
    command_line,
    descendants,
    is_alive,
    is_stopped,
    name_of,
    start_time,
)
from oomproof.units import format_size

LINES = ("--floor", "60M", "--margin", "120M")
Unmanaged = Callable[..., "subprocess.Popen[bytes]"]


@dataclass
class Guard:
    process: subprocess.Popen[str]
    log: Path

    def said(self, text: str) -> None:
        until(lambda: text in self.log.read_text(), f"the guard to say {text!r}")

    def resumer(self) -> int:
        """Its pid."""
        return int(until(self.resumers, "the resumer")[0])

    def resumers(self) -> list[int]:
        """Beside it only who writes kills down is a child of it."""
        return [
            pid
            for pid in children(self.process.pid)
            if any(word.endswith("resumer.py") for word in command_line(pid))
        ]


@pytest.fixture
def guard(lab: Lab, tmp_path: Path) -> Iterator[Callable[..., Guard]]:
    """Starts `oomproof guard` inside the machine and waits until it guards."""
    guards: list[Guard] = []

    def start(machine: Cgroup, *flags: str) -> Guard:
        log = tmp_path / f"guard-{len(guards)}.log"
        words = [*machine.prefix, *lab.command("guard", *LINES, *flags)]
        with open(log, "w") as file:
            guards.append(Guard(subprocess.Popen(words, env=lab.environment, stderr=file, text=True), log))
        guards[-1].said("guarding this machine")
        return guards[-1]

    yield start
    for guard in guards:
        if guard.process.poll() is None:
            guard.process.terminate()
        guard.process.wait()


@pytest.fixture
def machine(small_machine: SmallMachine) -> Cgroup:
    return small_machine(400 << 20)


def stopped(process: subprocess.Popen[bytes]) -> None:
    until(lambda: is_stopped(process.pid), "the job to be paused")


def runs_again(process: subprocess.Popen[bytes]) -> None:
    until(lambda: not is_stopped(process.pid), "the job to run again")
    assert process.poll() is None


def test_the_job_that_grows_is_paused_until_the_other_has_ended(
    lab: Lab,
    machine: Cgroup,
    guard: Callable[..., Guard],
    unmanaged: Unmanaged,
    tmp_path: Path,
) -> None:
    """Neither of the two was started by us: 150 MiB that stay, and a loader that wants 300."""
    watching = guard(machine)
    steady = unmanaged(machine, tmp_path / "train.py", 300, 150)
    until(lambda: _holds(steady.pid, 150), "the training to hold what it needs")
    loader = unmanaged(machine, tmp_path / "load.py", 40, 300)
    stopped(loader)
    watching.said(f"load.py (pid {loader.pid}), which was not started by oomproof: ")
    assert not is_stopped(steady.pid)
    status = until(
        lambda: json.loads(lab.run("guard", "status", "--json").stdout)["paused"], "the pause to be known"
    )
    assert [job["pid"] for job in status] == [loader.pid] and status[0]["by"] == "oomproof guard"
    assert f"now: oomproof resume {loader.pid}" in lab.run("guard", "status").stdout
    assert steady.stdin is not None
    steady.stdin.close()
    steady.wait()
    runs_again(loader)
    watching.said("resumed ")
    assert paused_files(lab) == []


def test_a_guard_that_is_killed_leaves_nobody_paused(
    lab: Lab,
    machine: Cgroup,
    guard: Callable[..., Guard],
    unmanaged: Unmanaged,
    tmp_path: Path,
) -> None:
    watching = guard(machine)
    loader = unmanaged(machine, tmp_path / "load.py", 40, 375)
    stopped(loader)
    until(lambda: paused_files(lab), "the pause to be written down")
    resumer = watching.resumer()
    watching.process.kill()
    runs_again(loader)
    until(lambda: not is_alive(resumer, None), "the resumer to end")
    assert paused_files(lab) == []
    assert lab.run("guard", "status").returncode == 1, "no guard runs"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[[str], int]]:
    """Starts a real OOM daemon that kills nobody; its pid."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> int:
        words = [shutil.which(name) or pytest.skip(f"{name} is not installed"), "--dryrun"]
        if name == "nohang":  # it has no such mode: nobody is bad enough for it
            text = Path("/etc/nohang/nohang.conf").read_text()
            text = re.sub(r"^min_badness\s*=.*", "min_badness = 1000000", text, flags=re.MULTILINE)
            (tmp_path / "nohang.conf").write_text(text)
            words[1:] = ["--monitor", "--config", str(tmp_path / "nohang.conf")]
        silent = subprocess.DEVNULL
        started.append(subprocess.Popen(words, stdout=silent, stderr=silent))
        until(lambda: name_of(started[-1].pid) == name, "its name")
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("name", "percent"), [("earlyoom", 10), ("nohang", 5)], ids=["earlyoom", "nohang"])
def test_another_guard_that_acts_first_is_named_with_its_threshold(
    lab: Lab, daemon: Callable[[str], int], tmp_path: Path, name: str, percent: int
) -> None:
    pid, host = daemon(name), HostView()
    words, log = lab.command("guard", "--dry-run", "--floor", "60M"), tmp_path / "guard.log"
    with open(log, "w") as file:
        guard = subprocess.Popen(words, env=lab.environment, stderr=file)
    try:
        told = f"{name} (pid {pid}) "
        until(lambda: told in log.read_text(), "the guard to name it")
        below = f"below {format_size(host.mem_total * percent // 100)} available and 10 % of swap"
        (line,) = [line for line in log.read_text().splitlines() if told in line]
        assert below in line and ("acts first" in line) is not host.inside_a_limit
        status = lab.run("guard", "status").stdout
        assert line.removeprefix("oomproof: ") in status
        (entry,) = [
            entry for entry in json.loads(lab.run("guard", "status", "--json").stdout)["oom_daemons"]
            if entry["pid"] == pid
        ]  # fmt: skip
        assert entry["name"] == name and entry["acts_first"]
    finally:
        guard.terminate()
        guard.wait()


def test_whoever_resumes_it_by_hand_is_obeyed(
    lab: Lab,
    machine: Cgroup,
    guard: Callable[..., Guard],
    unmanaged: Unmanaged,
    tmp_path: Path,
) -> None:
    watching = guard(machine)
    loader = unmanaged(machine, tmp_path / "load.py", 40, 350)
    stopped(loader)
    until(lambda: paused_files(lab), "the pause to be written down")
    done = lab.run("resume", str(loader.pid))
    assert done.returncode == 0 and f"(pid {loader.pid}) resumed" in done.stderr
    watching.said("was resumed by hand; it is left alone")
    until(lambda: _holds(loader.pid, 350), "it to take all it wants: nobody pauses it again")
    assert "nothing is paused" in lab.run("resume", "--all").stderr


def _holds(pid: int, mib: int) -> bool:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) >> 10 >= mib


FORKS = """
import os, sys, time
for _ in range(3):
    if os.fork() == 0:
        break
held = []
while True:
    held.append(bytearray(b"x" * (1 << 20)))
    time.sleep(0.1)
"""
THREADS = """
import threading, time
for _ in range(200):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
held = []
while True:
    held.append(bytearray(b"x" * (1 << 20)))
    time.sleep(0.025)
"""


@pytest.mark.parametrize("source", [FORKS, THREADS], ids=["one that forks", "one with 200 threads"])
def test_all_of_a_job_is_paused_and_resumed(
    source: str, lab: Lab, machine: Cgroup, guard: Callable[..., Guard], tmp_path: Path
) -> None:
    guard(machine)
    script = tmp_path / "job.py"
    script.write_text(source)
    job = subprocess.Popen([*machine.prefix, sys.executable, str(script)])
    try:
        pids = [job.pid]
        stopped(job)
        pids += descendants(job.pid)
        until(lambda: all(map(is_stopped, pids)), "all of it to be paused")
        assert lab.run("resume", "--all").returncode == 0
        until(lambda: not any(map(is_stopped, pids)), "all of it to run again")
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        job.wait()


SERVER = """
import socket, sys, time
server = socket.create_server(("127.0.0.1", 0))
held = []
for _ in range(320):
    held.append(bytearray(b"x" * (1 << 20)))
    time.sleep(0.025)
sys.stdin.read()
"""
LOCAL_SERVER = SERVER.replace(
    'socket.create_server(("127.0.0.1", 0))',
    "socket.socket(socket.AF_UNIX); server.bind(sys.argv[1]); server.listen()",
)
PIDS = "import ctypes, os\n"


@pytest.mark.parametrize(
    ("source", "prefix", "reason"),
    [
        (SERVER, (), "it serves TCP port"),
        (LOCAL_SERVER, (), "it serves "),
        (SERVER.replace("server =", "#"), ("setsid",), "it leads its own session"),
        (SERVER.replace("server =", "#"), ("unshare", "--pid", "--fork"), "it runs in a container"),
    ],
    ids=["a server", "a local server", "a session", "a container"],
)
def test_what_others_would_feel_is_only_warned_of(
    source: str,
    prefix: tuple[str, ...],
    reason: str,
    machine: Cgroup,
    guard: Callable[..., Guard],
    tmp_path: Path,
) -> None:
    watching = guard(machine)
    script = tmp_path / "server.py"
    script.write_text(source)
    words = [*machine.prefix, *prefix, sys.executable, str(script), str(tmp_path / "socket")]
    job = subprocess.Popen(words, stdin=subprocess.PIPE)
    try:
        watching.said(f"(not paused: {reason}")
        assert not any(map(is_stopped, [job.pid, *descendants(job.pid)]))
    finally:
        for pid in [*descendants(job.pid), job.pid]:
            os.kill(pid, signal.SIGKILL)
        job.wait()
    assert "paused server" not in watching.log.read_text()


def test_a_dry_run_and_a_protected_job(
    lab: Lab,
    machine: Cgroup,
    guard: Callable[..., Guard],
    unmanaged: Unmanaged,
    tmp_path: Path,
) -> None:
    dry = guard(machine, "--dry-run")
    loader = unmanaged(machine, tmp_path / "load.py", 40, 330)
    dry.said(f"would pause {Path(sys.executable).name} load.py (pid {loader.pid}): ")
    assert not is_stopped(loader.pid) and dry.resumers() == [], "nobody to resume, nobody who resumes"
    second = lab.run("guard")
    assert second.returncode == 125 and f"a guard is running already: pid {dry.process.pid}" in second.stderr
    dry.process.terminate()
    dry.process.wait()
    loader.kill()
    loader.wait()
    watching = guard(machine, "--protect", r"load\.py")
    loader = unmanaged(machine, tmp_path / "load.py", 40, 330)
    watching.said("(not paused: --protect names it)")
    assert not is_stopped(loader.pid)


def test_a_run_leaves_it_to_the_guard_and_takes_over_when_that_is_killed(
    lab: Lab,
    machine: Cgroup,
    guard: Callable[..., Guard],
    unmanaged: Unmanaged,
    tmp_path: Path,
) -> None:
    watching = guard(machine)
    lab.prefix = machine.prefix
    training = lab.start("training", *SHORT, "--", *lab.job("grow.py", 400, 100))
    training.output_has("ready")
    lab.prefix = []
    loader = unmanaged(machine, tmp_path / "load.py", 10, 280)  # with the training too much, without it not
    stopped(loader)
    watching.said(f"load.py (pid {loader.pid}), which was not started by oomproof: ")
    start = start_time(loader.pid)
    watching.process.kill()
    file = until(
        lambda: [path for path in paused_files(lab) if "run training" in path.read_text()],
        "the run to pause it",
    )
    assert file[0].name == f"{loader.pid}-{start}"
    assert is_stopped(loader.pid) and training.process.poll() is None
    assert lab.run("stop", "--now", "training").returncode == 0
    training.wait()
    runs_again(loader)


def test_it_is_ended_only_where_that_is_allowed(
    lab: Lab,
    machine: Cgroup,
    guard: Callable[..., Guard],
    unmanaged: Unmanaged,
    tmp_path: Path,
) -> None:
    """Paused for as long as it may be, then it fills what is left."""
    watching = guard(machine, "--may-kill-unmanaged", "--pause-max", "1")
    loader = unmanaged(machine, tmp_path / "load.py", 25, 2000)
    watching.said("resumed ")
    assert loader.wait(120) == -signal.SIGTERM
    watching.said(f"sent SIGTERM to {Path(sys.executable).name} load.py (pid {loader.pid}): ")


def test_bad_words(lab: Lab) -> None:
    wrong = lab.run("guard", "--protect", "(")
    assert wrong.returncode == 2 and "is no regular expression" in wrong.stderr
    assert lab.run("guard", "--print").returncode == 2
    unit = lab.run("guard", "install", "--print", "--protect", "my server").stdout
    assert 'guard --protect "my server"' in unit and "[Install]" in unit


def test_who_was_killed_is_written_down(
    lab: Lab, machine: Cgroup, guard: Callable[..., Guard], tmp_path: Path
) -> None:
    """By the kernel, in another corner of the machine: it outlives the log that tells it."""
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("the kernel's log is not ours to read here")
    guard(machine, "--dry-run")  # else the victim would be paused
    small = [*machine.prefix, sys.executable, "-c", "held = bytearray(b'x' * (1 << 30))"]
    victim = subprocess.Popen(small)
    assert victim.wait() == -signal.SIGKILL
    kept = lab.state / "oomproof" / "kills.jsonl"
    until(
        lambda: kept.exists() and f'"pid": {victim.pid},' in kept.read_text(), "the kill to be written down"
    )
    assert f"({victim.pid})" in lab.run("runs", "kills").stdout
