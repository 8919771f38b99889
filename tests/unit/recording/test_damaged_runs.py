"""Damaged files: each run is read on its own, and what is damaged is told as such."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from oomproof.cli.main import main
from oomproof.diagnosis.conclusion import conclude
from oomproof.errors import OomproofError
from oomproof.recording import json_shapes, run_folders, run_summary, state_files
from oomproof.recording.json_shapes import parse
from oomproof.recording.reader import open_recording
from oomproof.recording.writer import Writer
from oomproof.reports import run_tables as report


def fuzzer() -> ModuleType:
    path = Path(__file__).parents[3] / "bench" / "fuzz_state.py"
    spec = importlib.util.spec_from_file_location("fuzz_state", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ended(name: str, created: float = 1.0) -> run_folders.Run:
    run = run_folders.new_run()
    info = {
        "schema": 1,
        "id": run.id,
        "name": name,
        "argv": ["python", "x.py"],
        "created": created,
        "boot_id": "b",
    }
    state_files.write_json(run.folder / "run.json", info)
    state_files.write_json(run.attempt / "started.json", {"boot_id": "b", "boottime": 5.0, "wall": created})
    state_files.write_json(
        run.attempt / "exit.json", {"boottime": 9.0, "wall": created + 4, "code": 0, "signal": None}
    )
    writer = Writer(run.attempt / "recording.sqlite", {"wall_offset": "1000.0"})
    for t in range(5, 9):
        writer.put("host", (float(t), 1 << 35, 1 << 34, None, 0, 0, 0, 0))
        writer.put("job", (float(t), t << 20, 0, 0, 0, 0, None, 1, None, None))
    writer.close()
    return run_folders.Run(run.folder)


def test_random_damage_never_blocks_the_history(tmp_path: Path) -> None:
    """A short round of bench/fuzz_state.py, over real runs."""
    fuzz = fuzzer()
    real = fuzz.real_state(tmp_path / "real")
    for seed in range(3):
        told, wrong = fuzz.one_round(real, seed)
        assert not wrong, (seed, told)


@pytest.mark.parametrize("how", ["removed", "emptied", "damaged"])
def test_a_lost_ledger_still_knows_the_reservation_of_a_real_run(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [sys.executable, "-m", "oomproof.cli.main", "run", "--need", "64M", "--name", "holder", "--"]
    job = [sys.executable, "-c", "print('runs', flush=True); input()"]
    run = subprocess.Popen(
        [*words, *job], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert run.stdin is not None and run.stdout is not None
        assert run.stdout.readline() == b"runs\n"
        folder = run_folders.find("holder").folder
        while not state_files.read_json(folder / "1" / "started.json"):
            time.sleep(0.01)
        (ledger,) = state_files.state_folder().glob("ledger-*.sqlite")
        if how == "removed":
            ledger.unlink()
        elif how == "emptied":
            ledger.write_bytes(b"")
        else:
            for tail in ("", "-wal"):
                path = ledger.with_name(ledger.name + tail)
                if path.exists():
                    path.write_bytes(
                        path.read_bytes().replace(b"CREATE TABLE entry", b"CREATE TABLE \xff\xfetry")
                    )
        assert main(["check", "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["ledger"]["running"]
        assert (found["name"], found["need_bytes"]) == ("holder", 64 << 20)
    finally:
        run.communicate(b"\n")


WRONG_FILES: dict[str, Any] = {
    "run.json, cut": b'{"id": "x", "argv": ["py',
    "run.json, another type": b'["a list"]',
    "run.json, wrong values": json.dumps(
        {"argv": 5, "created": "x", "code": 7, "settings": [], "env": "x"}
    ).encode(),
    "1/started.json, wrong values": json.dumps(
        {"wall": "x", "boottime": [], "backend": 5, "job": 7}
    ).encode(),
    "1/exit.json, wrong values": json.dumps({"wall": "x", "code": [], "boottime": {}}).encode(),
    "1/exit.json, emptied": b"",
    "1/verdict.json, wrong values": json.dumps({"verdict": {"cause": 5, "victim": "x"}}).encode(),
    "1/verdict.json, text": json.dumps({"verdict": "x", "lines": 7}).encode(),
    "1/actions.jsonl, wrong values": b'{"boottime": "x"}\n{"boottime": 1e999, "action": 5, "facts": 7}\n',
    "1/recording.sqlite, no database": b"x" * 5000,
    "1/summary.json, wrong values": json.dumps({"version": 1, "of": 5, "summary": 7}).encode(),
}


@pytest.mark.parametrize("what", WRONG_FILES)
def test_one_damaged_file_costs_its_own_run_only(
    what: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    good, bad = ended("good", 100.0), ended("bad", 200.0)
    (bad.folder / what.partition(",")[0]).write_bytes(WRONG_FILES[what])
    for words in (
        ["runs"], ["runs", "--json"], ["runs", "show", bad.id], ["runs", "show", "--json", bad.id], ["why", bad.id],
        ["runs", "compare", good.id, bad.id], ["why", "--html", str(tmp_path / "a.html"), bad.id],
    ):  # fmt: skip
        status = main(words)
        said = capsys.readouterr()
        assert "OOMPROOF_DEBUG" not in said.err and status in (0, 125), (words, said.err)
        if words == ["runs"]:
            assert status == 0 and "good" in said.out and bad.id in said.out.replace("bad", bad.id)
            if "run.json" in what or "started" in what or "exit" in what:
                assert "damaged" in said.out


def test_damaged_pages_of_a_recording_are_told_and_the_rest_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended("good", 100.0)
    bad = ended("bad", 200.0)
    path = bad.attempt / "recording.sqlite"
    whole = path.read_bytes()
    for place in range(0, len(whole), 997):
        broken = bytearray(whole)
        broken[place : place + 3] = b"\xff\x00\xfe"
        path.write_bytes(broken)
        for words in (["runs"], ["runs", "show", bad.id], ["runs", "export", bad.id]):
            main(words)
            said = capsys.readouterr()
            assert "OOMPROOF_DEBUG" not in said.err, (place, words, said.err)


def test_a_reader_that_has_gone_is_no_damage_of_the_recording() -> None:
    """`oomproof runs export RUN | head -1`"""
    run = ended("x")
    with sqlite3.connect(run.attempt / "recording.sqlite") as connection:  # more than a pipe takes
        times = [(float(t),) for t in range(100, 10_000)]
        connection.executemany("INSERT INTO job (t, anon, shmem, file, swap) VALUES (?, 1, 0, 0, 0)", times)
    words = [sys.executable, "-m", "oomproof", "runs", "export", run.id]
    job = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert job.stdout is not None and job.stderr is not None
    assert job.stdout.readline().startswith("wall_seconds,")
    job.stdout.close()
    assert (job.stderr.read(), job.wait()) == ("", 141)
    job.stderr.close()


def test_a_byte_that_is_no_text_in_the_tables_names(tmp_path: Path) -> None:
    """SQLite quotes the name in its message, and Python cannot decode the message."""
    run = ended("x")
    path = run.attempt / "recording.sqlite"
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE host", b"CREATE TABLE h\xff\xfet"))
    recording = open_recording(path)
    assert recording.problem is None or "cannot be read" in recording.problem
    assert recording.figures().peaks.lowest_available is None
    report.summarize(run)


def test_values_of_another_type_count_as_absent() -> None:
    value = {
        "argv": ["a", 5],
        "created": float("nan"),
        "code": {"script": 5, "git_commit": "c"},
        "more": object,
    }
    assert json_shapes.shaped(value, json_shapes.RUN) == {"code": {"git_commit": "c"}, "more": object}
    assert json_shapes.wrong(value, json_shapes.RUN) == ["argv", "created", "code.script"]
    assert json_shapes.shaped({"code": None, "name": None}, json_shapes.RUN) == {"code": None, "name": None}


def test_nesting_is_counted_outside_of_texts_only() -> None:
    assert parse(json.dumps({"text": "[" * 500 + '"\\' + "{" * 500})) == {
        "text": "[" * 500 + '"\\' + "{" * 500
    }
    with pytest.raises(ValueError, match="nested"):
        parse("[" * 100 + "]" * 100)


def test_a_kept_summary_is_used_until_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ended("x")
    first = report.summarize(run)
    assert first.peaks.use == 8 << 20 and not run.attempt.summary_file.exists(), "nobody has judged it"
    conclude(run)
    assert run.attempt.summary_file.exists()
    monkeypatch.setattr(run_summary, "make", lambda *_: pytest.fail("read anew"))
    assert report.summarize(run_folders.Run(run.folder)) == first
    monkeypatch.undo()
    with sqlite3.connect(run.attempt / "recording.sqlite") as connection:
        connection.execute("INSERT INTO job VALUES (9.5, ?, 0, 0, 0, 0, NULL, 1, NULL, NULL)", (1 << 30,))
    connection.close()
    assert report.summarize(run_folders.Run(run.folder)).peaks.use == 1 << 30
    assert run_summary.read(run) is not None, "a line of what is stored may be cached by a reader"


def test_no_run_of_now_is_kept_as_a_summary() -> None:
    run = ended("x")
    (run.attempt / "exit.json").unlink()
    report.summarize(run)
    assert not (run.attempt / "summary.json").exists()


def test_export_of_a_damaged_recording_is_one_line_and_a_hint() -> None:
    run = ended("x")
    (run.attempt / "recording.sqlite").write_bytes(b"x" * 4096)
    with pytest.raises(OomproofError, match="cannot be read"):
        from oomproof.cli import runs as verb

        verb._export(__import__("argparse").Namespace(run=run.id, csv=True))
