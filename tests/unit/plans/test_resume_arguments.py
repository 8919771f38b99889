"""How a command is told where to go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomproof.errors import OomproofError
from oomproof.plans.resume_arguments import resume_argument


def resumed(tmp_path: Path, command: str, source: str = "", asked: str | None = None) -> str | None:
    (tmp_path / "t.py").write_text(source)
    argument = resume_argument(command.split(), str(tmp_path), asked)
    return " ".join(argument.command(command.split(), "out/c-5")) if argument is not None else None


def test_as_the_user_says(tmp_path: Path) -> None:
    told = resumed(tmp_path, "python t.py --lr 1", asked="--resume_from_checkpoint {checkpoint}")
    assert told == "python t.py --lr 1 --resume_from_checkpoint out/c-5"
    assert (
        resumed(tmp_path, "python t.py", asked="load=yes from={checkpoint}")
        == "python t.py load=yes from=out/c-5"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("--resume_from_checkpoint old/c-1 --lr 1", "--resume_from_checkpoint out/c-5 --lr 1"),
        ("--resume-from-checkpoint=old/c-1", "--resume-from-checkpoint=out/c-5"),
        ("--ckpt_path last.ckpt", "--ckpt_path out/c-5"),
        ("trainer.resume=null", "trainer.resume=out/c-5"),
        ("resume=false", "resume=true"),
        ("--resume_from_checkpoint True", "--resume_from_checkpoint True"),
        ("--resume", "--resume"),
        ("--resume --lr 1", "--resume --lr 1"),
    ],
)
def test_an_argument_that_is_there(tmp_path: Path, before: str, after: str) -> None:
    assert resumed(tmp_path, f"python t.py {before}") == f"python t.py {after}"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("p.add_argument('--resume', default=None)", "--resume out/c-5"),
        ("p.add_argument('-r', '--resume-from-checkpoint', type=str)", "--resume-from-checkpoint out/c-5"),
        ("p.add_argument('--resume', action='store_true')", "--resume"),
        (
            "a = HfArgumentParser(TrainingArguments)\nt.train(resume_from_checkpoint=a.resume_from_checkpoint)",
            "--resume_from_checkpoint out/c-5",
        ),
    ],
)
def test_an_argument_that_the_script_takes(tmp_path: Path, source: str, words: str) -> None:
    assert resumed(tmp_path, "python t.py --lr 1", source) == f"python t.py --lr 1 {words}"


@pytest.mark.parametrize(
    "source",
    ["", "p.add_argument('--checkpoint')", "this is no Python", "HfArgumentParser(TrainingArguments)"],
)
def test_nobody_knows(tmp_path: Path, source: str) -> None:
    assert resumed(tmp_path, "python t.py --checkpoint bert.pt", source) is None


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OomproofError):
        resume_argument(["python"], str(tmp_path), "'")
    with pytest.raises(OomproofError):
        resume_argument(["python"], str(tmp_path), "  ")
