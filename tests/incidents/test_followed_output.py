"""`oomproof run … > FILE`: the job writes to the file itself. Whoever is killed, every line stands there, once."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Lab, Running, alive, until
from test_keeper_killed import Steps, both_killed, ended, is_clean, keeper_of, kill_keeper, steps

__all__ = ["steps"]
PYTHON = sys.executable
LINES = 400_000
FAST = (
    f"import sys, time\nfor number in range({LINES}): print('line', number)\n"
    "print('printed', flush=True); open(sys.argv[1], 'w').close()\n"
    "while len(sys.argv) > 2: time.sleep(1)"
)


def start(lab: Lab, name: str, *job: str, to: str, cwd: Path) -> Running:
    """By a shell, which opens the files and is gone."""
    shell = dataclasses.replace(lab, prefix=["sh", "-c", f'exec "$@" {to}', "sh"])
    return dataclasses.replace(shell.start(name, "--", *job, cwd=cwd), lab=lab)


def logged(running: Running) -> str:
    return (running.attempt / "output.log").read_text()


def writes_itself(running: Running) -> bool:
    return bool(running.started()["files"])


def test_front_killed(lab: Lab, steps: Steps, tmp_path: Path) -> None:
    running = start(lab, "filed", *steps.command(), to="> out 2>&1", cwd=tmp_path)
    steps.tell("one")
    running.output_has("noted one")
    assert writes_itself(running)
    running.process.kill()
    running.wait()
    steps.tell("two")
    running.output_has("noted two")
    steps.tell("three")
    steps.tell("end")
    assert ended(lab, "filed")["code"] == 7
    expected = "ready\n" + "".join(f"step {word}\nnoted {word}\n" for word in ("one", "two", "three"))
    assert logged(running) == expected, "the keeper read on; none of our own lines is in it"
    said = (tmp_path / "out").read_text().splitlines(keepends=True)
    assert "".join(line for line in said if not line.startswith("oomproof: ")) == expected


def test_keeper_killed_then_the_front(lab: Lab, steps: Steps, tmp_path: Path) -> None:
    running = start(lab, "filed", *steps.command(), to="> out 2>&1", cwd=tmp_path)
    running.output_has("ready")
    kill_keeper(running)
    steps.tell("one")
    running.output_has("noted one")
    assert "was killed (SIGKILL)" in (tmp_path / "out").read_text() and "oomproof" not in logged(running)
    children = ["ps", "-ww", "-o", "args=", "--ppid", str(running.process.pid)]
    until(
        lambda: "oomproof.runner.stand_in" in subprocess.check_output(children, text=True),
        "somebody to stand by",
    )
    running.process.kill()
    running.wait()
    steps.tell("two")
    running.output_has("noted two")
    steps.tell("end")
    assert ended(lab, "filed")["code"] in (7, None), "the kernel tells it since Linux 6.15"
    assert logged(running) == "ready\nstep one\nnoted one\nstep two\nnoted two\n"


def test_keeper_killed_and_the_job_ends(lab: Lab, steps: Steps, tmp_path: Path) -> None:
    running = start(lab, "filed", *steps.command(), to="> out", cwd=tmp_path)
    running.output_has("ready")
    kill_keeper(running)
    steps.tell("one")
    steps.tell("end")
    assert running.wait() == 7
    assert (tmp_path / "out").read_text() == "ready\nstep one\n"
    is_clean(running)


def test_both_killed_while_it_runs(lab: Lab, steps: Steps, tmp_path: Path) -> None:
    """No pipe that could close: the job goes on, and `watch` finds all it printed meanwhile."""
    running = start(lab, "filed", *steps.command(), to="> out 2> errors", cwd=tmp_path)
    steps.tell("one")
    running.output_has("noted one")
    both_killed(running)
    steps.tell("two")
    until(lambda: "noted two" in (tmp_path / "errors").read_text(), "a line without anybody of ours")
    assert alive(running.job_pid) and "noted two" not in logged(running)
    assert "unguarded" in lab.run("runs").stdout
    watching = subprocess.Popen(lab.command("watch", "filed"), env=lab.environment)
    running.output_has("noted two")
    steps.tell("three")
    running.output_has("noted three")
    steps.tell("end")
    assert watching.wait(60) in (7, 125)
    assert (tmp_path / "out").read_text() == "ready\nstep one\nstep two\nstep three\n"
    lines = logged(running).splitlines()
    assert len(lines) == 7 and [line for line in lines if line.startswith("step")] == [
        "step one",
        "step two",
        "step three",
    ]


@pytest.mark.parametrize("killed", ["front", "keeper"])
def test_nothing_of_a_flood_is_lost_around_a_kill(lab: Lab, tmp_path: Path, killed: str) -> None:
    done = tmp_path / "done"
    words = [PYTHON, "-c", FAST, str(done), *(["stay"] if killed == "front" else [])]
    running = start(lab, "fast", *words, to="> out", cwd=tmp_path)
    until(lambda: (tmp_path / "out").exists() and (tmp_path / "out").stat().st_size > 100_000, "its output")
    os.kill(running.process.pid if killed == "front" else keeper_of(running), signal.SIGKILL)
    if killed == "front":
        running.wait()
        until(done.exists, "the job to print it all")
        running.output_has("printed")
        lab.run("stop", "--now", "fast")
    else:
        assert running.wait() == 0
    expected = [f"line {number}\n" for number in range(LINES)] + ["printed\n"]
    assert (tmp_path / "out").read_text().splitlines(keepends=True) == expected
    assert list(dict.fromkeys(logged(running).splitlines(keepends=True)))[-1] == "printed\n"
    log = logged(running).splitlines()
    assert {line for line in log if line.startswith("line ")} >= {line.strip() for line in expected[:-1]}
    assert len(log) - len(expected) <= (1 << 20) / 8, "a kill may repeat a piece"


def test_a_job_that_rewrites_its_own_file(lab: Lab, tmp_path: Path) -> None:
    """As without us."""
    job = (
        "import os\n"
        "for number in range(3):\n"
        "    os.lseek(1, 0, 0); os.ftruncate(1, 0); os.write(1, b'%d of 3 done\\n' % (number + 1))\n"
    )
    running = start(lab, "rewrites", PYTHON, "-c", job, to="> out", cwd=tmp_path)
    assert running.wait() == 0
    assert (tmp_path / "out").read_text() == "3 of 3 done\n"
    assert logged(running).endswith("3 of 3 done\n")


def test_a_script_that_shares_its_file_keeps_them_apart(lab: Lab, tmp_path: Path) -> None:
    """Two at once into one file: each run's log has its own lines only."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(f"import time\nprint('{name}', flush=True)\ntime.sleep(1)\n")
    words = [lab.command("run", "--name", name, "--", PYTHON, f"{name}.py") for name in ("one", "two")]
    script = " & ".join(" ".join(f"'{word}'" for word in each) for each in words) + " & wait"
    with (tmp_path / "out").open("w") as file:
        subprocess.run(["sh", "-c", script], cwd=tmp_path, env=lab.environment, stdout=file, check=True)
    assert sorted((tmp_path / "out").read_text().split()) == ["one", "two"]
    for name in ("one", "two"):
        folder = lab.folder_of(name)
        assert folder is not None and (folder / "1" / "output.log").read_text() == f"{name}\n"


@pytest.mark.parametrize("to", ["> small/out 2> errors", "> small/out 2>&1"])
def test_its_own_full_disk_is_the_jobs_to_see(lab: Lab, tmp_path: Path, to: str) -> None:
    """As without us: an error of its own, not a closed pipe. Told also where its own words found no space."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)]).returncode:
        pytest.skip("only root may mount a disk to be filled")
    try:
        job = "import sys\nfor _ in range(99999): print('some words', flush=True)"
        running = start(lab, "full", PYTHON, "-c", job, to=to, cwd=tmp_path)
        assert running.wait() in (1, 120)
        assert (small / "out").stat().st_size == 64 << 10
        if "errors" in to:
            assert "No space left on device" in (tmp_path / "errors").read_text()
        assert json.loads(lab.run("why", "--json", "full").stdout)["verdict"]["cause"] == "disk-full"
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)
