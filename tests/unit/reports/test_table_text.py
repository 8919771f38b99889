"""Tables fit their terminal, whatever an argument holds."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.cli.main import main
from oomproof.printable import printable
from oomproof.recording import run_folders, state_files
from oomproof.reports.table_text import folded, folded_line, table

CELLS = st.lists(st.tuples(*[st.text(max_size=40)] * 4), min_size=1, max_size=6)


@given(CELLS, st.integers(20, 120))
def test_a_row_is_a_line_and_fits(rows: list[tuple[str, ...]], width: int) -> None:
    lines = table(rows, width, shrink={3: 4, 0: 4, 1: 4, 2: 4}, drop=(3, 2))
    assert len(lines) == len(rows)
    assert all(len(line) <= width and printable(line) == line and "\t" not in line for line in lines)


def test_a_line_goes_on_under_its_text() -> None:
    line = "  full     500 MiB (its limit) would have been reached in 0 to 9 steps"
    assert folded_line(line, 80) == [line]
    assert folded_line(line, 40) == [
        "  full     500 MiB (its limit) would",
        "           have been reached in 0 to 9",
        "           steps",
    ]
    assert folded_line("  - " + "ab " * 9, 24) == ["  - " + "ab " * 6 + "ab", "    ab ab"]


def test_a_long_word_is_broken() -> None:
    assert folded("", "x" * 50, 30) == ["x" * 30, "x" * 20]


def test_what_gives_way_first() -> None:
    rows = [("NAME", "SIZE", "COMMAND"), ("a" * 20, "1 GiB", "python train.py --lots")]
    assert table(rows)[1] == f"{'a' * 20}  1 GiB  python train.py --lots"
    assert table(rows, 40, shrink={2: 8, 0: 8}, drop=(2,))[1] == f"{'a' * 20}  1 GiB  python tra…"
    assert table(rows, 30, shrink={2: 8, 0: 8}, drop=(2,))[1] == f"{'a' * 12}…  1 GiB  python …"
    assert table(rows, 20, shrink={2: 8, 0: 8}, drop=(2,)) == ["NAME           SIZE", f"{'a' * 12}…  1 GiB"]


def test_folded_lines_stand_under_each_other() -> None:
    assert folded("why  ", "one two three", 25) == ["why  one two three"]
    assert folded("why  ", "a\nb " + "c" * 20, 25) == ["why  a\\u000ab", f"     {'c' * 20}"]


@pytest.fixture
def odd_run(monkeypatch: pytest.MonkeyPatch) -> run_folders.Run:
    monkeypatch.setenv("COLUMNS", "60")
    run = run_folders.new_run()
    argv = ["python", "-c", "import time\n\ttime.sleep(1)\x1b[2J", "--text", "long " * 40]
    info = {
        "schema": 1,
        "id": run.id,
        "name": "a\nb\t" + "c" * 40,
        "argv": argv,
        "cwd": "/" + "d" * 90,
        "created": 1.0,
    }
    state_files.write_json(run.info_file, info)
    state_files.write_json(run.attempt.started_file, {"boottime": 1.0, "wall": 1.0})
    state_files.write_json(run.attempt.exit_file, {"boottime": 2.0, "wall": 2.0, "code": 1, "signal": None})
    return run


@pytest.mark.parametrize("words", [["runs"], ["runs", "show"], ["runs", "compare", "RUN", "RUN"]])
def test_sixty_columns(
    words: list[str], odd_run: run_folders.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([odd_run.id if word == "RUN" else word for word in words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60, max(lines, key=len)
    assert not any("\x1b" in line or "\t" in line for line in lines)


@pytest.mark.parametrize(
    ("set_to", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_on_a_terminal_only(
    set_to: dict[str, str], coloured: bool, odd_run: run_folders.Run, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in set_to.items():
        monkeypatch.setenv(name, value)
    for words in (["runs"], ["runs", "show"]):
        main(words)
        assert "\x1b" not in capsys.readouterr().out, "not when piped"
        with monkeypatch.context() as terminal:
            terminal.setattr(sys.stdout, "isatty", lambda: True, raising=False)
            main(words)
        shown = capsys.readouterr().out
        assert ("\x1b[31m" in shown or "\x1b[1;31m" in shown) is coloured
        assert "\x1b[2J" not in shown, "the job's own codes are shown, not obeyed"
