"""What the flags of `run` promise, and what a wrong word gets: one clear line and the hint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Lab, until

PYTHON = sys.executable


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["run"], 2, "no command to run"),
        (["run", "--", "nosuchprogram"], 127, "command not found"),
        (["run", "--", "/etc/passwd"], 126, "not executable"),
        (["run", "--", "/tmp"], 126, "is a folder"),
        (["run", "--limit", "5X", "--", "true"], 2, "20G, 512M"),
        (["run", "--limit", "1M", "--", "true"], 2, "Python cannot even start"),
        (["run", "--grace", "soon", "--", "true"], 2, "seconds"),
        (["run", "--stop-signal", "KILL", "--", "true"], 2, "no signal a job can answer"),
        (["run", "--report", "/no/such/folder/x.json", "--", "true"], 2, "mkdir -p"),
        (["run", "--oom-exit-code", "999", "--", "true"], 2, "0 to 255"),
        (["runs", "show", "nonsense"], 2, "no runs yet"),
        (["stop", "nonsense"], 2, "no runs yet"),
    ],
)
def test_bad_input(lab: Lab, words: list[str], status: int, says: str) -> None:
    done = lab.run(*words)
    assert done.returncode == status
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 3
    assert not list((lab.state / "oomproof" / "runs").glob("*")), "nothing was run, so nothing is listed"


def test_program_without_hash_bang(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo hi\n")
    script.chmod(0o755)
    done = lab.run("run", "--", str(script))
    assert done.returncode == 126
    assert "no #! line" in done.stderr


def test_arguments_are_untouched(lab: Lab) -> None:
    odd = ["--limit", "-x", "", "a b", "*", "$HOME", "--", "ü"]
    done = lab.run("run", "--", PYTHON, "-c", "import sys, json; print(json.dumps(sys.argv[1:]))", *odd)
    assert json.loads(done.stdout) == odd


def test_stdin_reaches_the_job(lab: Lab) -> None:
    assert lab.run("run", "--", "cat", input="through").stdout == "through"


def test_secrets_are_not_on_disk(lab: Lab) -> None:
    lab.environment["HF_TOKEN"] = "hf_thisisverysecret"
    done = lab.run("run", "--", PYTHON, "-c", "pass", "--api-key", "topsecretvalue")
    assert done.returncode == 0
    for path in lab.state.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert b"thisisverysecret" not in data and b"topsecretvalue" not in data, path
            assert path.stat().st_mode & 0o077 == 0, f"{path} is open to others"


@pytest.mark.usefixtures("kernel_limit")
def test_report_and_oom_exit_code(lab: Lab, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = lab.run(
        "run", "--limit", "150M", "--grace", "1", "--oom-exit-code", "99", "--report", str(report),
        "--", *lab.job("grow.py", 60, 1000),
    )  # fmt: skip
    assert done.returncode == 99
    written = json.loads(report.read_text())
    assert written["schema"] == 1
    assert written["verdict"]["cause"] in ("stopped-by-guard", "oom-kill-memcg")
    assert abs(sum(cause["probability"] for cause in written["causes"]) - 1) < 0.01


@pytest.mark.usefixtures("kernel_limit")
def test_stop_signal_is_sent_before_anything_harder(lab: Lab, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    job = (
        "import signal, sys, time\n"
        f"def save(*_): open({str(saved)!r}, 'w').write('x'); sys.exit(0)\n"
        "signal.signal(signal.SIGUSR1, save)\n"
        "held = []\n"
        "while True: held.append(b'x' * (1 << 20)); time.sleep(0.05)\n"
    )
    done = lab.run("run", "--limit", "200M", "--grace", "4", "--stop-signal", "USR1", "--", PYTHON, "-c", job)
    assert done.returncode == 75
    assert saved.exists()


@pytest.mark.usefixtures("kernel_limit")
def test_own_stop_file(lab: Lab, tmp_path: Path) -> None:
    """The file the job already watches: created to ask, and named in the environment too."""
    stop = tmp_path / "please" / "STOP"
    saved = tmp_path / "saved"
    done = lab.run(
        "run",
        "--limit",
        "200M",
        "--grace",
        "8",
        "--stop-file",
        str(stop),
        "--",
        *lab.job("grow.py", 20, 1000, saved),
    )
    assert done.returncode == 75
    assert stop.exists() and saved.exists()


@pytest.mark.usefixtures("kernel_limit")
def test_what_the_guard_ends_was_not_left_behind(lab: Lab) -> None:
    """`killed all processes of the job`, and then: `left 1 of its processes behind`."""
    grow = " ".join(lab.job("grow.py", 60, 2000))
    done = lab.run("run", "--limit", "200M", "--grace", "1", "--", "sh", "-c", f"sleep 60 & {grow}; wait")
    assert done.returncode in (137, 143), done.stderr
    assert "verdict  stopped by oomproof's guard" in done.stderr and "behind" not in done.stderr


def test_alert_above(lab: Lab) -> None:
    running = lab.start(
        "alert", "--alert-above", "30M", "--", *lab.job("grow.py", 200, 60), stderr=subprocess.PIPE
    )
    running.output_has("ready")
    log = running.attempt / "memory_alerts.log"
    until(lambda: log.exists() and "above 30 MiB" in log.read_text(), "the alert")
    lab.run("stop", "alert")
    assert running.process.stderr is not None
    said = running.process.stderr.read()
    running.wait()
    assert said.count("above 30 MiB") == 1, "told once"


def test_signal_to_oomproof_is_the_jobs(lab: Lab) -> None:
    """`kill PID` of the front ends the job as `kill` of the job would."""
    running = lab.start("term", "--", *lab.job("grow.py", 100, 5))
    running.output_has("ready")
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 128 + signal.SIGTERM
    assert running.verdict()["verdict"]["cause"] in ("stopped-by-user", "interrupted")


def test_messenger_is_told(lab: Lab, tmp_path: Path) -> None:
    """docker, tmux and the like hand the work on; the memory is then somebody else's."""
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nexit 0\n")
    docker.chmod(0o755)
    done = lab.run("run", "--", str(docker), "run", "image")
    assert "only passes the work on" in done.stderr


def test_settings_from_the_project(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.oomproof]\nname = "from-the-file"\nlimit = "300M"\n')
    assert lab.run("run", "--", "true", cwd=tmp_path).returncode == 0
    shown = json.loads(lab.run("runs", "show", "--json").stdout)
    assert shown["info"]["name"] == "from-the-file"
    assert shown["info"]["settings"]["limit"] == 300 << 20


def test_runs_compare_and_show(lab: Lab) -> None:
    for name, size in (("before", "40"), ("after", "10")):
        running = lab.start(name, "--", *lab.job("grow.py", 200, size))
        running.output_has("ready")
        until(
            lambda r=running: "\n" in lab.run("runs", "export", "--csv", r.name).stdout.partition("\n")[2],
            "a sample",
        )
        lab.run("stop", name)
        running.wait()
    table = lab.run("runs", "compare", "before", "after").stdout
    assert "peak" in table and "40" in table and "10" in table
    assert "memory of the job" in lab.run("runs", "show", "before").stdout
    assert json.loads(lab.run("runs", "compare", "--json", "before", "after").stdout)["schema"] == 1


def test_commit_and_script_are_kept(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("print('v1')\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "job.py"], ["commit", "-qm", "v1"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True, env={**os.environ, "HOME": str(tmp_path)})
    lab.run("run", "--name", "code", "--", PYTHON, "job.py", cwd=tmp_path)
    code = lab.read(lab.folder_of("code") / "run.json")["code"]
    assert code["script"] == str(script) and len(code["git_commit"]) == 40 and code["git_dirty"] is False
    script.write_text("print('v2')\n")
    assert "changed after this run started" in lab.run("runs").stdout


def test_demo(lab: Lab) -> None:
    done = lab.run("demo")
    assert done.returncode == 0
    for words in ("memory is getting short", "asked the job to save and stop", "checkpoint saved"):
        assert words in done.stderr + done.stdout
    assert "verdict  stopped by oomproof" in done.stderr


def test_a_burst_that_fits_is_left_alone(lab: Lab, small_machine) -> None:
    """200 MiB taken at once in a machine of 400: plain Python finishes, so it must finish under us."""
    lab.prefix = small_machine(400 << 20).prefix
    for _ in range(3):
        done = lab.run("run", "--", PYTHON, "-c", "x = bytearray(b'x') * (200 << 20); print('done')")
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_a_stale_stop_file(lab: Lab, tmp_path: Path) -> None:
    """Left by us, it is removed; put there by somebody else, it is theirs and the run is refused."""
    stop = tmp_path / "STOP"
    stop.write_text("mine")
    done = lab.run("run", "--stop-file", str(stop), "--", "true")
    assert done.returncode == 2 and f"rm {stop}" in done.stderr
    assert stop.read_text() == "mine"
    stop.write_text("oomproof asks this job to save and stop: because\n")
    assert lab.run("run", "--stop-file", str(stop), "--", "true").returncode == 0
    assert not stop.exists()


def test_a_run_inside_a_run_has_its_own_stop_file(lab: Lab) -> None:
    show = "import os; print(os.environ['OOMPROOF_STOP_FILE'])"
    inner = [sys.executable, "-m", "oomproof.cli.main", "run", "--", PYTHON, "-c", show]
    script = f"{show}; import subprocess; subprocess.run({inner!r})"
    outer, nested = lab.run("run", "--", PYTHON, "-u", "-c", script).stdout.splitlines()
    assert outer != nested


def test_oom_exit_code_through_wait(lab: Lab, kernel_limit: None) -> None:
    lab.run("run", "--detach", "--name", "d", "--limit", "150M", "--grace", "1", "--oom-exit-code", "77", "--",
            *lab.job("grow.py", 80, 1000))  # fmt: skip
    assert lab.run("wait", "d").returncode == 77


def test_misspelt_setting_is_told(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "oomproof.toml").write_text('limt = "10G"\n')
    done = lab.run("run", "--", "true", cwd=tmp_path)
    assert done.returncode == 2 and "did you mean 'limit'" in done.stderr
