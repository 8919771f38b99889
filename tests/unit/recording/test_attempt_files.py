"""One place names the files of a run, for Attempt and Run as for the keeper and the agent, which are loaded by path."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import oomproof
from oomproof.leaf import attempt_names
from oomproof.recording.attempt import Attempt, FileIn
from oomproof.recording.run_folders import Run

SOURCE = Path(oomproof.__file__).parent
FILES = [file for owner in (Attempt, Run) for file in vars(owner).values() if isinstance(file, FileIn)]
NAMES = {
    file.name for file in FILES if "." in file.name
}  # not "stop", "save", "agent": words of many meanings
OWNERS = ("recording/attempt.py", "recording/run_folders.py")
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
    others = [path for path in MODULES if str(path.relative_to(SOURCE)) not in OWNERS]
    built = {str(path.relative_to(SOURCE)): paths_built(path.read_text()) for path in others}
    assert {name: found for name, found in built.items() if found} == {}
    assert paths_built('open(folder / "started.json"), f"{folder}/exit.json"') == {
        "started.json",
        "exit.json",
    }


def test_the_agents_files_are_named_once() -> None:
    """Also by the keeper and the agent, which load only the leaf."""
    known = {value for key, value in vars(attempt_names).items() if key.isupper()}
    pattern = re.compile(rf"(?:^|[/*-])({'|'.join(map(re.escape, sorted(known)))})$")
    literals: dict[str, set[str]] = {}
    for folder in ("agent", "guard", "recording", "runner"):
        for path in (SOURCE / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                value = node.value if isinstance(node, ast.Constant) else None
                if isinstance(value, str) and (match := pattern.search(value)):
                    literals.setdefault(path.name, set()).add(match[1])
    # what every Python of a job does at its start imports nothing it can do without
    early = {attempt_names.FAULT, attempt_names.CENSUS_ON, attempt_names.STACK_REQUEST}
    assert literals == {"agent_start.py": early}


def test_attempts_of_a_run(tmp_path: Path) -> None:
    run = Run(tmp_path / "r")
    assert run.attempts() == [] and run.attempt.number == 1, "removed meanwhile"
    for name in ("1", "2", "10", "notes", "²"):
        (run.folder / name).mkdir(parents=True)
    (run.folder / "10/started.json").touch()
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
