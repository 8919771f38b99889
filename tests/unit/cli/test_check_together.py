"""`oomproof check --together`: the set as it is typed, names of past runs and of what runs, one screen, clear refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_machine import freeze_machine

from oomproof.cli import check as verb
from oomproof.cli.check_together import parse
from oomproof.cli.main import main
from oomproof.errors import OomproofError
from oomproof.ledger import machine_facts
from oomproof.ledger.machine_facts import Facts

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
    assert "Next, in turns" in shown and "  train: " in shown
    assert lines[-2:] == ["  glm: 20.0 GiB", "    oomproof run --need 20G --name glm -- CMD"]
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
    assert {remedy["way"] for remedy in told["remedies"]} == {"swap", "smaller"}


@pytest.mark.usefixtures("freeze")
def test_a_job_that_runs_under_another_name_is_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--together", "bert=19G,glm=20G"]) == 75
    shown = " ".join(capsys.readouterr().out.split())
    assert "beyond these; the largest is pid 4242 (" in shown
    assert main(["check", "--together", "4242=19G,glm=20G"]) == 75
    shown = " ".join(capsys.readouterr().out.split())
    assert "short by 8.8 GiB" in shown and "pid 4242 (" not in shown


@pytest.mark.usefixtures("freeze")
def test_fits_and_never(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--together", "a=2G,b=3G"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Fits together: ") and "What would make it fit" not in shown
    assert shown.rstrip().endswith("oomproof run --need 3G --name b -- CMD")
    assert main(["check", "--together", "a=2G,b=64G"]) == 69
    assert "b alone does not fit on this machine" in " ".join(capsys.readouterr().out.split())


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("freeze")
def test_one_that_fits_when_something_else_is_closed_gets_no_turn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--together", "big=25G"]) == 75
    text = shown(capsys)
    assert "in turns" not in text and "Next: big: 25.0 GiB; first close " in text


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
        ("a=1G,desktop=1G,rest=1G", "rest is named twice"),
        ("a=1G/2G", "it adds up RAM only"),
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
    main(["check", "--together", "past,glm=1M"])
    assert f"--name past -- {sys.executable} -c 'import time; held" in capsys.readouterr().out
    assert job["basis"] == "the most it held in 2 runs" and not job["running"]
    assert 150 << 20 <= job["need_bytes"] < 250 << 20


@pytest.mark.usefixtures("freeze")
def test_one_that_never_fits_and_nothing_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--together", "huge=900T"]) == 69
    assert "Next: make huge smaller, then ask again" in shown(capsys)
