"""What a recording holds by name and time; and that nobody else speaks SQL to it."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

import oomproof
from oomproof.recording.phase_spans import phase_rows, spans_of
from oomproof.recording.reader import Recording, open_recording
from oomproof.recording.series import Event, GpuRow, HostRow, JobRow, OtherJobRow, ProcessRow
from oomproof.recording.sqlite_files import INSERTS, TABLES

SOURCE = Path(oomproof.__file__).parent
MIB = 1 << 20


def test_nobody_else_speaks_sql_to_recordings() -> None:
    """The ledger has a file of its own, and so has Optuna."""
    allowed = ("recording/", "ledger/ledger_store.py", "ledger/ledger_file.py", "sweeps/optuna_engine.py")
    speaking = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(
            r"import sqlite3\b|\bsqlite3\.connect|\.execute\(|\.rows\(\s*f?\"|\"SELECT ", path.read_text()
        )
    ]
    assert [name for name in speaking if not name.startswith(allowed)] == []


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    """A thousand seconds: two phases, two cards, a worker that lived from 100 to 200."""
    connection = sqlite3.connect(tmp_path / "recording.sqlite")
    connection.executescript(TABLES)
    connection.execute("INSERT INTO meta VALUES ('wall_offset', '1000')")
    for t in range(1000):
        connection.execute(INSERTS["host"], (t, 100 * MIB, (90 - t // 100) * MIB, 0, 0, 0, 0, 0))
        connection.execute(INSERTS["job"], (t, t * MIB, 0, 5, MIB, 0, None, 2, None, None))
        for card in (0, 1):
            connection.execute(INSERTS["gpu"], (t, card, 10 * MIB, 24 * MIB, (t % 7) * MIB))
        if t % 10 == 0:
            connection.execute(INSERTS["process"], (t, 7, 1, "main", "python", t * MIB, 0, 0, 0, None))
        if 100 <= t <= 200 and t % 10 == 0:
            connection.execute(INSERTS["process"], (t, 8, 2, "worker", "python", MIB, 0, 0, 0, None))
    for t, name in ((0, "train"), (500, "eval"), (600, "train")):
        connection.execute(INSERTS["phase"], (t, name, t, 7, None, None))
    for t, kind, text in (
        (1, "agent", "in 1 process"),
        (2, "agent:note", ""),
        (3, "warn", "low"),
        (4, "warn", "lower"),
    ):
        connection.execute(INSERTS["event"], (t, kind, text, None))
    connection.commit()
    connection.close()
    return open_recording(tmp_path / "recording.sqlite")


@pytest.mark.parametrize("source", ["driver", "agent", "both"])
def test_a_phases_gpu_peak_is_what_it_reached_itself(tmp_path: Path, source: str) -> None:
    """A generate() died at 23.9 GiB; the training that it interrupted, which had held 3, was shown with 23.8."""
    connection = sqlite3.connect(tmp_path / "recording.sqlite")
    connection.executescript(TABLES)
    gib = 1 << 30
    spans = [
        ("load", 0, 1),
        ("train", 1, 3),
        ("generate", 3, 23.9),
        ("train", 23.8, 23.8),
        ("save", 23.8, 23.8),
    ]
    for number, (name, entry, high) in enumerate(spans):
        t = 10.0 * number
        if source != "agent":
            for second, held in enumerate((entry, high, high)):
                connection.execute(INSERTS["gpu"], (t + 1 + second, 0, 0, 24 * gib, int(held * gib)))
        told = source != "driver"
        connection.execute(INSERTS["phase"], (t, name, None, 7, None, int(entry * gib) if told else None))
        if told and high > entry:
            connection.execute(INSERTS["phase"], (t + 9, name, None, 7, None, int(high * gib)))
    connection.execute(INSERTS["event"], (50.0, "end", "", None))
    connection.commit()
    connection.close()
    with open_recording(tmp_path / "recording.sqlite").series() as series:
        peaks = {row.name: round((row.gpu_peak or 0) / gib, 1) for row in phase_rows(series)}
    assert peaks == {"load": 1, "train": 3, "generate": 23.9, "save": 23.8}


def test_samples_by_name_and_time(recording: Recording) -> None:
    with recording.series() as series:
        assert [row.t for row in series.between(JobRow, 10, 13)] == [10, 11, 12]
        assert [row.use for row in series.newest(JobRow, 1)] == [999 * MIB, 1000 * MIB]
        assert len(series.newest(HostRow, 1e9)) == 1000
        assert [row.use // MIB for row in series.highest(JobRow, [0, 100, 200])] == [100, 200]
        assert [row.mem_available for row in series.highest(HostRow, [0, 1000])] == [81 * MIB]
        assert [(row.idx, row.used) for row in series.highest(GpuRow, [0, 10])] == [
            (0, 10 * MIB),
            (1, 10 * MIB),
        ]
        assert series.gpu_peak(0, 1000) == 12 * MIB and series.gpu_peak(2000, 3000) is None
        assert (series.gpu_bound(0, 1000) or 0) >= 12 * MIB and series.gpu_bound(2000, 3000) is None
        assert series.gpu_before(0) is None
        assert series.limits() == (0, 999) and series.end() == 999
        assert {row.pid for row in series.living(150, 160)} == {7, 8}
        assert {row.pid for row in series.living(250, 999)} == {7}
        assert len(list(series.exported())) == 1000 and series.cards_used(set()) == {0, 1}


def test_a_worker_that_is_just_dying_lived_with_what_it_held(tmp_path: Path) -> None:
    """Seen under the guard's SIGTERM: the last look found its workers without a page, and their growth was nobody's."""
    connection = sqlite3.connect(tmp_path / "recording.sqlite")
    connection.executescript(TABLES)
    for t, anon, file in ((1.0, 100, 5), (2.0, 150, 5), (3.0, 0, 0)):
        connection.execute(
            INSERTS["process"], (t, 8, 2, "worker", "python", anon * MIB, 0, file * MIB, 0, None)
        )
    connection.commit()
    connection.close()
    with open_recording(tmp_path / "recording.sqlite").series() as series:
        assert [(row.t, row.use) for row in series.living(0, 10)] == [(2.0, 150 * MIB)]


def test_a_reader_that_comes_again_gets_what_is_new(recording: Recording) -> None:
    with recording.series() as series:
        first, place = series.after(JobRow, 0, 10)
        assert [row.t for row in first] == [float(t) for t in range(990, 1000)], "the newest, at first"
        assert series.after(JobRow, place, 10) == ([], place)
    with sqlite3.connect(recording.path) as connection:
        connection.execute(INSERTS["job"], (1000.0, 5, 0, 0, 0, 0, None, 1, None, None))
        connection.execute(INSERTS["job"], ("damaged", 5, 0, 0, 0, 0, None, 1, None, None))
    with recording.series() as series:
        new, later = series.after(JobRow, place, 10)
        assert [row.t for row in new] == [1000.0] and later == place + 2
        begun_anew, _ = series.after(JobRow, later + 999, 3)
        assert len(begun_anew) == 2, "a place behind the end is of another recording"
        assert series.after(OtherJobRow, 0, 5)[0] == []
        assert len(series.phase_marks(1)) <= len(series.phase_marks())


def test_events_phases_and_processes(recording: Recording) -> None:
    with recording.series() as series:
        assert series.events("warn", last=1) == [Event(4, "warn", "lower")]
        assert [event.kind for event in series.events(words_only=True, besides="agent")] == ["warn", "warn"]
        assert len(series.events()) == 4
        assert series.last_phase() == ("train", 600)
        assert [(span.name, span.begin, span.end) for span in spans_of(series)] == [
            ("train", 0, 500), ("eval", 500, 600), ("train", 600, 999),
        ]  # fmt: skip
        rows = {row.name: row for row in phase_rows(series)}
        assert rows["eval"].peak == 601 * MIB and rows["train"].entered == 2 and rows["train"].floor == MIB
        first, last = series.processes()[8]
        assert (first, last.t, last.role) == (100, 200, "worker")
        assert series.processes()[7][1].use == 990 * MIB


def test_what_cannot_be_read_has_no_rows(recording: Recording, tmp_path: Path) -> None:
    (tmp_path / "none.sqlite").write_bytes(b"no recording of ours" * 500)
    for path in (tmp_path / "none.sqlite", tmp_path / "absent.sqlite"):
        with open_recording(path).series() as series:
            assert series.newest(JobRow, 10) == [] and series.events() == [] and not series.use
            assert series.limits() is None and spans_of(series) == [] and series.processes() == {}
    connection = sqlite3.connect(recording.path)
    connection.execute("DROP TABLE job")
    connection.execute("UPDATE host SET mem_available = 'x' WHERE t = 999")
    connection.commit()
    connection.close()
    with recording.series() as series:
        assert series.between(JobRow, 0, 10) == [] and series.highest(JobRow, [0, 9]) == [] and not series.use
        assert [row.t for row in series.newest(HostRow, 1)] == [998], "a damaged row is left out"
        assert len(series.between(ProcessRow, 0, 100)) == 10, "the others tell what they can"


def test_rows_in_no_order_are_read_by_every_reader(tmp_path: Path) -> None:
    """A damaged file: each reader of the table reads the same sorted copy."""
    connection = sqlite3.connect(tmp_path / "recording.sqlite")
    connection.executescript(TABLES)
    for t in (*range(500, 1000), *range(500)):
        connection.execute(INSERTS["job"], (t, t * MIB, 0, 0, 0, 0, None, 1, None, None))
    connection.commit()
    connection.close()
    with open_recording(tmp_path / "recording.sqlite").series() as series:
        assert [row.t for row in series.between(JobRow, 10.0, 13.0)] == [10.0, 11.0, 12.0]
        assert series.use and series.use.at(12.5) == 12 * MIB
        assert series.use.between(0.0, 2000.0) == (0, 999 * MIB)


def test_other_jobs_end_where_the_job_began_to_die(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "recording.sqlite")
    connection.executescript(TABLES)
    for t, held in enumerate((900, 900, 900, 5)):
        connection.execute(INSERTS["job"], (t, held * MIB, 0, 0, 0, 0, None, 1, None, None))
        connection.execute(INSERTS["other_job"], (t, 7, 1, 1000, "python load.py", 0, t * MIB, MIB))
    connection.commit()
    connection.close()
    with open_recording(tmp_path / "recording.sqlite").series() as series:
        assert [row.use // MIB for row in series.between(OtherJobRow, 0.0, 9.0)] == [1, 2, 3]
