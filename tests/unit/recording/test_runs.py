"""Run folders: names, states, lists; and the tables made of them."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest
from helpers_report import verdict

from oomproof.cli import logs
from oomproof.errors import OomproofError
from oomproof.leaf import small_files
from oomproof.recording import run_folders, state_files
from oomproof.records import replace
from oomproof.reports import chart, run_comparison, run_screen
from oomproof.reports import run_tables as report
from oomproof.units import parse_size


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "oomproof"


def made(name: str | None = None, created: float = 1.0, **info: object) -> run_folders.Run:
    run = run_folders.new_run()
    base = {"schema": 1, "id": run.id, "name": name, "argv": ["python", "x.py"], "created": created}
    state_files.write_json(run.folder / "run.json", {**base, **info})
    return run


def test_folders_are_private(state: Path) -> None:
    run = made()
    for folder in (state, state / "runs", run.folder, run.folder / "1"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((run.folder / "run.json").stat().st_mode) == 0o600


def test_find_by_id_part_and_name() -> None:
    old, new = made("train", 1.0), made("train", 2.0)
    assert run_folders.find(None).id == new.id
    assert run_folders.find("train").id == new.id
    assert run_folders.find(old.id).id == old.id
    assert run_folders.find(old.id[-3:]).id == old.id
    with pytest.raises(OomproofError, match="fits 2 runs"):
        run_folders.find(old.id[:8])
    with pytest.raises(OomproofError, match="no run is called"):
        run_folders.find("nonsense")


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_text_names_no_run(text: str) -> None:
    made("only")
    with pytest.raises(OomproofError, match="empty text"):
        run_folders.find(text)


def test_a_beginning_names_no_run_for_what_cannot_be_undone() -> None:
    only = made("only")
    assert run_folders.find(only.id[:8]).id == only.id
    with pytest.raises(OomproofError, match="only the beginning of an id"):
        run_folders.find(only.id[:8], beginnings=False)
    for text in ("only", only.id, only.id[-3:]):
        assert run_folders.find(text, beginnings=False).id == only.id


def test_no_runs_yet() -> None:
    with pytest.raises(OomproofError, match="no runs yet"):
        run_folders.find(None)
    assert "no runs yet" in report.history([])


def test_states(monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(boot_id="now")
    assert run.state("now") == "failed to start"
    guard = state_files.take_lock(run.folder / "guard.lock")
    assert run.state("now") == "starting"
    state_files.write_json(run.attempt / "started.json", {"boot_id": "now"})
    keeper = state_files.take_lock(run.folder / "keeper.lock")
    assert run.state("now") == "running"
    os.close(guard)
    assert run.state("now") == "unguarded"
    os.close(keeper)
    assert run.state("now") == "vanished"
    assert run.state("another boot") == "machine went down"
    state_files.write_json(run.attempt / "exit.json", {"code": 0})
    assert run.state("now") == "ended"


def test_lock_is_exclusive(tmp_path: Path) -> None:
    first = state_files.take_lock(tmp_path / "lock")
    assert first is not None and state_files.take_lock(tmp_path / "lock") is None
    assert small_files.is_locked(tmp_path / "lock")
    os.close(first)
    assert not small_files.is_locked(tmp_path / "lock")


def test_damaged_files_are_values(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('{"a": 1')
    assert state_files.read_json(tmp_path / "cut.json") == {}
    (tmp_path / "lines.jsonl").write_bytes(b'{"a": 1}\n{"b": \n\xff\xfe\n[1]\n{"c": 3}')
    assert state_files.read_lines(tmp_path / "lines.jsonl") == [{"a": 1}, {"c": 3}]


def test_a_write_that_is_cut_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up takes the first part, and refuses the rest."""
    path = tmp_path / "a.json"
    state_files.write_json(path, {"old": 1})
    real = os.write
    left = 10

    def short(fd: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken, left = real(fd, data[:left]), 0
        return taken

    monkeypatch.setattr(os, "write", short)
    with pytest.raises(OomproofError, match="No space left"):
        state_files.write_json(path, {"new": "x" * 100})
    assert state_files.read_json(path) == {"old": 1}
    assert os.listdir(tmp_path) == ["a.json"], "nothing half-written stays"


def test_a_size_of_four_hundred_digits_is_told_as_such() -> None:
    for text in ("9" * 400, "1" * 5000 + "G", "9999999999T"):
        with pytest.raises(OomproofError, match="cannot read"):
            parse_size(text)
    assert parse_size("20G") == 20 << 30


def test_save_of_a_run_that_is_not_running_fails(capsys: pytest.CaptureFixture[str]) -> None:
    from oomproof.cli.main import main

    made("done", boot_id="another boot")
    assert main(["save", "done"]) == 125
    assert "oomproof runs show done" in capsys.readouterr().err


def test_unusable_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(OomproofError, match="cannot use the state folder") as caught:
        run_folders.new_run()
    assert "XDG_STATE_HOME" in caught.value.hint


def test_history_and_show_of_a_run_without_anything() -> None:
    run = made("bare", boot_id="another boot")
    text = report.history([report.summarize(run)])
    assert "bare" in text and "machine went down" in text
    assert "there is no recording" in run_screen.show(run)


def test_one_that_waits_says_for_what(capfd: pytest.CaptureFixture[str]) -> None:
    run = made("b", settings={"limit": 1 << 30, "agent": True})
    from oomproof.cli.main import main

    lock = state_files.take_lock(run.waiting_lock)
    assert lock is not None
    state_files.write_json(run.waiting_file, {"reasons": ["needs 12.0 GiB: short by 3.0 GiB", "a holds it"]})
    text = run_screen.show(run)
    assert "needs 12.0 GiB: short by 3.0 GiB; a holds it" in text and "oomproof stop b" in text
    assert "1.0 GiB" in text, "the limit it will have"
    assert not any(word in text for word in ("agent", "missing", "logs -f"))
    assert main(["logs", "b"]) == 0 and "a holds it" in capfd.readouterr().err
    assert main(["save", "b"]) == 125
    told = capfd.readouterr().err
    assert "not started yet" in told and "runs show b" in told and "ended" not in told
    os.close(lock)


def test_hints_use_the_name_while_it_means_that_run() -> None:
    old = made("twin", 1.0)
    assert run_folders.to_type(old) == "twin"
    new = made("twin", 2.0)
    assert run_folders.to_type(old) == old.id and run_folders.to_type(new) == "twin"
    assert run_folders.to_type(made(None, 3.0)) == run_folders.find(None).id


def test_a_name_nearly_right_is_answered_with_the_one_meant() -> None:
    made("leak")
    with pytest.raises(OomproofError, match="did you mean 'leak'"):
        run_folders.find("leka")


def test_an_exception_is_the_end_in_the_list() -> None:
    summary = replace(report.summarize(made("broken")), state="ended", cause="other-error", problem=None)
    raised = replace(summary, headline="failed with KeyError: 'loss'")
    assert "KeyError" in report.history([raised])
    assert "other error" in report.history([replace(summary, headline="ended with an error of its own")])


def test_two_runs_of_one_name_are_compared_by_their_ids() -> None:
    old, new = made("twin", 1.0), made("twin", 2.0)
    head = run_comparison.compare(old, new).splitlines()[0]
    assert old.id in head and new.id in head


def test_differing_words() -> None:
    before = ["python", "t.py", "--batch", "64", "--workers=16", "--amp", "out=a", "--lr", "-1e-3"]
    after = ["python", "t.py", "--batch", "32", "--workers=4", "out=b", "--lr", "-2e-3"]
    assert run_comparison.differing_arguments(before, after) == [
        ("batch", "64", "32"),
        ("workers", "16", "4"),
        ("amp", "yes", "-"),
        ("out", "a", "b"),
        ("lr", "-1e-3", "-2e-3"),
    ]


def test_script_changed_since(tmp_path: Path) -> None:
    script = tmp_path / "x.py"
    script.write_text("1")
    from oomproof.runner.code_identity import hash_file

    run = made(code={"script": str(script), "script_sha256": hash_file(str(script))})
    assert not report.summarize(run).script_changed
    script.write_text("2")
    assert report.summarize(run).script_changed
    assert "changed after this run started" in report.history([report.summarize(run)])
    script.unlink()  # or its name cannot be written in this locale: nobody knows what it says now
    assert not report.summarize(run).script_changed


@pytest.mark.parametrize("width", [60, 80, 120])
def test_what_stands_in_the_column_of_runs_can_be_typed(width: int) -> None:
    """All ids of a day begin alike: of six runs in a narrow terminal, each was called `20261118-18…`."""
    runs = [made(argv=["python", "train.py", "--config", "x" * 60]) for _ in range(6)]
    shown = report.history([report.summarize(run) for run in runs], width).splitlines()[1:7]
    assert [run_folders.find(line.split()[0]).id for line in shown] == [run.id for run in runs]


def test_compare_lists_what_differs() -> None:
    one = made("one", argv=["p", "--batch", "64"], settings={"limit": 1 << 30}, env={"OMP_NUM_THREADS": "1"})
    two = made("two", argv=["p", "--batch", "32"], settings={"limit": None}, env={})
    rows = run_comparison.compare_rows(one, two)
    assert ("batch", "64", "32") in rows
    assert ("--limit", "1.0 GiB", "-") in rows
    assert ("$OMP_NUM_THREADS", "1", "-") in rows
    json.dumps(rows)


def test_chart_keeps_the_peak_and_the_limit() -> None:
    samples = [(float(t), 10.0) for t in range(1000)]
    samples[500] = (500.0, 100.0)
    drawn = chart.draw(samples, width=40, height=6, limit=120.0)
    assert "limit" in drawn
    assert chart.columns(samples, 40).count(100.0) == 1
    assert (
        len({len(line.split("│")[1].removesuffix(" limit")) for line in drawn.splitlines() if "│" in line})
        == 1
    )
    assert chart.draw([]) == "  (no samples)"
    assert chart.draw([(1.0, 5.0)])


def test_history_tells_when_the_machine_went_down_and_whether_in_order() -> None:
    cut, off = made("cut", 1.0), made("off", 2.0)
    for run, headline in (
        (
            cut,
            "the machine went down between 14:03:07 (last sample) and 14:05:10 (next boot), without a shutdown",
        ),
        (off, "the machine was shut down or restarted in order while the job ran"),
    ):
        told = verdict(run.id).to_json()
        told["verdict"] |= {"cause": "machine-down", "headline": headline, "why": "7 GiB was available"}
        state_files.write_json(run.attempt / "verdict.json", told)
    lines = report.history([report.summarize(run) for run in (off, cut)], 200).splitlines()
    assert "machine shut down" in lines[1] and "in order" in lines[2]
    assert "machine went down" in lines[4]
    assert lines[5].strip().startswith("the machine went down between 14:03:07 (last sample)")
    assert lines[6].strip() == "7 GiB was available"


def test_how_long_a_run_took_is_not_read_off_a_clock_that_jumps() -> None:
    run = made("jumped")
    started = {"boot_id": "b", "boottime": 100.0, "wall": 1_000_000.0, "job": {"pid": 1, "start": 1}}
    state_files.write_json(run.attempt / "started.json", started)
    ended = {"boottime": 130.0, "wall": 1_086_430.0, "status": 0, "code": 0, "signal": None}
    state_files.write_json(run.attempt / "exit.json", ended)
    assert report.summarize(run).seconds == pytest.approx(30.0)


def test_who_follows_from_the_end_misses_nothing_of_the_next_file(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that has grown past its cap gets another name, and the next one holds lines before we see it."""
    run = made("b")
    output = run.attempt.output_file
    output.write_bytes(b"before\n")
    looks: list[str] = []

    def lives(_: object) -> bool:
        looks.append("")
        if len(looks) == 2:
            output.rename(output.with_name("output.first.log"))
            output.write_bytes(b"after\n")
        return len(looks) < 4

    monkeypatch.setattr(run_folders.Run, "keeper_lives", lives)
    monkeypatch.setattr(logs, "_just_starting", lambda _: False)
    monkeypatch.setattr(logs, "_TICK", 0.0)
    assert logs.follow(run, from_end=True) == len("after\n")
    assert capfd.readouterr().out == "after\n"
