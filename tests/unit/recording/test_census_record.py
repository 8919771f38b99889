"""What an agent wrote about the variables of its process: read whatever state it is in, and told in a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oomproof.recording import census_record
from oomproof.recording.census_record import copies_text, grown, read, read_all, summary

MIB = 1 << 20


def thing(name: str, ram: int, what: str = "list of 3,000 dict", **more: Any) -> dict[str, Any]:
    row = {"name": name, "scope": "local", "function": "main", "file": "/home/me/prep.py", "line": 4, "what": what,
           "length": 3000, "ram": ram, "mapped": 0, "gpu": 0}  # fmt: skip
    return {**row, **more}


def census(t: float, *things: dict[str, Any], copies: Any = (), pid: int = 7, **more: Any) -> dict[str, Any]:
    value = {"schema": 1, "pid": pid, "t": t, "wall": 1000 + t, "request": str(t), "why": "a test", "phase": "",
             "step": None, "anon": 900 * MIB, "seen": sum(row["ram"] for row in things), "mapped": 0, "gpu": 0,
             "complete": True, "seconds": 0.1, "things": list(things), "copies": list(copies)}  # fmt: skip
    return {**value, **more}


def write(folder: Path, number: int, value: Any, pid: int = 7) -> Path:
    path = folder / f"{pid}-census-{number}.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_copies_in_words(tmp_path: Path) -> None:
    things = (thing("examples", 500 * MIB), thing("train_data", 400 * MIB, "list of 3,000 str"), thing("part", MIB),
              thing("dataset", 10 * MIB, "datasets.Dataset of 3,000 rows", mapped=300 * MIB))  # fmt: skip
    write(tmp_path, 1, census(1.0, *things, copies=[{"rows": 3000, "holders": [[0], [1, 2], [3]]}]))
    taken = read_all(tmp_path)
    assert summary(taken) == (
        "examples (list of 3,000 dict, 500 MiB), train_data (list of 3,000 str, 400 MiB; the same objects are in part) "
        "and dataset (datasets.Dataset of 3,000 rows, 10 MiB and 300 MiB mapped from disk) hold the same 3,000 rows: 3 copies"
    )
    group = taken[0].largest_copies
    assert group is not None and copies_text(group) == summary(taken)


def test_growth_from_the_first_to_the_last_of_one_process(tmp_path: Path) -> None:
    write(tmp_path, 1, census(1.0, thing("rows", 10 * MIB), thing("same", 50 * MIB)))
    write(tmp_path, 2, census(2.0, thing("rows", 90 * MIB), thing("same", 50 * MIB), thing("new", 3 * MIB)))
    write(tmp_path, 1, census(1.5, thing("rows", 500 * MIB), pid=8), pid=8)
    taken = read_all(tmp_path, 7)
    assert [(rise.thing.name, rise.before) for rise in grown(taken)] == [("rows", 10 * MIB), ("new", 0)]
    assert "rows (list of 3,000 dict) +80 MiB" in summary(taken)
    assert [one.pid for one in read_all(tmp_path)] == [7, 8, 7], "by time"
    assert grown(read_all(tmp_path, 8)) == [] and "largest: rows" in summary(read_all(tmp_path, 8))


@pytest.mark.parametrize(
    "damage",
    [
        "", "{", "[]", '{"things": 3}', census(1.0, seen="much"), census(1.0, thing("x", -1)), census(1.0, thing("x", True)),
        census(1.0, copies=[{"rows": 1000, "holders": [[5]]}]), census(1.0, copies=[{"rows": 1000, "holders": 7}]),
        {**census(1.0), "t": "soon"}, {**census(1.0), "things": [None]}, census(1.0, thing("x", 1 << 63)),
    ],
)  # fmt: skip
def test_what_is_damaged_is_left_out(tmp_path: Path, damage: Any) -> None:
    path = write(tmp_path, 1, damage)
    assert read(path) is None and read_all(tmp_path) == []


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "7-census.on").touch()
    assert read_all(tmp_path) == [] and read_all(tmp_path / "absent") == []
    assert census_record.grown([]) == []
