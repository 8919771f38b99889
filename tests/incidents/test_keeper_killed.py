"""Either of the two processes of a run may be killed, and the job goes on."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Lab, Running, alive, remove, until
from test_survival import in_a_terminal

PYTHON = sys.executable
# prints a line whenever the file it is given grows, ends with 7 when it says so
STEPS = (
    "import sys, time\n"
    "seen = 0\n"
    "print('ready', flush=True)\n"
    "while True:\n"
    "    words = open(sys.argv[1]).read().split()\n"
    "    for word in words[seen:]:\n"
    "        if word == 'end': sys.exit(7)\n"
    "        print('step', word, flush=True); print('noted', word, file=sys.stderr, flush=True)\n"
    "    seen = len(words)\n"
    "    time.sleep(0.02)\n"
)


class Steps:
    """A job that prints what it is told to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "steps"
        self.path.touch()

    def command(self) -> list[str]:
        return [PYTHON, "-c", STEPS, str(self.path)]

    def tell(self, word: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{word}\n")


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path)


@pytest.fixture(params=["cgroup", "bare"])
def backend(request: pytest.FixtureRequest) -> list[str]:
    """With what limits the machine gives, and with none."""
    return [] if request.param == "cgroup" else ["--watch-only"]


def keeper_of(running: Running) -> int:
    return int(running.started()["keeper"]["pid"])


def kill_keeper(running: Running) -> int:
    keeper = keeper_of(running)
    os.kill(keeper, signal.SIGKILL)
    until(lambda: keeper_of(running) != keeper, "the front to take over")
    return keeper


def is_clean(running: Running) -> None:
    """Nothing of the run is left on the machine, and the readers tell how it ended."""
    assert running.lab.read(running.attempt / "exit.json")["code"] == 7
    for directory in running.started()["backend"]["remove"]:
        assert not os.path.exists(directory)
    listed = json.loads(running.lab.run("runs", "--json").stdout)["runs"][0]
    assert listed["state"] == "ended"
    why = running.lab.run("why", running.name)
    assert "exit code 7" in why.stdout
    assert running.verdict()["verdict"]["cause"] == "other-error"


def test_the_front_takes_over_from_a_killed_keeper(lab: Lab, steps: Steps, backend: list[str]) -> None:
    running = lab.start(
        "kept", *backend, "--", *steps.command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    steps.tell("one")
    running.output_has("step one")
    kill_keeper(running)
    steps.tell("two")
    running.output_has("step two")
    assert "running" in lab.run("runs").stdout
    steps.tell("end")
    assert running.wait() == 7, "the job's own status"
    assert running.process.stdout is not None and running.process.stderr is not None
    assert running.process.stdout.read() == "ready\nstep one\nstep two\n"
    said = running.process.stderr.read()
    assert "noted two" in said and said.count("was killed (SIGKILL); the job continues") == 1
    is_clean(running)


def test_a_job_on_a_terminal_outlives_its_keeper(lab: Lab, steps: Steps) -> None:
    """Not hung up, the terminal's keys still reach it, and its status is its own."""
    ask = "print('name?', flush=True); print('hello', input(), flush=True); "
    command = [PYTHON, "-c", f"import os\nprint('pid', os.getppid(), flush=True)\n{ask}\nraise SystemExit(7)"]
    words = lab.command("run", "--name", "term", "--", *command)
    pid, master = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execvpe(words[0], words, lab.environment)
    shown = b""
    while b"name?" not in shown:
        shown += os.read(master, 65536)
    folder = until(lambda: lab.folder_of("term"), "the run")
    keeper = int(lab.read(folder / "1" / "started.json")["keeper"]["pid"])
    os.kill(keeper, signal.SIGKILL)
    while b"this process has taken over" not in shown:
        shown += os.read(master, 65536)
    os.write(master, b"world\n")
    try:
        while data := os.read(master, 65536):
            shown += data
    except OSError:
        pass  # EIO: it has ended
    _, status = os.waitpid(pid, 0)
    os.close(master)
    assert b"hello world" in shown
    assert os.waitstatus_to_exitcode(status) == 7
    assert lab.read(folder / "1" / "exit.json")["code"] == 7


def test_ctrl_c_still_reaches_a_job_without_its_keeper(lab: Lab) -> None:
    job = "import os, time; os.kill(os.getppid(), 9); time.sleep(0.5); print('here', flush=True); time.sleep(60)"
    status, shown = in_a_terminal(
        lab, lab.command("run", "--name", "int", "--", PYTHON, "-c", job), b"\x03", b"here"
    )
    assert status == 130, shown
    assert lab.verdict("int")["verdict"]["cause"] == "interrupted"


def test_signals_are_still_passed_on(lab: Lab, steps: Steps, backend: list[str]) -> None:
    running = lab.start("told", *backend, "--", *steps.command())
    running.output_has("ready")
    kill_keeper(running)
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 128 + signal.SIGTERM


def test_what_a_forking_job_leaves_behind_is_ended_all_the_same(lab: Lab, backend: list[str]) -> None:
    """Its orphans come to the front, which ends them with the job, and leaves its own helpers alone."""
    running = lab.start(
        "family", *backend, "--grace", "0.5", "--", *lab.job("family.py", "stay"), stdout=subprocess.PIPE
    )
    assert running.process.stdout is not None
    pids = [int(word) for word in running.process.stdout.readline().split()[1:]]
    kill_keeper(running)
    assert all(alive(pid) for pid in pids)
    os.kill(running.job_pid, signal.SIGKILL)
    assert running.wait() == 137
    assert not any(alive(pid) for pid in pids)


def test_a_detached_job_outlives_its_keeper(lab: Lab, steps: Steps) -> None:
    assert lab.run("run", "--detach", "--name", "away", "--", *steps.command()).returncode == 0
    folder = until(lambda: lab.folder_of("away"), "the run")
    started = until(lambda: lab.read(folder / "1" / "started.json"), "its start")
    os.kill(started["keeper"]["pid"], signal.SIGKILL)
    steps.tell("one")
    log = folder / "1" / "output.log"
    until(lambda: log.exists() and "step one" in log.read_text(), "its output")
    steps.tell("end")
    assert lab.run("wait", "away").returncode == 7
    assert lab.run("logs", "away").stdout.splitlines()[:2] == ["ready", "step one"]


def test_stop_ends_a_job_without_its_keeper(lab: Lab, steps: Steps, backend: list[str]) -> None:
    running = lab.start("stopped", *backend, "--", *steps.command())
    running.output_has("ready")
    kill_keeper(running)
    assert lab.run("stop", "--now", "stopped").returncode == 0
    assert running.wait() == 128 + signal.SIGTERM
    assert running.verdict()["verdict"]["cause"] == "stopped-by-user"


def test_no_output_is_lost_around_the_kill(lab: Lab, backend: list[str]) -> None:
    """A job that prints as fast as it can: every line is there, in the log and for the reader, at most one part twice."""
    job = "import sys\nfor number in range(400000): print('line', number)\n"
    running = lab.start("fast", *backend, "--", PYTHON, "-c", job, stdout=subprocess.PIPE)
    assert running.process.stdout is not None
    first = running.process.stdout.readline()
    os.kill(keeper_of(running), signal.SIGKILL)
    lines = [first, *running.process.stdout]
    assert running.wait() == 0
    assert list(dict.fromkeys(lines)) == [f"line {number}\n" for number in range(400000)]
    logged = (running.attempt / "output.log").read_text().splitlines(keepends=True)
    assert logged == [f"line {number}\n" for number in range(400000)]


def both_killed(running: Running) -> None:
    started = running.started()
    for pid in (running.process.pid, started["keeper"]["pid"]):
        os.kill(pid, signal.SIGKILL)
    running.process.wait()
    until(lambda: not alive(started["keeper"]["pid"]), "the keeper to be gone")


def ended(lab: Lab, name: str) -> dict[str, object]:
    folder = lab.folder_of(name)
    assert folder is not None
    return until(lambda: lab.read(folder / "1" / "exit.json"), "the end to be written down")


@pytest.mark.parametrize("tty", [False, True])
def test_the_front_that_took_over_may_be_killed_too(lab: Lab, steps: Steps, tty: bool) -> None:
    """Once it has taken over, somebody stands by: neither a closed pipe nor a hang-up ends the job."""
    words = lab.command("run", "--name", "twice", "--", *steps.command())
    pid, master = pty.fork() if tty else (os.fork(), -1)
    if pid == 0:
        if not tty:
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.execvpe(words[0], words, lab.environment)
    running = Running(None, lab, "twice")  # type: ignore[arg-type]
    until(lambda: (running.attempt / "output.log").exists(), "output")
    running.output_has("ready")
    kill_keeper(running)
    children = ["ps", "-ww", "-o", "args=", "--ppid", str(pid)]
    until(
        lambda: "oomproof.runner.stand_in" in subprocess.check_output(children, text=True),
        "somebody to stand by",
    )
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if tty:
        os.close(master)
    steps.tell("one")
    running.output_has("step one")
    until(lambda: "unguarded" in lab.run("runs").stdout, "the history to say so")
    steps.tell("end")
    code = ended(lab, "twice")["code"]
    assert code in (7, None), "the kernel tells it since Linux 6.15"
    for directory in running.started()["backend"]["remove"]:
        until(lambda d=directory: not os.path.exists(d), "its cgroup to go")


@pytest.mark.parametrize("told", [False, True])
def test_what_is_in_the_pipe_when_the_front_that_took_over_is_killed_is_kept(
    lab: Lab, tmp_path: Path, steps: Steps, told: bool
) -> None:
    """It is killed after the job's end, before it has read the job's last lines; ``told``: and after it learnt the status."""
    held = tmp_path / "held"  # a process that the job leaves behind, so that its end is not over
    os.mkfifo(held)
    job = STEPS.replace("'", '"').replace("exit(7)", "exit(0)")  # which is granted its grace
    script = f"cat {held} & exec {PYTHON} -c '{job}' {steps.path}"
    running = lab.start("late", "--grace", "60", "--", "sh", "-c", script, stdout=subprocess.PIPE)
    running.output_has("ready")
    kill_keeper(running)
    children = ["ps", "-ww", "-o", "args=", "--ppid", str(running.process.pid)]
    until(
        lambda: "oomproof.runner.stand_in" in subprocess.check_output(children, text=True),
        "somebody to stand by",
    )
    if not told:
        running.process.send_signal(signal.SIGSTOP)
    steps.tell("last")
    steps.tell("end")
    leader = running.job_pid
    until(lambda: not alive(leader), "the job to end")
    if told:
        until(lambda: not os.path.exists(f"/proc/{leader}"), "the front to have waited for it")
        running.process.send_signal(signal.SIGSTOP)
    with held.open("w") as file:  # its last words, into the pipe that nobody reads now
        file.write("left behind\n")
    running.process.kill()
    running.process.wait()
    code = ended(lab, "late")["code"]
    assert code == 0 if told else code in (0, None), "the kernel tells it since Linux 6.15"
    output = (running.attempt / "output.log").read_text()
    assert "step last\n" in output and "left behind\n" in output
    for directory in running.started()["backend"]["remove"]:
        until(lambda d=directory: not os.path.exists(d), "its cgroup to go")


def test_both_killed_while_it_is_paused_and_thaw_wakes_it(lab: Lab, steps: Steps, backend: list[str]) -> None:
    running = lab.start("asleep", *backend, "--", *steps.command())
    running.output_has("ready")
    assert lab.run("pause", "asleep").returncode == 0
    both_killed(running)
    steps.tell("one")
    assert alive(running.job_pid)
    assert "unguarded" in lab.run("runs").stdout
    done = lab.run("resume", "asleep")
    assert done.returncode == 0, done.stderr
    assert "a new one has taken over" in done.stderr
    running.output_has("step one")
    steps.tell("end")
    assert ended(lab, "asleep")["code"] in (7, None)
    for directory in running.started()["backend"]["remove"]:
        until(lambda d=directory: not os.path.exists(d), "its cgroup to go")


def test_both_killed_while_it_is_paused_and_stop_ends_it(lab: Lab, steps: Steps, backend: list[str]) -> None:
    running = lab.start("asleep", *backend, "--", *steps.command())
    running.output_has("ready")
    assert lab.run("pause", "asleep").returncode == 0
    both_killed(running)
    pid = running.job_pid
    done = lab.run("stop", "--now", "asleep")
    assert done.returncode == 0, done.stderr
    assert not alive(pid)
    assert ended(lab, "asleep")["signal"] in (signal.SIGTERM, None)


def test_watch_takes_up_a_paused_job_that_lost_both(lab: Lab, steps: Steps) -> None:
    running = lab.start("asleep", "--", *steps.command())
    running.output_has("ready")
    assert lab.run("pause", "asleep").returncode == 0
    both_killed(running)
    watching = subprocess.Popen(
        lab.command("watch", "asleep"),
        env=lab.environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stderr is not None
    until(lambda: "guarding asleep again" in watching.stderr.readline(), "the guard")  # type: ignore[union-attr]
    assert lab.run("resume", "asleep").returncode == 0
    steps.tell("one")
    running.output_has("step one")
    steps.tell("end")
    out, _ = watching.communicate(timeout=60)
    assert "step one" in out
    assert watching.returncode in (7, 125)


def test_a_paused_job_whose_folder_is_removed_goes_on(lab: Lab, steps: Steps, tmp_path: Path) -> None:
    """Nobody can name it any more to let it go on: its keeper does."""
    done = tmp_path / "done"
    job = f"import time, pathlib\nwhile not pathlib.Path({str(steps.path)!r}).read_text(): time.sleep(0.05)\npathlib.Path({str(done)!r}).touch()"
    running = lab.start("gone", "--", PYTHON, "-c", job)
    started = running.started()
    assert lab.run("pause", "gone").returncode == 0
    running.process.kill()
    running.process.wait()
    remove(running.folder)
    steps.tell("end")
    until(done.exists, "the job to go on")
    until(lambda: not alive(started["keeper"]["pid"]), "its keeper to end with it")
