"""The verb: what cannot work is one line with a hint, and nothing is made on disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from oomproof.cli.main import main
from oomproof.recording.run_folders import runs_folder
from oomproof.sweeps import sweep_folder
from oomproof.sweeps.sweep_folder import sweeps_folder


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "nothing to sweep"),
        (["--param", "lr=1,2"], "no command to run"),
        (["--param", "lr=1,2", "--", "true"], "the command does not use {lr}"),
        (["--param", "lr=1,2", "--param", "wd=1,2", "--", "true", "{lr}"], "the command does not use {wd}"),
        (["--param", "lr=1,2", "--", "true", "{lr}", "{batch}"], "nothing says what {batch} may be"),
        (["--param", "lr=1,2", "--", "nosuchprogram", "{lr}"], "nosuchprogram: command not found"),
        (["--param", "lr=1,2", "--", "python", "gone.py", "{lr}"], "gone.py: no such file"),
        (["--param", "lr=0.1..0.2", "--", "true", "{lr}"], "how many trials?"),
        (
            ["--param", "batch=7,9", "--effective", "100", "--", "true", "{batch}", "{accum}"],
            "no micro-batch of batch divides",
        ),
        (["--param", "lr=1,2", "--parallel", "0", "--", "true", "{lr}"], "--parallel 0"),
        (["--param", "lr=1,2", "--limit", "1K", "--", "true", "{lr}"], "Python cannot even start in that"),
        (["--param", "lr=1,2", "--need", "lots", "--", "true", "{lr}"], "cannot read 'lots' as a size"),
        (["--param", "lr=1,2", "--method", "magic", "--", "true", "{lr}"], "unknown method 'magic'"),
        (["--param", "lr=1,2", "--name", "a/b", "--", "true", "{lr}"], "cannot be a sweep's name"),
        (
            ["--param", "lr=1,2", "--knob", "w=4..0", "--knob", "w=3..0", "--", "true", "{lr}", "{w}"],
            "--knob w is given twice",
        ),
        (["statsu"], "statsu: no such file, and no action; did you mean 'status'?"),
        (["status", "x", "y"], "unknown argument 'y'"),
        (["status", "--json", "x", "y"], "unknown argument 'y'"),
        (["status", "--json", "x"], "no sweep"),
        (["status"], "there are no sweeps yet"),
        (["status", "--trials", "3"], "--trials does nothing with status"),
        (["resume", "--param", "a=1"], "--param belongs to a new sweep"),
        (["--param", "lr=1,2", "--finish", "--", "true", "{lr}"], "--finish belongs to stop"),
        (["--param", "lr=1,2", "--retry-failed", "--", "true", "{lr}"], "--retry-failed belongs to resume"),
        (["list", "x"], "list takes no name"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_made(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", *words]) in (2, 127)
    error = capsys.readouterr().err
    assert says in error and "hint: " in error and "Traceback" not in error
    assert not sweeps_folder().exists() and not runs_folder().exists()


def test_a_file_with_an_unknown_distribution(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "program: t.py\nmethod: random\nparameters: {x: {distribution: cauchy, min: 0, max: 1}}\n"
    )
    assert main(["sweep", str(path)]) == 2
    assert "parameter x: unknown distribution 'cauchy'" in capsys.readouterr().err
    assert not sweeps_folder().exists()


def test_list_without_any(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "list"]) == 0 and capsys.readouterr().out == "no sweeps yet\n"
    assert main(["sweep", "list", "--json"]) == 0 and json.loads(capsys.readouterr().out)["sweeps"] == []


def test_a_command_with_a_secret_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["true", "--api-key", "hunter2", "{lr}"]
    assert main(["sweep", "--name", "s", "--param", "lr=1", "--", *words]) == 0
    for path in sweeps_folder().rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path
    capsys.readouterr()
    assert main(["sweep", "resume", "s"]) == 2
    assert "holds a secret and was not stored" in capsys.readouterr().err
    assert main(["sweep", "resume", "s", "--", "true", "{lr}"]) == 2
    assert "not the command of this sweep" in capsys.readouterr().err
    assert main(["sweep", "resume", "s", "--", *words]) == 0
    assert main(["sweep", "status", "s", "--json"]) == 0


def test_a_sweep_of_another_host_is_not_resumed_here(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = sweep_folder.create("s", {"command": ["true"], "cwd": os.getcwd()})
    info = json.loads(sweep.info_file.read_text())
    sweep.info_file.write_text(json.dumps({**info, "host": "elsewhere"}))
    assert main(["sweep", "resume", "s"]) == 2
    assert "sweep s was started on elsewhere" in capsys.readouterr().err
