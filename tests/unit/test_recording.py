"""The recording: written off-thread, readable while live, after a cut, by another version."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

from oomproof.recording.reader import open_recording
from oomproof.recording.writer import Writer


def written(path: Path, rows: int = 5) -> Path:
    writer = Writer(path, {"boot_id": "b", "wall_offset": "1000.0"})
    for t in range(rows):
        writer.put("host", (float(t), 32 << 30, (20 - t) << 30, None, 0, 0, 0, 0))
        writer.put("job", (float(t), t << 20, t << 10, 0, 0, 0, None, 1, None, None))
    writer.event(9.0, "ask", "why", scope="limit")
    writer.close()
    assert writer.trouble is None and writer.dropped == 0
    return path


def test_round_trip(tmp_path: Path) -> None:
    recording = open_recording(written(tmp_path / "r.sqlite"))
    peaks = recording.peaks()
    assert (peaks.use, peaks.anon, peaks.lowest_available) == ((4 << 20) + (4 << 10), 4 << 20, 16 << 30)
    assert recording.last_sample_time() == 4.0
    assert recording.wall_offset == 1000.0
    assert recording.rows("SELECT kind, text FROM event") == [("ask", "why")]


def test_absent_empty_and_foreign_files(tmp_path: Path) -> None:
    assert open_recording(tmp_path / "none").problem == "there is no recording"
    (tmp_path / "empty").touch()
    assert "cannot be read" in str(open_recording(tmp_path / "empty").problem)
    (tmp_path / "text").write_bytes(b"not a database, \0 at all" * 100)
    assert "cannot be read" in str(open_recording(tmp_path / "text").problem)
    assert open_recording(tmp_path / "text").peaks().use is None


def test_cut_in_the_middle(tmp_path: Path) -> None:
    """A file truncated by a dying disk: no traceback, whatever is left."""
    path = written(tmp_path / "r.sqlite", rows=1200)
    whole = path.read_bytes()
    for part in (0.2, 0.5, 0.9):
        path.write_bytes(whole[: int(len(whole) * part)])
        recording = open_recording(path)
        recording.peaks()
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
        assert open_recording(path).peaks().use is not None
    finally:
        folder.chmod(0o700)


def test_queue_is_bounded_and_drops_are_counted(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "no" / "such" / "folder.sqlite", {})
    for t in range(20_000):
        writer.put("host", (float(t), 0, 0, 0, 0, 0, 0, 0))
    writer.close()
    assert writer.trouble is not None and "not written" in writer.trouble
    assert writer.dropped > 0


def test_survives_sigkill_of_the_writer(tmp_path: Path) -> None:
    """What was committed before SIGKILL is there after it."""
    path = tmp_path / "r.sqlite"
    script = (
        "import sys, time; from pathlib import Path; from oomproof.recording.writer import Writer\n"
        f"w = Writer(Path({str(path)!r}), {{'boot_id': 'b'}})\n"
        "for t in range(1000):\n"
        "    w.put('host', (float(t), 1, 2, 3, 4, 5, 6, 7)); w.event(float(t), 'x', 'y')\n"
        "    if t == 3: time.sleep(1.5); print('go', flush=True)\n"
        "    time.sleep(0.01)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "go\n"
    process.kill()
    process.wait()
    assert len(open_recording(path).rows("SELECT * FROM host")) >= 4
