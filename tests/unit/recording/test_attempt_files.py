"""One place names the files of a run: Attempt and Run. The keeper, loaded by its path, has the same names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import oomproof
from oomproof.recording.attempt import Attempt, FileIn
from oomproof.recording.run_folders import Run

SOURCE = Path(oomproof.__file__).parent
FILES = [file for owner in (Attempt, Run) for file in vars(owner).values() if isinstance(file, FileIn)]
NAMES = {
    file.name for file in FILES if "." in file.name
}  # not "stop", "save", "agent": words of many meanings
OWNERS = ("recording/attempt.py", "recording/run_folders.py")
KEEPER = [
    SOURCE / "runner" / f"{name}.py" for name in ("keeper", "attempt_files", "output_log", "takeover")
]  # of ours they import only the leaf
MODULES = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] != "agent"]


def paths_built(source: str) -> set[str]:
    """Names of ours that a module joins to a folder: ``folder / "started.json"``, f"{folder}/started.json"."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Div)
            and isinstance(node.right, ast.Constant)
        ):
            found.add(str(node.right.value))
        elif isinstance(node, ast.JoinedStr):
            texts = [str(part.value) for part in node.values if isinstance(part, ast.Constant)]
            if not any(" " in text for text in texts):  # a sentence for people may name a file
                found |= {match for text in texts for match in re.findall(r"/(\.?\w[\w.]*)$", text)}
    return found & NAMES


def test_nobody_else_builds_their_paths() -> None:
    others = [path for path in MODULES if str(path.relative_to(SOURCE)) not in OWNERS and path not in KEEPER]
    built = {str(path.relative_to(SOURCE)): paths_built(path.read_text()) for path in others}
    assert {name: found for name, found in built.items() if found} == {}
    assert paths_built('open(folder / "started.json"), f"{folder}/exit.json"') == {
        "started.json",
        "exit.json",
    }


def test_the_keeper_has_the_same_names() -> None:
    source = "\n".join(path.read_text() for path in KEEPER)
    built = set().union(*(paths_built(path.read_text()) for path in KEEPER))
    written = set(re.findall(r'[/"](\.?[a-z_]+(?:\.[a-z]+)*\.(?:json|jsonl|lock|log|err))"', source))
    assert {"started.json", ".exit.json", "exit.json", "keeper.jsonl", "output.log", "keeper.lock"} <= built
    assert written - NAMES == set()


def test_attempts_of_a_run(tmp_path: Path) -> None:
    run = Run(tmp_path / "r")
    assert run.attempts() == [] and run.attempt.number == 1, "removed meanwhile"
    for name in ("1", "2", "10", "notes", "²"):
        (run.folder / name).mkdir(parents=True)
    assert [attempt.number for attempt in run.attempts()] == [1, 2, 10]
    assert run.attempt == Attempt(run.folder / "10") and run.attempt.run_folder == run.folder
    assert run.attempt_of(2).number == 2 and run.attempt_of(None) == run.attempt


def test_an_attempt_is_a_path_to_those_who_open_files(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    assert f"{attempt}/x" == str(attempt / "x") == f"{tmp_path}/x"
    assert attempt.extra("leaks").parent.parent == tmp_path


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "{}x", "\0"])
def test_damaged_files_are_values(tmp_path: Path, text: str) -> None:
    attempt = Attempt(tmp_path)
    for path in (attempt.started_file, attempt.exit_json_file, attempt.verdict_file, attempt.actions_file):
        path.write_text(text)
    assert attempt.started() == attempt.exit() == attempt.verdict() == {} and attempt.actions() == []
    assert attempt.damage() == ["started.json", "exit.json"] and attempt.has_ended()


def test_a_fifo_in_the_place_of_a_file_holds_nobody_up(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "started.json")
    assert Attempt(tmp_path).started() == {}
