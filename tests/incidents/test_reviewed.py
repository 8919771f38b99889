"""What a review with fresh eyes found, each as it would have hurt somebody."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import DEADLINE, Lab, until

PYTHON = sys.executable


def on_a_terminal(lab: Lab, words: list[str], keys: bytes = b"", after: bytes = b"\0") -> tuple[int, bytes]:
    from test_survival import in_a_terminal

    return in_a_terminal(lab, words, keys, after)


def test_a_job_that_drops_its_terminal_lives(lab: Lab, tmp_path: Path) -> None:
    """`exec python … >log 2>&1 </dev/null` in a start script: nobody hangs up on it."""
    script = f"exec sh -c 'sleep 1; echo ok > {tmp_path}/done' >{tmp_path}/log 2>&1 </dev/null"
    status, _ = on_a_terminal(lab, lab.command("run", "--", "sh", "-c", script))
    assert status == 0
    assert (tmp_path / "done").read_text() == "ok\n"


def test_the_grace_holds_behind_a_shell_script(lab: Lab, tmp_path: Path) -> None:
    """SIGTERM ends the shell at once; the Python below it still has its time to save."""
    saver = (
        "import signal, sys, time\n"
        f"def save(*_): time.sleep(3); open({str(tmp_path / 'saved')!r}, 'w').write('x'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('ready', flush=True)\nwhile True: time.sleep(0.1)\n"
    )
    (tmp_path / "job.py").write_text(saver)
    running = lab.start("script", "--grace", "20", "--", "sh", "-c", f"{PYTHON} {tmp_path}/job.py; true")
    running.output_has("ready")
    assert lab.run("stop", "--now", "script").returncode == 0
    running.wait()
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "<&-", "<&- >&- 2>&-"])
def test_streams_that_cannot_be_used_do_not_cost_the_status(lab: Lab, redirection: str) -> None:
    words = lab.command("run", "--name", "odd", "--", "sh", "-c", "sleep 0.7; exit 7")
    import shlex

    process = subprocess.Popen(["sh", "-c", f"{shlex.join(words)} {redirection}"], env=lab.environment)
    folder = until(lambda: lab.folder_of("odd"), "the run")
    until(lambda: lab.read(folder / "1" / "started.json"), "its start")
    listed = json.loads(lab.run("runs", "--json").stdout)["runs"][0]["state"]
    assert listed in ("running", "ended")
    assert process.wait(DEADLINE) == 7


def test_a_large_paste_while_output_flows_does_not_lock_up(lab: Lab) -> None:
    """3 MB typed into a job that prints all the while and reads nothing: both sides must go on."""
    job = "import sys, time\nend = time.monotonic() + 4\nwhile time.monotonic() < end: sys.stdout.write('x' * 5000 + '\\n')\n"
    words = lab.command("run", "--", PYTHON, "-c", job)
    pid, master = pty.fork()
    if pid == 0:
        out = os.open(os.devnull, os.O_WRONLY)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.execvpe(words[0], words, lab.environment)
    os.set_blocking(master, False)
    paste, deadline, status = b"y" * 80 + b"\n", time.monotonic() + DEADLINE, None
    while status is None and time.monotonic() < deadline:
        for _ in range(400):
            try:
                os.write(master, paste)
            except OSError:
                break
        try:
            os.read(master, 1 << 20)
        except OSError:
            pass
        done, code = os.waitpid(pid, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(code)
    if status is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.close(master)
    assert status == 0


def test_a_removed_folder_and_no_home(lab: Lab, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd {gone} && rmdir {gone} && exec "$@"'
    words = ["sh", "-c", script, "sh", *lab.command("run", "--", "true")]
    done = subprocess.run(words, env=lab.environment, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr


def test_arguments_that_are_no_text(lab: Lab) -> None:
    words = [*map(os.fsencode, lab.command("run", "--", "true")), b"caf\xe9"]
    assert subprocess.run(words, env=lab.environment, capture_output=True, timeout=DEADLINE).returncode == 0
    shown = lab.run("runs")
    assert shown.returncode == 0 and "true" in shown.stdout


def test_sigint_ignored_in_a_script_stays_ignored(lab: Lab) -> None:
    """`oomproof run … &` in a script: Ctrl-C at the script does not end it, as without us."""
    words = lab.command("run", "--name", "bg", "--", *lab.job("grow.py", 100, 5))
    process = subprocess.Popen(["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *words], env=lab.environment,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)  # fmt: skip
    folder = until(lambda: lab.folder_of("bg"), "the run")
    until(
        lambda: (
            "ready" in (folder / "1/output.log").read_text() if (folder / "1/output.log").exists() else ""
        ),
        "ready",
    )
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)  # nothing must happen
    assert process.poll() is None
    lab.run("stop", "--kill", "bg")
    assert process.wait(DEADLINE) == 137
