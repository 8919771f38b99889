"""What kind of memory grew, from what the agent told of the allocators."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from oomproof.evidence.heap_growth import (
    ARROW,
    MAPPED,
    NATIVE,
    PYTHON,
    RETAINED,
    GrowingContainer,
    HeapGrowth,
    container_text,
    growing_line,
    heap_growth,
)
from oomproof.recording.reader import open_recording
from oomproof.recording.writer import Writer
from oomproof.reports.trend_text import heap_text
from oomproof.units import MIB

START = {
    "pid": 7,
    "anon": 500 * MIB,
    "malloc": 300 * MIB,
    "malloc_free": 20 * MIB,
    "blocks": 600_000,
    "arrow": 0,
}


def grown(folder: Path, looks: list[object]) -> HeapGrowth | None:
    path = folder / "recording.sqlite"
    writer = Writer(path, {})
    for number, look in enumerate(looks):
        data = look if isinstance(look, str) else json.dumps(look)
        writer.put("event", (100.0 + 10 * number, "agent:heap", "", data))
    writer.close()
    with open_recording(path).series() as series:
        return heap_growth(series, 0.0, 1e6)


def line(**rates: int) -> list[object]:
    return [{name: start + rates.get(name, 0) * at for name, start in START.items()} for at in range(20)]


@pytest.mark.parametrize(
    ("kind", "rates", "said"),
    [
        (NATIVE, {"anon": 10 * MIB, "malloc": 10 * MIB}, "arrays, tensors or native code"),
        (PYTHON, {"anon": 10 * MIB, "blocks": 100_000}, "Python objects (1,700,000 more)"),
        (
            RETAINED,
            {"anon": 10 * MIB, "malloc_free": 9 * MIB, "malloc": MIB},
            "the C library keeps what was freed",
        ),
        (ARROW, {"anon": 10 * MIB, "arrow": 9 * MIB}, "Arrow's memory pool"),
        (MAPPED, {"anon": 10 * MIB, "blocks": 10}, "mapped by itself"),
        (
            "",
            {"anon": 12 * MIB, "malloc": 4 * MIB, "arrow": 4 * MIB, "malloc_free": 4 * MIB},
            "of several kinds",
        ),
    ],
)
def test_kinds(tmp_path: Path, kind: str, rates: dict[str, int], said: str) -> None:
    found = grown(tmp_path, line(**rates))
    assert found is not None and found.kind == kind
    assert said in heap_text(found)


def test_what_tells_nothing(tmp_path: Path) -> None:
    for number, looks in enumerate(
        ([], line()[:4], line(), [*line()[:3], "{", "[]", '{"anon": "x"}', '"x"'])
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert grown(folder, looks) is None, "none, too few, no growth, no numbers"


def test_a_second_training_has_its_own_heap(tmp_path: Path) -> None:
    before = [{**look, "pid": 6, "anon": 9000 * MIB} for look in line() if isinstance(look, dict)]
    found = grown(tmp_path, [*before, *line(anon=10 * MIB, malloc=10 * MIB)])
    assert found is not None and found.grown == 170 * MIB and found.kind == NATIVE


SCRIPT = """import torch

def other():
    losses = []
    losses.append(1)

def main(cache):
    losses = []
    for step in range(10):
        losses.append(step)
        cache.seen[step] = 1
    return losses
"""


def container(file: Path, scope: str, name: str, function: str = "main") -> GrowingContainer:
    return GrowingContainer("list", scope, name, function, str(file), 7, 3, 1203, "Tensor [] with its graph")


def test_the_line_that_adds_to_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    losses = container(script, "local", "losses")
    found = growing_line(losses, math.inf)
    assert found == (10, "losses.append(step)")
    assert container_text(losses, found) == (
        "train.py:10 `losses.append(step)`: losses, a list of main(), got 1,200 more, the last a Tensor [] with its graph "
        "(keep .item() or .detach() of it)"
    )
    assert growing_line(container(script, "attribute", "Cache.seen"), math.inf) == (
        11,
        "cache.seen[step] = 1",
    )
    assert container_text(losses, None).startswith("losses, a list of main() in train.py, got 1,200 more")


def test_no_line_rather_than_a_wrong_one(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert growing_line(container(script, "local", "losses"), 0.0) is None, "changed since"
    assert growing_line(container(script, "global", "losses", ""), math.inf) is None, "two lines do"
    assert growing_line(container(script, "local", "absent"), math.inf) is None
    assert growing_line(container(tmp_path / "gone.py", "local", "losses"), math.inf) is None
    script.write_text("def broken(:\n")
    assert growing_line(container(script, "local", "losses"), math.inf) is None
    script.write_bytes(b"\xff\x00" * 100)
    assert growing_line(container(script, "local", "losses"), math.inf) is None


def test_containers_of_the_last_look(tmp_path: Path) -> None:
    looks = line(anon=10 * MIB, malloc=10 * MIB)
    row = ["list", "local", "losses", "main", "/x/train.py", 5, 1, 20, "Tensor"]
    assert isinstance(looks[-1], dict)
    looks[-1]["containers"] = [row, ["short"], None, [*row[:6], "x", None, 5]]
    found = grown(tmp_path, looks)
    assert found is not None and [each.name for each in found.containers] == ["losses"]
