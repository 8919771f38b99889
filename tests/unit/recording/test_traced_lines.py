"""What a trace window told, as a record and in words: shares, rates, lines that are not to blame, damaged figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oomproof.recording.traced_lines import trace_of, trace_text

MIB = 1 << 20
LATER = 4e9


def told(*lines: list[Any], **more: Any) -> dict[str, Any]:
    traced = sum(line[3] for line in lines if len(line) > 3)
    return {
        "witness": "tracemalloc", "memory": "python", "steps": 30, "seconds": 12.0, "grown": traced, "traced": traced,
        "lines": list(lines), **more,
    }  # fmt: skip


def line(file: str, number: int, size: int, *native: str) -> list[Any]:
    return [file, number, "", size, 100, False, *native]


def words(fields: dict[str, Any], before: float = LATER) -> str:
    trace = trace_of(fields)
    assert trace is not None
    return trace_text(trace, before)


def test_a_line_its_share_and_its_rate(tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text("def main():\n    cache[key] = make(key)\n")
    fields = told(line(str(script), 2, 60 * MIB), line("x.py", 9, 3 * MIB))
    assert words(fields) == "`cache[key] = make(key)` at serve.py:2 made 95% of it: +2.0 MiB a step"
    assert words(fields, before=1.0) == "serve.py:2 made 95% of it: +2.0 MiB a step", "it was changed since"


def test_two_lines_that_made_it_together() -> None:
    fields = told(line("a.py", 1, 60 * MIB), line("b.py", 2, 40 * MIB), line("c.py", 3, MIB))
    assert words(fields).endswith("a.py:1 made 59% of it: +2.0 MiB a step; b.py:2 40%")


def test_native_functions_and_threads() -> None:
    assert words(told(line("a.py", 1, MIB, "keep_row (rows.c:3) < tokenize"))).startswith(
        "a.py:1, in keep_row (rows.c:3) < tokenize, made 100% of it"
    )
    assert words(told(["", 0, "", MIB, 1, True])).startswith("a native thread made 100% of it")


def test_a_witness_that_is_blind_to_it_blames_nobody() -> None:
    """tracemalloc sees none of a tensor's bytes: what little it sees is not what grew."""
    assert words(told(line("a.py", 1, MIB), grown=500 * MIB)) == ""


def test_a_window_in_which_it_did_not_grow_blames_nobody() -> None:
    """It leaks in each evaluation, and none was in the window."""
    assert words(told(line("a.py", 1, MIB), expected=4.0 * MIB)) == ""
    assert words(told(line("a.py", 1, 90 * MIB), expected=4.0 * MIB)) != ""


def test_what_the_tracer_takes_itself_is_no_growth() -> None:
    assert "made 100% of it" in words(told(line("a.py", 1, 6 * MIB), grown=20 * MIB))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"problem": "too little headroom for tracemalloc"},
        told(),
        told(["a.py", 1]),
        told(line("a.py", 1, MIB), seconds="x"),
        told(line("a.py", 1, MIB), traced=-5, grown=None),
    ],
    ids=["empty", "no window", "no lines", "half a line", "no seconds", "no bytes"],
)
def test_nothing_to_tell(fields: dict[str, Any]) -> None:
    assert trace_of(fields) is None


def test_figures_that_are_none_do_no_harm() -> None:
    trace = trace_of(told(["a.py", -1, "f", MIB, "many", 0], steps=None))
    assert trace is not None and (trace.lines[0].line, trace.lines[0].count) == (0, 0)
    assert trace_text(trace, LATER).endswith("made 100% of it: +85 KiB/s"), "no steps: by the second"
