"""What must survive: the job without its guard, the recording, the neighbour, the user's exit status."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import DEADLINE, Lab, alive, remove, until

PYTHON = sys.executable


def locked_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmLck:"))


def test_front_killed_job_goes_on_and_watch_takes_over(lab: Lab, tmp_path: Path) -> None:
    running = lab.start(
        "lost", "--limit", "200M", "--grace", "3", "--", *lab.job("grow.py", 8, 1000, tmp_path / "saved")
    )
    running.output_has("growing")
    pid = running.job_pid
    running.process.kill()
    running.process.wait()
    os.kill(pid, signal.SIGSTOP)  # so that it does not fill its limit before `watch` is there
    until(lambda: "unguarded" in lab.run("runs").stdout, "the history to say so")
    assert alive(pid)
    watching = subprocess.Popen(
        lab.command("watch", "lost"),
        env=lab.environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert watching.stderr is not None and "lost" in watching.stderr.readline()
    if os.geteuid() == 0:  # others may lock 8 MiB at most
        until(lambda: locked_bytes(watching.pid), "the new guard to lock its memory, as the first one did")
    os.kill(pid, signal.SIGCONT)
    _, said = watching.communicate(timeout=DEADLINE)
    assert watching.returncode == 75, "asked to stop for want of memory"
    assert "asked the job to save and stop" in said
    assert (tmp_path / "saved").exists()
    assert lab.verdict("lost")["verdict"]["cause"] == "stopped-by-guard"


def test_it_is_guarded_although_nobody_reads_what_we_say(lab: Lab) -> None:
    """Standard error is a full pipe from the start on: its first line waited for a reader, and the guard for that line."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    try:
        while os.write(write_end, bytes(4096)):
            pass
    except BlockingIOError:
        os.set_blocking(write_end, True)
    running = lab.start("unread", "--", "sleep", "600", stderr=write_end)
    os.close(write_end)
    running.entered()
    os.kill(running.job_pid, signal.SIGKILL)
    with open(read_end, "rb") as reader:  # it ends only when somebody reads
        said = reader.read().lstrip(bytes(1)).decode()
    assert said.startswith("oomproof: run unread") and "verdict" in said


@pytest.mark.usefixtures("kernel_limit")
def test_without_its_guard_the_kernel_still_holds_the_limit(lab: Lab) -> None:
    running = lab.start("alone", "--limit", "100M", "--", *lab.job("grow.py", 30, 1000))
    running.output_has("growing")
    running.process.kill()
    running.process.wait()
    until(lambda: lab.read(running.attempt / "exit.json"), "the kernel to end it")
    assert lab.run("wait", "alone").returncode == 137
    assert lab.run("why", "alone").returncode == 0  # nobody was there to judge at its end
    assert lab.verdict("alone")["verdict"]["cause"] == "oom-kill-memcg"


def test_recording_is_readable_after_everything_was_killed(lab: Lab) -> None:
    running = lab.start("shot", "--", *lab.job("grow.py", 100, 30))
    running.output_has("ready")
    started = running.started()
    csv = until(
        lambda: (out := lab.run("runs", "export", "--csv", "shot").stdout).count("\n") > 2 and out,
        "two samples on disk",
    )
    for pid in (running.process.pid, started["keeper"]["pid"], started["job"]["pid"]):
        os.kill(pid, signal.SIGKILL)
    running.process.wait()
    until(lambda: not alive(started["keeper"]["pid"]), "the keeper to be gone")
    after = lab.run("runs", "export", "--csv", "shot").stdout
    assert len(after.splitlines()) >= len(csv.splitlines())
    assert lab.run("runs").returncode == 0
    # the test removes what the killed keeper could not
    for directory in started["backend"]["remove"]:
        until(lambda d=directory: _rmdir(d), "the cgroup to be removable")


def _rmdir(directory: str) -> bool:
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


@pytest.mark.parametrize("status", ["0", "3"])
def test_orphans_end_with_the_job(lab: Lab, status: str) -> None:
    done = lab.run("run", "--name", "orphans", "--grace", "0.5", "--", *lab.job("family.py", "exit", status))
    assert done.returncode == int(status), "the leader's own status, whatever became of the rest"
    pids = [int(word) for word in done.stdout.split()[1:]]
    assert len(pids) == 3
    assert not any(alive(pid) for pid in pids)
    assert "left 3 of its processes behind" in done.stderr


def test_a_family_that_ignores_sigterm_dies_whole(lab: Lab) -> None:
    running = lab.start("family", "--", *lab.job("family.py", "stay"), stdout=subprocess.PIPE)
    assert running.process.stdout is not None
    pids = [int(word) for word in running.process.stdout.readline().split()[1:]]
    assert all(alive(pid) for pid in pids)
    assert lab.run("stop", "--grace", "0.3", "family").returncode == 0
    assert running.wait() == 137
    assert not any(alive(pid) for pid in pids)


def test_a_family_dies_whole_without_any_cgroup(lab: Lab) -> None:
    running = lab.start("bare", "--watch-only", "--", *lab.job("family.py", "stay"), stdout=subprocess.PIPE)
    assert running.process.stdout is not None
    pids = [int(word) for word in running.process.stdout.readline().split()[1:]]
    assert lab.run("stop", "--kill", "bare").returncode == 0
    assert running.wait() == 137
    until(lambda: not any(alive(pid) for pid in pids), "all of the family to be gone")


@pytest.mark.usefixtures("kernel_limit")
def test_two_runs_one_dies_the_other_lives(lab: Lab, tmp_path: Path) -> None:
    steady = lab.start("steady", "--limit", "200M", "--", *lab.job("grow.py", 200, 100))
    steady.output_has("ready")
    go = tmp_path / "go"
    assert lab.kernel_kill("dying", "--limit", "100M", job=lab.job("burst.py", go, 300), go=go) == 137
    assert alive(steady.job_pid)
    lab.run("stop", "steady")
    assert steady.wait() == 0
    assert steady.verdict()["verdict"]["cause"] == "stopped-by-user"


def test_on_a_shortage_the_newest_goes_and_the_oldest_stays(lab: Lab, small_machine) -> None:
    """A machine of 600 MiB: the old run holds 250, the new one grows without end. Only the new one is ended.

    Without pauses (test_freeze.py has those): what the ladder does below them."""
    machine = small_machine(600 << 20)
    lab.prefix = machine.prefix
    short = ("--floor", "60M", "--margin", "120M", "--grace", "2", "--pause-max", "0", "--")
    old = lab.start("old", *short, *lab.job("grow.py", 200, 250))
    old.output_has("ready")
    new = lab.start("new", *short, *lab.job("grow.py", 40, 2000))
    assert new.wait() == 128 + signal.SIGTERM
    assert new.verdict()["verdict"]["cause"] == "stopped-by-guard"
    assert alive(old.job_pid)
    lab.prefix = []
    lab.run("stop", "old")
    old.wait()
    assert old.verdict()["verdict"]["cause"] == "stopped-by-user"


def test_no_rights_at_all(lab: Lab) -> None:
    """No cgroup to be seen: watching and signals only, and a leak beyond its limit is still ended."""
    hide = 'mount -t tmpfs tmpfs /sys/fs/cgroup && exec "$@"'
    probe = subprocess.run(["unshare", "-m", "sh", "-c", hide, "sh", "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"cannot hide the cgroups here: {probe.stderr.strip()}")
    lab.prefix = ["unshare", "-m", "sh", "-c", hide, "sh"]
    done = lab.run(
        "run", "--name", "bare", "--limit", "200M", "--grace", "1", "--", *lab.job("grow.py", 60, 1000)
    )
    assert "oomproof, not the kernel" in done.stderr
    assert done.returncode in (
        128 + signal.SIGTERM,
        128 + signal.SIGKILL,
    )  # which of them is a matter of load
    assert lab.verdict("bare")["verdict"]["cause"] == "stopped-by-guard"


def test_a_runtime_folder_that_vanishes_costs_no_action(lab: Lab) -> None:
    """As at the logout of the session that it belonged to; nothing can be made in its place, so ours in /tmp serves."""
    runtime = Path(lab.environment["XDG_RUNTIME_DIR"])
    running = lab.start(
        "alone",
        "--limit",
        "300M",
        "--grace",
        "1",
        "--",
        *lab.job("grow.py", 8, 2000, "", 180),
        stderr=subprocess.PIPE,
    )
    running.output_has("growing")
    until(lambda: any((runtime / "oomproof" / "live").iterdir()), "the guard to have joined the others")
    remove(runtime / "oomproof")
    (runtime / "oomproof").touch()
    assert running.wait() in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
    assert running.process.stderr is not None
    said = running.process.stderr.read()
    assert said.count(
        "this run does not take your other runs into account"
    ) <= 1 and "failed" not in said.replace("the runtime folder failed", ""), said
    assert running.verdict()["verdict"]["cause"] == "stopped-by-guard"


def test_full_disk_costs_the_recording_not_the_job(lab: Lab, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True
    ).returncode:
        pytest.skip("cannot mount a small disk here (needs root)")
    try:
        lab.environment["XDG_STATE_HOME"] = str(disk)
        lab.state = disk
        job = "import sys, time\nfor _ in range(40): print('x' * 100000); time.sleep(0.05)\nprint('end')"
        done = lab.run("run", "--name", "full", "--", PYTHON, "-c", job)
        assert done.returncode == 0
        assert done.stdout.endswith("end\n") and len(done.stdout) > 4_000_000
        assert "finished" in done.stderr
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_closed_pipe_reaches_the_job(lab: Lab) -> None:
    """`oomproof run -- yes | head -1` ends, as `yes | head -1` does."""
    command = " ".join(lab.command("run", "--name", "yes", "--", "yes"))
    done = subprocess.run(
        ["sh", "-c", f"{command} | head -1"], env=lab.environment, capture_output=True, timeout=DEADLINE
    )
    assert done.stdout == b"y\n"
    until(lambda: lab.read(lab.folder_of("yes") / "1" / "exit.json"), "`yes` to have ended")


def test_output_order_is_kept_when_both_streams_are_one(lab: Lab) -> None:
    job = "import sys\nfor i in range(50):\n  print(i, flush=True)\n  print(i, file=sys.stderr, flush=True)"
    command = lab.command("run", "--", PYTHON, "-c", job)
    done = subprocess.run(
        command, env=lab.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=DEADLINE
    )
    numbers = [int(line) for line in done.stdout.splitlines() if line.isdigit()]
    assert numbers == [i for i in range(50) for _ in (0, 1)]


def in_a_terminal(lab: Lab, words: list[str], keys: bytes, after: bytes) -> tuple[int, bytes]:
    """Runs the command on a real pty, types ``keys`` once ``after`` was seen; (status, all it showed)."""
    pid, master = pty.fork()
    if pid == 0:
        # tests started in the background have it ignored, a terminal has not
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execvpe(words[0], words, lab.environment)
    shown = b""
    typed = False
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        try:
            data = os.read(master, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
        if not typed and after in shown:
            os.write(master, keys)
            typed = True
    _, status = os.waitpid(pid, 0)
    os.close(master)
    return os.waitstatus_to_exitcode(status), shown


def test_ctrl_c_reaches_the_job_once(lab: Lab) -> None:
    job = (
        "import signal, sys, time\n"
        "count = 0\n"
        "def hit(*_):\n    global count\n    count += 1\n"
        "signal.signal(signal.SIGINT, hit)\n"
        "print('tty', sys.stdin.isatty(), sys.stdout.isatty(), flush=True)\n"
        "while not count: time.sleep(0.05)\n"
        "end = time.monotonic() + 1\n"  # time for a second one, which must not come
        "while time.monotonic() < end: time.sleep(0.05)\n"
        "print('hits', count, flush=True)\n"
    )
    status, shown = in_a_terminal(lab, lab.command("run", "--", PYTHON, "-c", job), b"\x03", b"True True")
    assert b"tty True True" in shown
    assert b"hits 1" in shown
    assert status == 0


def test_the_terminal_is_told_that_the_job_outlives_a_killed_guard(lab: Lab, tmp_path: Path) -> None:
    """The shell says "Killed", and nothing that one sees runs any more: it held its memory all the same."""
    gone = tmp_path / "gone"
    wait = "import os, sys, time\nprint('started', flush=True)\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)"
    command = lab.command("run", "--name", "lost", "--", PYTHON, "-c", wait, str(gone))

    def kill() -> None:
        folder = until(lambda: lab.folder_of("lost"), "the run's folder")
        file = until(lambda: next(folder.glob("1/started.json"), None), "the job to start")
        os.kill(json.loads(file.read_text())["guard"]["pid"], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    shell = ["sh", "-c", '"$@"; read line', "sh", *command]  # the terminal is the shell's, as a user's is
    status, shown = in_a_terminal(lab, shell, b"\r", b"logs -f lost")
    killer.join()
    assert status == 0 and b"oomproof watch lost" in shown, shown
    gone.touch()
    until(lambda: "finished" in lab.run("runs").stdout, "the job's own end")


def test_interrupt_is_told(lab: Lab) -> None:
    job = "import time; print('here', flush=True); time.sleep(60)"
    status, _ = in_a_terminal(
        lab, lab.command("run", "--name", "int", "--", PYTHON, "-c", job), b"\x03", b"here"
    )
    assert status == 130
    assert lab.verdict("int")["verdict"]["cause"] == "interrupted"


def test_hangup_leaves_the_job_running(lab: Lab) -> None:
    """The terminal is closed: guard and job go on, output goes to the file."""
    pid, master = pty.fork()
    if pid == 0:
        words = lab.command("run", "--name", "hup", "--", *lab.job("grow.py", 100, 10))
        os.execvpe(words[0], words, lab.environment)
    folder = until(lambda: lab.folder_of("hup"), "the run")
    until(
        lambda: (
            (folder / "1" / "output.log").exists() and "ready" in (folder / "1" / "output.log").read_text()
        ),
        "ready",
    )
    os.close(master)
    time.sleep(0.5)  # nothing must happen, so there is nothing to wait for
    listed = json.loads(lab.run("runs", "--json").stdout)["runs"][0]
    assert listed["state"] == "running"
    lab.run("stop", "hup")
    os.waitpid(pid, 0)


def test_detach_logs_wait(lab: Lab) -> None:
    done = lab.run(
        "run", "--detach", "--name", "away", "--", PYTHON, "-c", "import sys; print('deed'); sys.exit(5)"
    )
    assert done.returncode == 0
    assert done.stdout.strip() == lab.folder_of("away").name
    assert lab.run("wait", "away").returncode == 5
    assert lab.run("logs", "-f", "away").stdout == "deed\n"


def test_a_quiet_detached_run_prints_its_id_alone(lab: Lab, tmp_path: Path) -> None:
    """It printed "running in the background:" without an end, three hints, and that the same script runs already."""
    (tmp_path / "loop.py").write_text("import sys, time\ntime.sleep(60 if len(sys.argv) < 2 else 0)\n")
    for name in ("one", "two"):
        done = lab.run("run", "-q", "--detach", "--name", name, "--", PYTHON, "loop.py", cwd=tmp_path)
        assert (done.stdout.strip(), done.stderr) == (lab.folder_of(name).name, "")
    assert "runs already" in lab.run("run", "--", PYTHON, "loop.py", "short", cwd=tmp_path).stderr
    lab.run("stop", "--kill", "one", "two")


def test_detached_start_failure_is_told(lab: Lab) -> None:
    assert lab.run("run", "--detach", "--", "/nonexistent/program").returncode == 127


def test_two_attempts_to_watch(lab: Lab) -> None:
    running = lab.start("one", "--", *lab.job("grow.py", 100, 10))
    running.output_has("ready")
    done = lab.run("watch", "one")
    assert "is guarded already" in done.stderr
    lab.run("stop", "one")
    running.wait()
