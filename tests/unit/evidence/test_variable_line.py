"""The line that fills a variable, in the user's own source."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from oomproof.evidence.variable_line import variable_line, where
from oomproof.recording.census_record import Thing

SOURCE = """import json

TABLE = json.load(open("table.json"))
CACHE = {}


class Loader:
    def __init__(self):
        self.rows = [1, 2]
        self.seen: dict[int, str] = {}

    def read(self):
        self.seen[1] = "x"


def main():
    examples, train_data, dataset = [], [], None
    for row in TABLE:
        examples.append(row)
        train_data += [row["text"]]
        dataset = make(dataset, row)
    twice = one()
    twice = two()
    with open("x") as file, (lambda: 1)() as other:
        text = file.read()
    if (walrus := one()):
        pass
    CACHE["x"] = 1


def other():
    examples = list()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "prep.py"
    path.write_text(SOURCE)
    return path


def thing(script: Path, name: str, scope: str = "local", function: str = "main", line: int = 16) -> Thing:
    return Thing(name, scope, function, str(script), line, "list", 1, 1, 0, 0)


@pytest.mark.parametrize(
    ("name", "scope", "line"),
    [
        ("examples", "local", 19),
        ("train_data", "local", 20),
        ("dataset", "local", 21),
        ("text", "local", 25),
        ("file", "local", 24),
        ("walrus", "local", 26),
        ("row", "local", 18),
        ("twice", "local", None),
        ("absent", "local", None),
        ("TABLE", "global", 3),
        ("CACHE['train']", "global", 28),
        ("examples", "global", None),
        ("loader.rows", "attribute", 9),
        ("Loader.seen", "attribute", 13),
    ],
)
def test_lines(script: Path, name: str, scope: str, line: int | None) -> None:
    assert variable_line(thing(script, name, scope), math.inf) == line


def test_where_and_what_is_not_known(script: Path, tmp_path: Path) -> None:
    examples = thing(script, "examples")
    assert where(examples, math.inf) == "prep.py:19 in main()"
    assert where(examples, 0.0) == "prep.py in main()", "the file was changed since"
    assert where(thing(tmp_path / "gone.py", "examples"), math.inf) == "gone.py in main()"
    assert where(thing(script, "TABLE", "global", ""), math.inf) == "prep.py:3"
    assert where(thing(Path("<string>"), "x", "global", ""), math.inf) == "python -c"
    script.write_text("def broken(:\n")
    assert variable_line(examples, math.inf) is None
    assert variable_line(thing(Path("/dev/zero"), "x"), math.inf) is None
