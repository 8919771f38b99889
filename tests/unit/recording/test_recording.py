"""The recording: written off-thread, readable while live, after a cut, by another version."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers_disk import fill

from oomproof.recording import reader
from oomproof.recording import writer as recording_writer
from oomproof.recording import writer as writer_module
from oomproof.recording.reader import open_recording
from oomproof.recording.sqlite_files import INSERTS
from oomproof.recording.writer import Writer


def written(path: Path, rows: int = 5) -> Path:
    writer = Writer(path, {"boot_id": "b", "wall_offset": "1000.0"})
    for t in range(rows):
        writer.put("host", (float(t), 32 << 30, (20 - t) << 30, None, 0, 0, 0, 0))
        writer.put("job", (float(t), t << 20, t << 10, 0, 0, 0, None, 1, None, None))
    writer.event(9.0, "request", "why", scope="limit")
    writer.close()
    assert writer.trouble is None and writer.dropped == 0
    return path


def test_round_trip(tmp_path: Path) -> None:
    recording = open_recording(written(tmp_path / "r.sqlite"))
    peaks = recording.figures().peaks
    assert (peaks.use, peaks.anon, peaks.lowest_available) == ((4 << 20) + (4 << 10), 4 << 20, 16 << 30)
    assert recording.last_sample_time() == 4.0
    assert recording.wall_offset == 1000.0
    assert recording.rows("SELECT kind, text FROM event") == [("request", "why")]


def test_figures_are_read_once_of_a_file_that_does_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge and the history ask in turn: at the cap each pass took a second."""
    passes: list[object] = []
    read = reader.read_figures
    monkeypatch.setattr(reader, "read_figures", lambda connection: (passes.append(1), read(connection))[1])
    path = written(tmp_path / "r.sqlite")
    first = [open_recording(path).figures() for _ in range(3)]
    assert first[0] == first[2] and len(passes) == 1
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(INSERTS["job"], (9.0, 99 << 20, 0, 0, 0, 0, None, 1, None, None))
        connection.commit()
        assert open_recording(path).figures().peaks.use == 99 << 20, "while it is written, too"
    connection.close()
    assert open_recording(written(tmp_path / "other.sqlite", rows=3)).figures() != first[0]


def test_absent_empty_and_foreign_files(tmp_path: Path) -> None:
    assert open_recording(tmp_path / "none").problem == "there is no recording"
    (tmp_path / "empty").touch()
    assert "cannot be read" in str(open_recording(tmp_path / "empty").problem)
    (tmp_path / "text").write_bytes(b"not a database, \0 at all" * 100)
    assert "cannot be read" in str(open_recording(tmp_path / "text").problem)
    assert open_recording(tmp_path / "text").figures().peaks.use is None


def test_cut_in_the_middle(tmp_path: Path) -> None:
    """A file truncated by a dying disk: no traceback, whatever is left."""
    path = written(tmp_path / "r.sqlite", rows=1200)
    whole = path.read_bytes()
    for part in (0.2, 0.5, 0.9):
        path.write_bytes(whole[: int(len(whole) * part)])
        recording = open_recording(path)
        recording.figures()
        recording.last_sample_time()


def test_newer_schema_is_told(tmp_path: Path) -> None:
    path = written(tmp_path / "r.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value='99' WHERE key='schema'")
    assert "newer oomproof" in str(open_recording(path).problem)


def test_read_only_folder_with_odd_name(tmp_path: Path) -> None:
    folder = tmp_path / "a b?c#d%20"
    folder.mkdir()
    path = written(folder / "r.sqlite")
    folder.chmod(0o500)
    try:
        assert open_recording(path).figures().peaks.use is not None
    finally:
        folder.chmod(0o700)


def test_queue_is_bounded_and_drops_are_counted(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "no" / "such" / "folder.sqlite", {})
    for t in range(20_000):
        writer.put("host", (float(t), 0, 0, 0, 0, 0, 0, 0))
    writer.close()
    assert writer.trouble is not None and "not written" in writer.trouble
    assert writer.dropped > 0


def count(path: Path, table: str = "job") -> int:
    rows = open_recording(path).rows(f"SELECT count(*) FROM {table}")
    return int(str(rows[0][0])) if rows else 0


def until(happened: object) -> None:
    """Waits for what another thread does; the test's own timeout ends it."""
    while not happened():  # type: ignore[operator]
        time.sleep(0.005)


def job(t: float, use: object = 1) -> tuple[object, ...]:
    return (t, use, 0, 0, 0, 0, None, 1, None, None)


def test_a_row_that_cannot_be_stored_costs_itself_only(tmp_path: Path) -> None:
    """A path that is no text and a number beyond 2^63 are stored without; what is no row at all is counted."""
    path = tmp_path / "r.sqlite"
    writer = Writer(path, {"folder": "/data/caf\udce9", "boot_id": "b"})
    writer.put("job", job(1.0))
    writer.put("job", job(2.0, 1 << 70))
    writer.event(3.0, "saved", "/data/caf\udce9/ckpt", path=Path("/x"), odd=object)
    writer.put("process", (4.0, 7, 1, "main", "py\udcff", 1, 2, 3, 4, None))
    writer.put("job", (5.0,))
    writer.put("no such table", (5.0,))
    writer.put("job", job(6.0, [1]))
    writer.put("job", job(7.0))
    writer.close()
    recording = open_recording(path)
    assert recording.rows("SELECT t, anon FROM job ORDER BY t") == [
        (1.0, 1),
        (2.0, None),
        (6.0, "[1]"),
        (7.0, 1),
    ]
    assert recording.rows("SELECT text FROM event") == [(r"/data/caf\udce9/ckpt",)]
    assert count(path, "process") == 1
    assert writer.dropped == 2 and "2 rows not written" in str(writer.trouble)


def test_a_disk_that_was_full_is_written_to_again(small_disk: Path) -> None:
    path = small_disk / "r.sqlite"
    writer = Writer(path, {"boot_id": "b"})
    writer.event(1.0, "x", "y")
    until(lambda: count(path, "event") == 1)
    fill(small_disk)
    while not writer.dropped:
        writer.event(2.0, "x", "y" * 50_000)
        time.sleep(0.005)
    (small_disk / "filler").unlink()
    before = count(path, "event")
    writer.event(3.0, "x", "again")
    until(lambda: count(path, "event") > before)
    writer.close()
    assert "full" in str(writer.trouble)


def test_a_folder_that_comes_back_is_written_to_again(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    path = folder / "r.sqlite"
    writer = Writer(path, {"boot_id": "b"})
    writer.event(1.0, "x", "y")
    until(lambda: count(path, "event") == 1)
    folder.rename(tmp_path / "gone")
    writer.event(2.0, "x", "lost")
    until(lambda: writer.dropped == 1)
    (tmp_path / "gone").rename(folder)
    writer.event(3.0, "x", "y")
    until(lambda: count(path, "event") == 2)
    shutil.rmtree(folder)
    folder.mkdir()
    writer.event(4.0, "x", "y")
    until(lambda: count(path, "event") == 1)
    writer.close()
    assert writer.dropped == 1 and open_recording(path).meta["dropped"] == "1"


def test_a_recording_damaged_under_the_writer_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    path.write_bytes(b"no database at all " * 500)
    writer = Writer(path, {"boot_id": "b"})
    writer.put("job", job(1.0))
    until(lambda: writer.dropped == 1)
    writer.put("job", job(2.0))
    writer.close()
    assert count(path) == 1
    assert (tmp_path / "r.sqlite.damaged").read_bytes().startswith(b"no database")


def test_events_that_matter_find_a_place_behind_any_number_of_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Writer, "_work", lambda _: None)  # a disk that hangs: nothing leaves the queue
    writer = Writer(tmp_path / "r.sqlite", {})
    for t in range(5000):
        writer.put("job", job(float(t)))
        writer.event(float(t), "agent:allocator", "")
    before = writer.dropped
    writer.event(1.0, "exception", "the last")
    assert before > 0 and writer.dropped == before


def test_without_a_thread_now_it_writes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    writer = Writer(tmp_path / "r.sqlite", {})
    writer.put("job", job(1.0))
    assert "can't start new thread" in str(writer.trouble)
    monkeypatch.setattr(threading.Thread, "start", start)
    writer.close()
    assert writer.trouble is None and count(tmp_path / "r.sqlite") == 1


def test_calm_rows_wait_a_little_and_an_event_takes_them_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A synced commit each second was half of what the guard cost at rest."""
    monkeypatch.setattr(writer_module, "_SOON_SECONDS", 0.1)
    path = tmp_path / "recording.sqlite"
    writer = Writer(path, {})
    writer.put("job", job(1.0))
    until(lambda: path.exists() and count(path) == 1)  # not calm yet: within a second
    writer.calm = True
    monkeypatch.setattr(writer_module, "_CALM_SECONDS", 300.0)  # far beyond what anybody waits here
    writer.put("job", job(2.0))
    writer.commit_if_due()
    assert not writer._urgent, "it waits for others to come"
    monkeypatch.setattr(writer_module, "_CALM_SECONDS", 0.0)
    writer.commit_if_due()
    until(lambda: count(path) == 2)  # with the look that found it due
    monkeypatch.setattr(writer_module, "_CALM_SECONDS", 300.0)
    writer.put("job", job(3.0))
    writer.commit_if_due()
    writer.event(3.1, "warn", "memory is getting short")
    until(lambda: count(path) == 3)  # at once, with all that came before
    writer.put("job", job(4.0))
    writer.calm = False  # room thins: what waits goes with the next row
    writer.put("job", job(5.0))
    until(lambda: count(path) == 5)
    writer.close()


def test_survives_sigkill_of_the_writer(tmp_path: Path) -> None:
    """What was committed before SIGKILL is there after it."""
    path = tmp_path / "r.sqlite"
    script = (
        "import sys, time; from pathlib import Path; from oomproof.recording.writer import Writer\n"
        f"w = Writer(Path({str(path)!r}), {{'boot_id': 'b'}})\n"
        "for t in range(1_000_000):\n"
        "    w.put('host', (float(t), 1, 2, 3, 4, 5, 6, 7)); w.event(float(t), 'x', 'y')\n"
        "    time.sleep(0.01)\n"
    )

    def rows() -> int:
        return len(open_recording(path).rows("SELECT * FROM host")) if path.exists() else 0

    process = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 60
    while (before := rows()) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert rows() >= before >= 4


def test_past_its_cap_the_old_part_is_thinned_and_the_end_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_writer, "_EVERY", 1)
    monkeypatch.setattr(recording_writer, "_FRESH", 500)
    monkeypatch.setattr(recording_writer, "_ROWS", 1000)
    path, cap = tmp_path / "r.sqlite", 600 << 10
    written(path)  # makes the tables
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous=OFF")
    thinner = recording_writer.Thinner(cap)
    told, largest = [], 0
    rows = 40_000
    connection.execute("BEGIN")
    for t in range(rows):
        use = (1 << 40) if t == 1234 else t  # one peak, in the oldest part
        connection.execute(INSERTS["host"], (t / 10, 32 << 30, 5 if t == 2345 else 1 << 30, None, 0, 0, 0, 0))
        connection.execute(INSERTS["job"], (t / 10, use, 0, 0, 0, 0, None, 1, None, None))
        connection.execute(INSERTS["process"], (t / 10, t // 20_000, 1, "main", "python", use, 0, 0, 0, None))
        if t % 50 == 0:
            text = thinner.step(connection)
            told += [text] if text else []
            connection.execute("COMMIT")
            largest = max(largest, path.stat().st_size)
            connection.execute("BEGIN")
    connection.execute("COMMIT")
    assert told and "one in 10 s" in told[0]
    assert largest < 2 * cap, "without it: 3 MB"
    recording = open_recording(path)
    peaks = recording.figures().peaks
    assert (peaks.use, peaks.lowest_available) == (1 << 40, 5), "extremes stay"
    assert recording.rows("SELECT count(*) FROM job WHERE t >= ?", ((rows - 500) / 10,)) == [(500,)]
    assert recording.rows("SELECT count(*) FROM event") == [(1,)], "events are never thinned"
    firsts = recording.rows("SELECT pid, min(t) FROM process GROUP BY pid")
    assert firsts == [(0, 0.0), (1, 2000.0)], "when each process was first seen is kept"
    host = recording.rows("SELECT count(*) FROM job LEFT JOIN host ON host.t = job.t WHERE host.t IS NULL")
    assert host == [(0,)], "tables stay aligned"
    again = recording_writer.Thinner(cap)
    again.resume(connection)
    assert again._level == thinner._level


def test_the_writer_tells_of_its_thinning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_writer, "_EVERY", 1)
    writer = Writer(tmp_path / "r.sqlite", {}, cap=1)
    writer.put("job", (1.0, 1, 0, 0, 0, 0, None, 1, None, None))
    writer.close()
    assert writer.trouble is None
    recording = open_recording(tmp_path / "r.sqlite")
    assert [row[0] for row in recording.rows("SELECT kind FROM event")] == ["thinned"]
    assert recording.meta["thinned"] == "10"
