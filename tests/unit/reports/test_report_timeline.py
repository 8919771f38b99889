"""A recording as values to draw: nothing invented, no peak lost."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from helpers_report import END, GIB, WALL, make_run
from hypothesis import given
from hypothesis import strategies as st

from oomproof.recording.attempt import Attempt
from oomproof.recording.sqlite_files import TABLES
from oomproof.reports.timeline import POINTS, WINDOW, HostPoint, drawn, load, thin


def test_the_whole_run(tmp_path: Path) -> None:
    timeline = load(make_run(tmp_path).attempt)
    assert timeline.begin == -3600 and timeline.window == -WINDOW and timeline.end_wall == WALL + END
    last = timeline.host[-1]
    assert last.t == 0 and last.use == (26 * GIB) + 2 * GIB + int(0.2 * 8 * GIB)
    assert abs(last.main / (last.main + last.workers) - 0.4) < 0.01 and last.other == 0
    assert [mark.kind for mark in timeline.events] == ["warn", "request", "alert", "kill"]
    assert timeline.phases[0].name == "load" and timeline.phases[-1].last_step == 1450
    assert {row.name for row in timeline.phase_rows} == {"load", "train", "eval"}
    assert len(timeline.holders) == 17 and timeline.holders[0].role == "main"
    assert timeline.gpus[0][-1].total == 24 * GIB


def test_times_are_before_the_end_of_the_run(tmp_path: Path) -> None:
    """Its last sample is up to 10 s older: the page said that the run had ended then. A recording that ended long before it
    stands for itself."""
    run = make_run(tmp_path)
    exit_file = run.attempt / "exit.json"
    for later, begin, last, is_whole in ((8.0, -3608, -8, True), (300.0, -3600, 0, False)):
        exit_file.write_text(json.dumps(json.loads(exit_file.read_text()) | {"boottime": END + later}))
        timeline = load(run.attempt)
        assert (timeline.begin, timeline.host[-1].t, timeline.is_whole) == (begin, last, is_whole)
        assert len(timeline.holders) == 17


def test_the_peak_survives_thinning(tmp_path: Path) -> None:
    run = make_run(tmp_path, seconds=20_000, gpu=False)
    with sqlite3.connect(run.attempt / "recording.sqlite") as db:
        db.execute("UPDATE job SET anon = ?, shmem = 0, swap = 0 WHERE t = ?", (99 * GIB, END - 12_345))
    timeline = load(run.attempt)
    points = drawn(timeline.host, timeline)
    assert len(points) <= 2 * POINTS + 4
    assert max(points, key=lambda point: point.use).use == 99 * GIB
    assert any(point.t == -12_345 for point in points)


@given(st.lists(st.tuples(st.floats(-1000, 0), st.integers(0, 1 << 45)), max_size=300), st.integers(1, 40))
def test_thinning_keeps_order_ends_and_maximum(rows: list[tuple[float, int]], count: int) -> None:
    points = [HostPoint(t, use, 0, 0, 0, 0, 0) for t, use in sorted(rows)]
    kept = thin(points, -1000, 0, count)
    assert len(kept) <= max(count + 2, 0) and kept == sorted(kept, key=lambda point: point.t)
    if points:
        assert kept[0] == points[0] and kept[-1] == points[-1]
        assert max(p.use for p in kept) == max(p.use for p in points)


def test_no_samples_no_file_no_database(tmp_path: Path) -> None:
    assert load(Attempt(tmp_path)).problem == "there is no recording"
    with sqlite3.connect(tmp_path / "recording.sqlite") as db:
        db.executescript(TABLES)
    assert "no sample" in str(load(Attempt(tmp_path)).problem)
    (tmp_path / "recording.sqlite").write_bytes(b"no database" * 100)
    assert "cannot be read" in str(load(Attempt(tmp_path)).problem)


def test_what_the_guard_saw_is_a_sample_too(tmp_path: Path) -> None:
    """It acts between two rows: the highest figure of a death often stands in the actions only."""
    run = make_run(tmp_path, seconds=60, gpu=False)
    before = load(run.attempt).host
    facts = [
        {"t": END - 0.5, "use": 40 * GIB},
        {"t": None, "use": "x"},
        {"t": END - 999, "use": 99 * GIB},
        {},
    ]
    (run.attempt / "actions.jsonl").write_text("".join(json.dumps({"facts": each}) + "\n" for each in facts))
    after = load(run.attempt).host
    assert len(after) == len(before) + 1 and [p.t for p in after] == sorted(p.t for p in after)
    (added,) = set(after) - set(before)
    assert (added.t, added.use) == (-0.5, 40 * GIB)


def test_workers_do_not_appear_at_the_second_look_only(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "recording.sqlite") as db:
        db.executescript(TABLES)
        db.executemany(
            "INSERT INTO job VALUES(?,?,0,0,0,0,NULL,1,NULL,NULL)", [(t, 100) for t in (0.0, 2.0, 4.0)]
        )
        rows = [(0.0, 1, "main", 100), (4.0, 1, "main", 40), (4.0, 2, "worker", 60)]
        db.executemany("INSERT INTO process VALUES(?,?,1,?,'p',?,0,0,0,NULL)", rows)
    assert [(p.main, p.workers) for p in load(Attempt(tmp_path)).host] == [(100, 0), (70, 30), (40, 60)]
