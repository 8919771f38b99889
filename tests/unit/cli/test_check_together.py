"""`oomproof check --together`: the set as it is typed, names of past runs and of what runs, one screen, clear refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_machine import freeze_machine

from oomproof.cli import check as verb
from oomproof.cli import check_together
from oomproof.cli.check_together import parse
from oomproof.cli.main import main
from oomproof.errors import OomproofError
from oomproof.ledger import machine_facts
from oomproof.ledger.machine_facts import Facts
from oomproof.machine.gpu import Gpu, GpuProcess, Gpus
from oomproof.recording import run_folders

GIB = 1 << 30


@pytest.fixture
def freeze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Facts:
    """Incident I0's machine, its training under way."""
    machine = freeze_machine(tmp_path)
    facts = machine_facts.gather(machine.proc, machine.sys, machine.dev, str(machine.folder))
    monkeypatch.setattr(verb, "gather", lambda: facts)
    monkeypatch.setenv("COLUMNS", "110")
    return facts


@pytest.mark.usefixtures("freeze")
def test_the_freeze_on_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--together", "train=19G,glm=20G,desktop=3G"]) == 75
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[0].startswith(
        "Not together: "
    ) and "short by 8.8 GiB, with the margin by 13.8 GiB" in " ".join(shown.split())
    assert "as you say (pid 4242); runs and holds" in shown and len(lines) <= 36
    assert "  1. train: " in shown and "  2. glm: 20.0 GiB" in shown
    assert "[ ] one after the other" in shown and "        oomproof run --need 20G --name glm -- CMD" in shown
    assert "[ ] 14.0 GiB more disk swap (not zram)" in shown and "fallocate -l 14G /swapfile " in shown
    assert "[ ] glm smaller: at most 6.2 GiB" in shown
    assert all(len(line) <= 110 for line in lines if not line.startswith("        "))


@pytest.mark.usefixtures("freeze")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--together", "train=19G, glm=20G", "--json"]) == 75
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1 and told["status"] == "not-now"
    assert round(told["short_by_bytes"] / GIB, 1) == 8.8
    assert [(job["name"], job["running"]) for job in told["jobs"]] == [("train", True), ("glm", False)]
    assert [turn["jobs"] for turn in told["turns"]] == [["train"], ["glm"]]
    assert {remedy["way"] for remedy in told["remedies"]} >= {"turns", "swap", "smaller"}


@pytest.mark.usefixtures("freeze")
def test_a_job_that_runs_under_another_name_is_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--together", "bert=19G,glm=20G"]) == 75
    shown = " ".join(capsys.readouterr().out.split())
    assert "note: pid 4242 (train) holds" in shown and "name it by its pid: 4242=" in shown
    assert main(["check", "--together", "4242=19G,glm=20G"]) == 75
    shown = " ".join(capsys.readouterr().out.split())
    assert "short by 8.8 GiB" in shown and "note:" not in shown


@pytest.mark.usefixtures("freeze")
def test_fits_and_never(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--together", "a=2G,b=3G"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Fits together: ") and "What would make it fit" not in shown
    assert shown.rstrip().endswith("oomproof run --need 3G --name b -- CMD")
    assert main(["check", "--together", "a=2G,b=64G"]) == 69
    assert "b alone does not fit on this machine" in " ".join(capsys.readouterr().out.split())


def with_card(facts: Facts, monkeypatch: pytest.MonkeyPatch, *cards: Gpu, problem: str | None = None) -> None:
    monkeypatch.setattr(verb, "gather", lambda: replace(facts, gpus=Gpus(cards, problem)))


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_the_card_is_asked_too(
    freeze: Facts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The training holds 14 GiB of 24 on GPU 0, a browser 1."""
    held = (GpuProcess(4242, 14 * GIB), GpuProcess(77, GIB))
    with_card(freeze, monkeypatch, Gpu(0, "RTX", 24 * GIB, 15 * GIB, 9 * GIB, held))
    assert main(["check", "--together", "train=19G/14G,eval=1G/12G"]) == 75
    text = shown(capsys)
    assert "GPU 0, 24.0 GiB: train 14.0 GiB + eval 12.0 GiB + 1.0 GiB of others: short by 3.0 GiB" in text
    assert "1. train: 19.8 GiB, 14.0 GiB on GPU 0, now 2. eval: 1.0 GiB, 12.0 GiB on GPU 0" in text
    assert "oomproof run --need 1G --gpu-need 12G:0 --name eval -- CMD" in text
    assert "[ ] eval smaller on GPU 0: at most 9.0 GiB" in text and "more disk swap" not in text
    assert main(["check", "--together", "train=19G,eval=1G/12G", "--json"]) == 75
    told = json.loads(capsys.readouterr().out)
    assert told["gpus"] == [
        {
            "index": 0,
            "total_bytes": 24 * GIB,
            "others_bytes": GIB,
            "wanted_bytes": 26 * GIB,
            "jobs": ["train", "eval"],
            "short_by_bytes": 3 * GIB,
        }
    ], "what runs counts with what it holds, also where nothing was said of the card"
    assert main(["check", "--together", "eval=1G/8G"]) == 0
    assert "GPU 0, 24.0 GiB: eval 8.0 GiB + 15.0 GiB of others: 1.0 GiB to spare" in shown(capsys)


def test_a_card_that_does_not_tell_who_uses_it(
    freeze: Facts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a container: what is used is the running job's, up to what it is said to need."""
    with_card(freeze, monkeypatch, Gpu(0, "A100", 24 * GIB, 15 * GIB, 9 * GIB, note="hidden"))
    main(["check", "--together", "train=19G/14G,eval=1G/9G"])
    assert "train 14.0 GiB + eval 9.0 GiB + 1.0 GiB of others: 0 B to spare" in shown(capsys)


def test_no_card_a_smaller_one_and_none_of_its_own(
    freeze: Facts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--together", "a=1G/4G,b=1G"]) == 69
    text = shown(capsys)
    assert text.startswith("Never: a wants a GPU, and there is none here; ")
    assert "one after the other" not in text and "1. b: 1.0 GiB" in text and "it fits in no turn" in text
    with_card(freeze, monkeypatch, Gpu(0, "T4", 16 * GIB, 0, 16 * GIB))
    assert main(["check", "--together", "a=1G/20G,b=1G"]) == 69
    assert shown(capsys).startswith("Never: a alone does not fit on GPU 0; ")
    assert main(["check", "--together", "a=1G/2G:3"]) == 2
    assert "there is no GPU 3 here" in capsys.readouterr().err
    with_card(freeze, monkeypatch, problem="the GPU driver did not answer")
    assert main(["check", "--together", "a=1G/2G"]) == 75
    assert "cannot tell what fits on the card" in capsys.readouterr().err
    with_card(freeze, monkeypatch, Gpu(0, "GB10", None, None, None))
    assert main(["check", "--together", "a=1G/2G", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["wanted_bytes"] == 3 * GIB, "it is RAM there"


@pytest.mark.usefixtures("freeze")
def test_one_that_fits_when_something_else_is_closed_gets_no_turn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--together", "big=25G"]) == 75
    text = shown(capsys)
    assert "one after the other" not in text and "does not fit before you close" in text
    assert "Next: close " in text and "then ask again" in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no job is named"),
        ("desktop=3G", "no job is named"),
        ("train=", "'train=' is not NAME=SIZE"),
        ("train=much", "train: cannot read 'much' as a size"),
        ("a b=3G", "'a b=3G' is not NAME=SIZE"),
        ("a=1G,a=2G", "a is named twice"),
        ("a=1G,desktop", "how much for desktop?"),
        ("a=1G,desktop=1G,rest=1G", "everything else is named twice"),
        ("a=1G/", "'a=1G/' is not NAME=SIZE or NAME=RAM/GPU"),
        ("a=1G/2G:x", "a: cannot read '2G:x'"),
        ("a=1G,desktop=1G/1G", "what desktop takes of the card is measured"),
    ],
)
def test_bad_input_is_one_clear_line(text: str, says: str) -> None:
    with pytest.raises(OomproofError) as error:
        parse(text)
    assert says in error.value.message and error.value.message.startswith("--together") and error.value.hint
    assert error.value.status == 2


@pytest.mark.usefixtures("freeze")
def test_a_name_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--together", "nobody,glm=20G"]) == 2
    assert "give its size: nobody=20G" in capsys.readouterr().err
    assert main(["check", "--together", "a=1G", "--need", "3G"]) == 2
    assert "--need does nothing beside --together" in capsys.readouterr().err


def test_a_past_runs_name_stands_for_what_it_held(capsys: pytest.CaptureFixture[str]) -> None:
    """A real run, then its name."""
    import subprocess
    import sys

    code = "import time; held = bytearray(150 << 20); time.sleep(3)"
    for _ in range(2):
        command = [
            sys.executable,
            "-m",
            "oomproof",
            "run",
            "-q",
            "--name",
            "past",
            "--",
            sys.executable,
            "-c",
            code,
        ]
        assert subprocess.run(command, timeout=120).returncode == 0
    main(["check", "--together", "past,glm=1M", "--json"])
    job = json.loads(capsys.readouterr().out)["jobs"][0]
    assert job["basis"] == "the most it held in 2 runs" and not job["running"]
    assert 150 << 20 <= job["need_bytes"] < 250 << 20


def test_the_command_of_a_past_run_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "r1"
    folder.mkdir()
    argv = ["python", "train it.py"]
    (folder / "run.json").write_text(json.dumps({"schema": 1, "id": "r1", "name": "night", "argv": argv}))
    monkeypatch.setattr(run_folders, "find", lambda name: run_folders.Run(folder))
    assert check_together._command_of("night") == "python 'train it.py'"
