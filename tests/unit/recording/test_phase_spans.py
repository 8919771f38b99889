"""Phases of all lengths have the same figures however their samples are read, and many of them few queries."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from random import Random

import pytest

from oomproof.recording import phase_spans
from oomproof.recording.reader import open_recording
from oomproof.recording.series import Series
from oomproof.recording.sqlite_files import INSERTS, TABLES

MIB = 1 << 20


def recorded(path: Path, seed: int, phases: int) -> Path:
    """Samples at odd times, gaps, phases from a blink to minutes, some before the first sample and after the last."""
    random = Random(seed)
    connection = sqlite3.connect(path)
    connection.executescript(TABLES)
    t = 1000.0
    for _ in range(2000):
        t += random.choice((0.1, 1.0, 1.0, random.random(), 0.01 + 100 * random.random() ** 8))
        connection.execute(
            INSERTS["job"], (t, random.randrange(900) * MIB, MIB, 5, 0, 0, None, 2, None, None)
        )
        for card in (0, 1) if random.random() < 0.5 else ():
            connection.execute(
                INSERTS["gpu"], (t, card, MIB, 24 * MIB, random.choice((None, random.randrange(9) * MIB)))
            )
    end, begin = t, 990.0
    while begin < end + 20 and phases:
        phases -= 1
        name = random.choice(("train", "eval", "load", "unknown"))
        gpu = random.choice((None, MIB))
        connection.execute(INSERTS["phase"], (begin, name, 1, 7, random.choice((None, 5 * MIB)), gpu))
        begin += random.choice((0.01, 0.5, 2.0, 2.0, 29.9, 30.0, 90.0))
    connection.commit()
    connection.close()
    return path


@pytest.mark.parametrize("seed", range(12))
def test_read_together_or_each_on_its_own(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recorded(tmp_path / "recording.sqlite", seed, 400)
    rows = []
    for short in (30.0, 0.0, 300.0):
        monkeypatch.setattr(phase_spans, "_SHORT", short)
        with open_recording(path).series() as series:
            rows.append(phase_spans.phase_rows(series))
    assert rows[0] == rows[1] == rows[2] and len(rows[0]) >= 3


def test_what_the_phase_before_reached_is_not_this_ones_peak(tmp_path: Path) -> None:
    """A training of 435 MiB with evaluations of 870: both were on record with 870."""
    connection = sqlite3.connect(tmp_path / "recording.sqlite")
    connection.executescript(TABLES)
    for t, use in ((0.0, 435), (1.0, 435), (2.2, 870), (3.0, 435), (4.0, 440)):
        connection.execute(INSERTS["job"], (t, use * MIB, 0, 0, 0, 0, None, 1, None, None))
    for t, name in ((0.5, "train"), (2.0, "eval"), (2.3, "train"), (3.4, "save")):
        connection.execute(INSERTS["phase"], (t, name, 1, 7, None, None))
    connection.commit()
    connection.close()
    with open_recording(tmp_path / "recording.sqlite").series() as series:
        peaks = {row.name: (row.peak or 0) // MIB for row in phase_spans.phase_rows(series)}
    assert peaks == {"train": 435, "eval": 870, "save": 440}


def test_many_short_phases_take_few_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand phases of two seconds took 30,000 queries, and two seconds."""
    path = recorded(tmp_path / "recording.sqlite", 1, 100)
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM phase")
    for number in range(600):
        connection.execute(
            INSERTS["phase"], (1000.0 + 2 * number, ("train", "eval")[number % 2], 1, 7, None, None)
        )
    connection.commit()
    asked: list[str] = []
    real = Series._within

    def counted(self: Series, name: str, *rest: object, **more: object) -> object:
        asked.append(name)
        return real(self, name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Series, "_within", counted)
    with open_recording(path).series() as series:
        assert {row.name: row.entered for row in phase_spans.phase_rows(series)} == {
            "train": 300,
            "eval": 300,
        }
    assert len(asked) < 20


def test_the_last_step_is_that_of_the_agents_own_file(tmp_path: Path) -> None:
    """The recording's is of a second before; `agent` above the table said another."""
    rows = [phase_spans.PhaseRow("load"), phase_spans.PhaseRow("train", last_step=66)]
    assert phase_spans.with_last_step(rows, tmp_path) == rows
    (tmp_path / "7-now.txt").write_text("1 1000.5 68 -1 train\n")
    assert [row.last_step for row in phase_spans.with_last_step(rows, tmp_path)] == [None, 68]
