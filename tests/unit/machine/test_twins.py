"""The same job twice: known by real processes before a second one starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oomproof.cli import run_admission as verb
from oomproof.cli.main import main
from oomproof.leaf.proc_files import name_of
from oomproof.machine import twins

JOB = (
    "import os, sys\n"
    "if 'WORKERS' in os.environ and os.fork() == 0:\n"
    "    sys.stdin.read(); os._exit(0)\n"
    "print('up', flush=True)\n"
    "sys.stdin.read()\n"
)
SHELL = 1  # whoever asks: no common parent with the job

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts commands in the test's folder, through a shell as a user does, and waits until they are up."""
    (tmp_path / "train.py").write_text(JOB)
    started = []

    def begin(text: str, **environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["bash", "-c", f"{text}; true"],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        started.append(process)
        return process

    yield begin
    for process in started:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.wait(120)
        process.stdout.close()


def look(folder: Path, text: str, **environment: str) -> list[tuple[str, str]]:
    found = twins.of(text.split(), str(folder), environment, SHELL)
    return [(twin.likeness, " ".join(twin.command[1:])) for twin in found]


PY = sys.executable


def test_same_arguments_other_arguments_other_script(start: Start, tmp_path: Path) -> None:
    start(f"{PY} train.py --lr 3")
    assert look(tmp_path, f"{PY} train.py --lr 3") == [("arguments", "train.py --lr 3")]
    assert look(tmp_path, f"{PY} ./train.py --lr 4") == [("script", "train.py --lr 3")]
    (tmp_path / "eval.py").write_text(JOB)
    assert look(tmp_path, f"{PY} eval.py --lr 3") == []
    assert look(tmp_path, "echo --lr 3") == []


def test_the_same_output_folder_whatever_the_rest(start: Start, tmp_path: Path) -> None:
    start(f"{PY} train.py --lr 3 --output_dir out")
    same = look(tmp_path, f"{PY} train.py --lr 9 --output_dir {tmp_path}/x/../out")
    assert [likeness for likeness, _ in same] == ["output"]
    assert [likeness for likeness, _ in look(tmp_path, f"{PY} train.py --lr 3 --output_dir b")] == ["script"]


def test_another_card_is_no_twin(start: Start, tmp_path: Path) -> None:
    start(f"{PY} train.py", CUDA_VISIBLE_DEVICES="0")
    assert look(tmp_path, f"{PY} train.py", CUDA_VISIBLE_DEVICES="0") == [("arguments", "train.py")]
    assert look(tmp_path, f"{PY} train.py", CUDA_VISIBLE_DEVICES="1") == [("script", "train.py")]


def test_ranks_workers_and_trials_are_no_twins(start: Start, tmp_path: Path) -> None:
    start(f"{PY} train.py", RANK="0", LOCAL_RANK="0")
    assert look(tmp_path, f"{PY} train.py", RANK="1", LOCAL_RANK="1") == []
    start(f"{PY} train.py", WORKERS="1")
    found = twins.of([PY, "train.py", "--x"], str(tmp_path), {}, SHELL)
    assert len(found) == 1, "a forked worker has its parent's command line and is part of it"


def test_trials_of_one_sweep_are_no_twins(tmp_path: Path) -> None:
    """Started by one program that is no shell: it knows what it does."""
    (tmp_path / "train.py").write_text(JOB)
    trial = subprocess.Popen(
        [PY, "train.py"], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ}
    )
    try:
        assert trial.stdout is not None
        trial.stdout.readline()
        environment = dict(os.environ)
        me = os.getpid()
        assert twins.of([PY, "train.py"], str(tmp_path), environment, me) == []
        assert twins.of([PY, "train.py"], str(tmp_path), environment, SHELL) != []
    finally:
        trial.communicate()


def test_a_program_around_oomproof_names_the_script_and_is_no_twin(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    command = ["python", "train.py", "--output_dir", "out"]
    asks = f"import os; from oomproof.machine import twins; print(twins.of({command!r}, os.getcwd(), {{}}, os.getppid()))"
    around = ["timeout", "600", PY, "-c", asks, "run", "--", *command]
    done = subprocess.run(around, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_neighbours_name_that_ends_in_half_a_character(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "comm").write_bytes("训练训练训练".encode()[:15] + b"\xe8\n")
    assert name_of(7, str(tmp_path)).startswith("训练")


def test_a_twin_is_refused_with_its_pid(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("STATE_HOME", "CONFIG_HOME"):
        monkeypatch.setenv(f"XDG_{name}", str(tmp_path / name))
    monkeypatch.setattr(os, "getppid", lambda: SHELL)
    start(f"{PY} train.py --out here")
    pid = twins.of([PY, "train.py", "--out", "here"], str(tmp_path), dict(os.environ), SHELL)[0].pid
    assert main(["run", "--", PY, "train.py", "--out", "here", "--lr", "4"]) == 75
    said = capsys.readouterr().err
    assert f"pid {pid}" in said and f"{tmp_path}/here" in said and "--allow-twin" in said
    assert not (tmp_path / "STATE_HOME" / "oomproof" / "runs").exists(), "nothing looks like a run"
    monkeypatch.setattr(verb, "gpu_is_here", lambda: True)
    start(f"{PY} train.py --lr 1")
    assert main(["run", "--", PY, "train.py", "--lr", "1"]) == 75
    assert "same arguments on the same GPU" in capsys.readouterr().err


def test_check_names_twins_by_their_output_folder(tmp_path: Path) -> None:
    from oomproof.machine.jobs import Job

    proc = tmp_path / "proc"
    jobs = []
    for pid, words in ((10, "python train.py --lr 1 --out o"), (11, "python train.py --lr 2 --out o")):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "cmdline").write_bytes(words.replace(" ", "\0").encode() + b"\0")
        (proc / str(pid) / "environ").write_bytes(b"")
        (proc / str(pid) / "cwd").symlink_to("/data")
        jobs.append(Job(pid, pid, 0, tuple(words.split()), (pid,), 1 << 30, 0, 0, True))
    (found,) = twins.among(jobs, str(proc))
    assert found.output == "/data/o" and [job.pid for job in found.jobs] == [10, 11]
