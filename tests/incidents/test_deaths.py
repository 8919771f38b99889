"""Each kind of death, caused for real, must be told for what it is, and the innocent must live."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Lab, alive, until

from oomproof.machine import kernel_log
from oomproof.recording import state_files
from oomproof.recording.reader import open_recording

PYTHON = sys.executable


def cause(lab: Lab, name: str) -> tuple[str, str]:
    verdict = lab.verdict(name)["verdict"]
    return verdict["cause"], verdict["certainty"]


def test_clean_end(lab: Lab) -> None:
    done = lab.run("run", "--name", "clean", "--", PYTHON, "-c", "print('hello')")
    assert done.returncode == 0
    assert done.stdout == "hello\n"
    assert cause(lab, "clean")[0] == "finished"


def test_python_error(lab: Lab) -> None:
    done = lab.run("run", "--name", "error", "--", PYTHON, "-c", "raise ValueError('no such column')")
    assert done.returncode == 1
    assert "ValueError: no such column" in done.stderr
    assert cause(lab, "error")[0] == "other-error"
    assert "ValueError: no such column" in lab.verdict("error")["verdict"]["headline"]


@pytest.mark.usefixtures("kernel_limit")
def test_kernel_kill_by_the_jobs_own_limit(lab: Lab, tmp_path: Path) -> None:
    """The job's own counter proves it, and the kernel's log names it."""
    bystander = lab.start("bystander", "--", *lab.job("grow.py", 100, 20))
    bystander.output_has("ready")
    go = tmp_path / "go"
    assert lab.kernel_kill("own", "--limit", "100M", job=lab.job("burst.py", go, 400), go=go) == 137
    assert cause(lab, "own") == ("oom-kill-memcg", "proven")
    headline = lab.verdict("own")["verdict"]["headline"]
    assert "100 MiB" in headline and "not the job's own" not in headline
    assert alive(bystander.job_pid)
    lab.run("stop", "bystander")
    assert bystander.wait() == 0


@pytest.mark.usefixtures("kernel_limit")
def test_kernel_kill_of_a_child_of_a_shell(lab: Lab, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job = ["sh", "-c", f"{shlex.join(lab.job('burst.py', go, 400))}; exit $?"]
    assert lab.kernel_kill("wrapped", "--limit", "100M", job=job, go=go) == 137
    assert cause(lab, "wrapped") == ("oom-kill-memcg", "proven")


def test_limit_of_a_cgroup_above_is_named(lab: Lab, small_machine, tmp_path: Path) -> None:
    """A container's or Slurm's limit: not ours, and the verdict says so."""
    outer = small_machine(150 << 20)
    lab.prefix = outer.prefix
    go = tmp_path / "go"
    assert lab.kernel_kill("above", "--limit", "140M", job=lab.job("burst.py", go, 400), go=go) == 137
    assert cause(lab, "above")[0] == "oom-kill-memcg"
    told = "a cgroup above the job" if kernel_log.read(0.0).reason else outer.directory.name
    assert told in lab.verdict("above")["verdict"]["headline"], "only the kernel's log has its name"


@pytest.mark.usefixtures("kernel_limit")
def test_a_burst_is_ended_by_us_or_by_the_kernel_and_told_right(lab: Lab) -> None:
    """At full speed either may win; the verdict must agree with the job's own counter."""
    done = lab.run("run", "--name", "burst", "--limit", "100M", "--", PYTHON, "-c", "x = b'x' * (400 << 20)")
    assert done.returncode in (137, 143)
    by_kernel = lab.read(lab.folder_of("burst") / "1" / "exit.json")["counters"]["memcg_oom_kill"] > 0
    assert cause(lab, "burst") == ("oom-kill-memcg" if by_kernel else "stopped-by-guard", "proven")


@pytest.mark.usefixtures("kernel_limit")
def test_leak_is_stopped_in_time_and_saved(lab: Lab, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    done = lab.run(
        "run", "--name", "leak", "--limit", "300M", "--grace", "4", "--", *lab.job("grow.py", 20, 1000, saved)
    )
    assert done.returncode == 75, "for want of memory: `&& next` must not take half a result for a whole one"
    assert lab.read(lab.folder_of("leak") / "1" / "exit.json")["code"] == 0, "the job's own status as it was"
    assert lab.run("wait", "leak").returncode == 75
    assert 150 < int(saved.read_text()) < 300, "asked while there was still room, but not long before"
    assert cause(lab, "leak") == ("stopped-by-guard", "likely"), (
        "its script names the stop file; nobody saw it look"
    )
    assert "asked the job to save and stop" in done.stderr
    alerts = (lab.folder_of("leak") / "1" / "memory_alerts.log").read_text()
    assert "save and stop" in alerts


@pytest.mark.usefixtures("kernel_limit")
def test_leak_that_does_not_listen_is_ended_before_the_kernel_does(lab: Lab) -> None:
    done = lab.run(
        "run",
        "--name",
        "deaf",
        "--limit",
        "300M",
        "--grace",
        "2",
        "--",
        *lab.job("grow.py", 30, 1000, "", 120),
    )
    assert done.returncode in (
        128 + signal.SIGTERM,
        128 + signal.SIGKILL,
    )  # which of them is a matter of load
    assert cause(lab, "deaf") == ("stopped-by-guard", "proven")
    exit_record = lab.read(lab.folder_of("deaf") / "1" / "exit.json")
    assert exit_record["counters"]["memcg_oom_kill"] == 0


@pytest.mark.usefixtures("kernel_limit")
def test_a_job_that_sits_just_below_its_limit_is_left_alone(lab: Lab) -> None:
    """The negative: near the limit but not growing is no reason to touch it."""
    running = lab.start("steady", "--limit", "300M", "--grace", "1", "--", *lab.job("grow.py", 15, 255))
    running.output_has("ready")
    time.sleep(3)  # three times its grace, and longer than the guard's window of growth
    assert alive(running.job_pid)
    actions = running.attempt / "actions.jsonl"
    taken = (
        {json.loads(line)["action"] for line in actions.read_text().splitlines()}
        if actions.exists()
        else set()
    )
    assert not taken & {"term", "kill"}
    lab.run("stop", "--now", "steady")
    running.wait()


def test_outside_kill_is_not_called_oom(lab: Lab) -> None:
    running = lab.start("outside", "--", *lab.job("grow.py", 100, 10))
    running.output_has("ready")
    os.kill(running.job_pid, signal.SIGKILL)
    assert running.wait() == 137
    slug, _ = cause(lab, "outside")
    assert slug == "killed-unknown"
    assert "not for memory" in running.verdict()["verdict"]["headline"]


def test_segfault(lab: Lab, tmp_path: Path) -> None:
    done = lab.run("run", "--name", "segv", "--", PYTHON, "-c", "import ctypes; ctypes.string_at(0)")
    assert done.returncode == 139
    assert cause(lab, "segv")[0] == "segfault"
    page = tmp_path / "why.html"
    assert lab.run("why", "segv", "--html", str(page)).returncode == 0
    _, _, to_do = page.read_text().partition("What to do")
    assert "See which native function it was in" in to_do.partition("</section>")[0]


def test_segfault_with_two_openmp_runtimes_and_a_silent_handler(lab: Lab, tmp_path: Path) -> None:
    """The sampler saw both libraries in the job's maps; the job's own handler would have spoken of an exception."""
    go, script = tmp_path / "go", tmp_path / "train.py"
    script.write_text(
        "import ctypes, mmap, os, sys, time\n"
        "held = []\n"
        "for name in ('libgomp-a34b3233.so.1.0.0', 'libiomp5.so'):\n"
        "    open(name, 'wb').write(b'x' * 4096)\n"
        "    held.append(mmap.mmap(os.open(name, os.O_RDONLY), 0, prot=mmap.PROT_READ))\n"
        "try:\n"
        "    while not os.path.exists(sys.argv[1]):\n"
        "        time.sleep(0.05)\n"
        "    ctypes.string_at(0)\n"
        "except Exception as error:\n"
        "    print('training failed:', error)\n"
    )
    running = lab.start("omp", "--", PYTHON, str(script), str(go), cwd=tmp_path)
    recording = until(lambda: running.attempt / "recording.sqlite", "the recording")
    until(lambda: openmp_events(recording), "the sampler to look at the maps")
    go.touch()
    assert running.wait() == 128 + signal.SIGSEGV
    verdict = lab.verdict("omp")
    assert cause(lab, "omp") == ("segfault", "proven")
    why = verdict["verdict"]["why"]
    assert "libgomp-a34b3233.so.1.0.0" in why and "libiomp5.so" in why and "not proven" in why
    assert "train.py:11 (except Exception) would have printed «training failed:» and did not" in why
    assert "in a buffer" not in why, "PYTHONUNBUFFERED is set"
    assert "OMP_NUM_THREADS=1" in verdict["causes"][0]["test"]


def openmp_events(recording: Path) -> list[object]:
    return open_recording(recording).rows("SELECT text FROM event WHERE kind = 'openmp'")


def test_what_it_printed_is_told_as_why_tells_it_of_a_file(lab: Lab, tmp_path: Path) -> None:
    corpus = Path(__file__).parents[1] / "corpus" / "logs"
    for name in (
        "real-jax-cpu",
        "real-torchrun-numpy",
        "nccl-timeout-only",
        "real-nanquiet",
        "disk-torch-writer",
    ):
        text = corpus / f"{name}.txt"
        done = lab.run("run", "--name", name, "--", "sh", "-c", f"cat {text}; exit 1")
        assert done.returncode == 1
        alone = json.loads(lab.run("why", "--json", str(text)).stdout)["verdict"]
        verdict = lab.verdict(name)["verdict"]
        assert verdict["cause"] == alone["cause"], name
        assert (verdict["phase"], verdict["step"]) == (alone["phase"], alone["step"]), name


@pytest.mark.usefixtures("kernel_limit")
def test_shared_memory_and_a_kernel_kill_are_one_story(lab: Lab, tmp_path: Path) -> None:
    """Pages in /dev/shm count against the job's limit: the kill and the words of a full /dev/shm are one cause."""
    go = tmp_path / "go"
    words = "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)."
    job = ["sh", "-c", f"{shlex.join(lab.job('burst.py', go, 400))}; echo {shlex.quote(words)}; exit 1"]
    assert lab.kernel_kill("both", "--limit", "100M", job=job, go=go) == 1
    assert cause(lab, "both") == ("oom-kill-memcg", "proven")
    verdict = lab.verdict("both")
    assert "one cause" in verdict["verdict"]["why"] and len(verdict["causes"]) == 1


def test_abort(lab: Lab) -> None:
    done = lab.run("run", "--name", "abrt", "--", PYTHON, "-c", "import os; os.abort()")
    assert done.returncode == 134
    assert cause(lab, "abrt")[0] == "abort"


def test_bus_error_from_a_full_dev_shm(lab: Lab) -> None:
    """A tmpfs of 8 MiB as /dev/shm, as in a container: the job maps more than fits and dies of SIGBUS."""
    script = 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"'
    probe = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", "true"], capture_output=True, text=True
    )
    if probe.returncode:
        pytest.skip(f"no private /dev/shm can be mounted here: {probe.stderr.strip()}")
    lab.prefix = ["unshare", "-m", "sh", "-c", script, "sh"]
    job = (
        "import mmap, os\n"
        "fd = os.open('/dev/shm/batch', os.O_CREAT | os.O_RDWR)\n"
        "os.ftruncate(fd, 64 << 20)\n"
        "view = mmap.mmap(fd, 64 << 20)\n"
        "for at in range(0, 64 << 20, 4096): view[at] = 1\n"
    )
    done = lab.run("run", "--name", "bus", "--", PYTHON, "-c", job)
    assert done.returncode == 128 + signal.SIGBUS
    assert cause(lab, "bus")[0] == "shm-exhausted"


def test_bus_error_without_a_full_dev_shm_is_no_shm_story(lab: Lab, tmp_path: Path) -> None:
    job = (
        "import mmap, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)\n"
        "os.ftruncate(fd, 1 << 20)\n"
        "view = mmap.mmap(fd, 1 << 20)\n"
        "os.ftruncate(fd, 0)\n"
        "view[4096]\n"
    )
    done = lab.run("run", "--name", "bus2", "--", PYTHON, "-c", job, tmp_path / "file")
    assert done.returncode == 128 + signal.SIGBUS
    assert cause(lab, "bus2")[0] == "bus-error"


def test_stopped_by_the_user(lab: Lab) -> None:
    running = lab.start("mine", "--", *lab.job("grow.py", 100, 10))
    running.output_has("ready")
    assert lab.run("stop", "mine").returncode == 0
    assert running.wait() == 0
    assert cause(lab, "mine")[0] == "stopped-by-user"


def test_a_job_that_grows_is_asked_to_save_long_before_it_is_asked_to_stop(
    lab: Lab, kernel_limit: None
) -> None:
    # more than it is known to need: so growth is no loading that will end
    limits = ("--limit", "300M", "--need", "64M")
    running = lab.start("grows", *limits, "--", *lab.job("listener.py", 4))
    running.output_has("saved")
    assert not (running.attempt / "save").exists()
    actions = [line["action"] for line in state_files.read_lines(running.attempt / "actions.jsonl")]
    assert set(actions) <= {"warn"}, "nobody was asked to stop"
    alerts = (running.attempt / "memory_alerts.log").read_text()
    assert alerts.count("asked this loop to save and continue") == 1
    lab.run("stop", "--now", "grows")
    running.wait()


def test_a_request_is_taken_back_when_the_growth_ends(lab: Lab, kernel_limit: None) -> None:
    running = lab.start("calms", "--limit", "200M", "--", *lab.job("calms_down.py"))
    running.output_has("no longer asked")
    assert running.wait() == 0
    actions = [line["action"] for line in state_files.read_lines(running.attempt / "actions.jsonl")]
    assert [action for action in actions if action != "warn"] == ["request", "withdraw"]
    assert "took back the request" in (running.attempt / "memory_alerts.log").read_text()
    assert cause(lab, "calms")[0] == "finished", "its end was no answer"


def test_state_of_a_live_run(lab: Lab) -> None:
    running = lab.start("live", "--", *lab.job("grow.py", 100, 10))
    running.output_has("ready")
    listed = json.loads(lab.run("runs", "--json").stdout)["runs"]
    assert [(one["name"], one["state"]) for one in listed] == [("live", "running")]
    lab.run("stop", "live")
    running.wait()
    until(
        lambda: json.loads(lab.run("runs", "--json").stdout)["runs"][0]["state"] == "ended",
        "the run to have ended",
    )
