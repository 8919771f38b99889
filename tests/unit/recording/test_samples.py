"""A value and a table by time: the same figures as from all of its rows."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.recording import samples
from oomproof.recording.samples import Samples, Table
from oomproof.reports.chart import columns

ROWS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 1000)), min_size=1, max_size=120)
PIECE = 7


def made(rows: list[tuple[object, object]]) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE job (t REAL, v INT)")
    connection.executemany("INSERT INTO job VALUES (?,?)", rows)
    return connection


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "_ROWS", PIECE)
    monkeypatch.setattr(samples, "_BESIDE", PIECE)


def nearly_ordered(rows: list[tuple[int, int]], late: int) -> list[tuple[int, int]]:
    """As writers leave them: some rows stand behind those that came after them, by less than a piece."""
    ordered = sorted(rows, key=lambda row: row[0])
    places = sorted(range(len(ordered)), key=lambda place: place + (late if place % 5 == 0 else 0))
    return [ordered[place] for place in places]


@settings(max_examples=150, deadline=None)
@given(ROWS, st.integers(0, PIECE - 1), st.floats(-5, 405), st.floats(0, 200))
def test_the_same_as_from_all_rows(
    rows: list[tuple[int, int]], late: int, begin: float, length: float
) -> None:
    plain = nearly_ordered(rows, late)
    series = Samples(Table(made(list(plain)), "job"), "v")
    by_time = sorted(plain, key=lambda row: row[0])
    end = begin + length
    inside = [v for t, v in plain if begin <= t <= end]
    assert series.between(begin, end) == ((min(inside), max(inside)) if inside else None)
    before = [(t, v) for t, v in by_time if t <= begin]
    latest = {v for t, v in by_time if t == (before[-1][0] if before else by_time[0][0])}
    assert series.at(begin) in latest
    width = 13
    assert columns(series.highest(width), width) == columns([(float(t), v) for t, v in by_time], width)


@settings(max_examples=100, deadline=None)
@given(ROWS, st.integers(0, PIECE - 1), st.floats(-5, 405), st.floats(0, 200))
def test_a_window_has_all_its_rows(
    rows: list[tuple[int, int]], late: int, begin: float, length: float
) -> None:
    table = Table(made(list(nearly_ordered(rows, late))), "job")
    found = table.rows("t, v", begin, begin + length)
    assert sorted(found) == sorted((t, v) for t, v in rows if begin <= t < begin + length)


def test_damaged_rows_are_passed_over() -> None:
    rows: list[tuple[object, object]] = [(1.0, 5), ("x", 9), (2.0, "y"), (b"z", 1), (3.0, 7), (None, 3)]
    assert Samples(Table(made(rows), "job"), "v", "typeof(v) = 'integer'").between(0, 10) == (5, 7)
    assert Table(made(rows), "job").rows("count(*)", 0, 10) == [(3,)]
    nothing = Table(made([]), "job")
    assert not Samples(nothing, "v") and nothing.rows("t", 0, 1) == []
