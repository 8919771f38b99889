"""Several attempts of one run: which is meant, whose command it is, and what a killed front leaves."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oomproof.cli import stop
from oomproof.errors import OomproofError
from oomproof.leaf.command_lines import command_key
from oomproof.ledger import peak_history
from oomproof.ledger.ledger_store import open_ledger
from oomproof.live.run_reader import RunReader
from oomproof.recording import run_folders, state_files
from oomproof.recording.run_folders import Run, find, new_run, to_type


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Its first attempt was killed, its second finished."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("OOMPROOF_LEDGER", raising=False)
    run = new_run()
    write(run.info_file, {"id": run.id, "name": "big", "argv": ["t", "--workers", "16"], "created": 5.0,
                          "settings": {"retry": 3}, "claim": {"key": "sixteen"}})  # fmt: skip
    ended(run, "1", code=None, signal=9)
    (run.folder / "2").mkdir()
    write(run.folder / "2/attempt.json", {"argv": ["t", "--workers", "5"], "claim": {"key": "five"}})
    ended(run, "2", code=0, signal=None)
    yield Run(run.folder)


def write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value))


def ended(run: Run, number: str, **status: int | None) -> None:
    folder = run.folder / number
    write(folder / "started.json", {"boottime": 1.0, "job": {"pid": 1, "start": 1}})
    counters = {"memcg_peak": 300 << 20, "largest_rss": 300 << 20}
    write(folder / "exit.json", {"boottime": 9.0, "wall": 99.0, "counters": counters, **status})


def test_the_newest_counts_unless_another_is_named(run: Run) -> None:
    assert run.attempt.number == 2 and run.argv == ["t", "--workers", "5"] and run.exit()["code"] == 0
    first = find("big/1")
    assert first.argv == ["t", "--workers", "16"] and first.exit()["signal"] == 9 and first.id == run.id
    assert first.created == run.created == 5.0
    assert first.is_earlier() and not find("big/2").is_earlier()
    assert to_type(first) == "big/1" and to_type(run) == "big"


def test_an_attempt_that_is_not_there(run: Run) -> None:
    with pytest.raises(OomproofError) as error:
        find("big/3")
    assert "2 attempts" in str(error.value)
    with pytest.raises(OomproofError):
        find("small/1")


def test_nobody_acts_on_an_attempt_that_is_over(run: Run) -> None:
    with pytest.raises(OomproofError) as error:
        run_folders.find_here("big/1")
    assert "has ended" in str(error.value)
    assert run_folders.find_here("big/2").number is None


def test_a_front_killed_before_the_next_start_has_made_no_attempt(run: Run) -> None:
    with pytest.raises(OomproofError):
        run.new_attempt()
    assert not (run.folder / "3").exists(), "without the lock nobody may begin one"
    lock = state_files.take_lock(run.guard_lock)
    assert lock is not None
    third = run.new_attempt()
    # while the front lives, that one is just starting
    assert third.attempt.number == 3 and third.state() == "starting" and third.may_be_retried()
    os.close(lock)
    assert run.attempt.number == 2 and Run(run.folder).state() == "ended" and len(run.attempts()) == 2


def test_an_earlier_attempt_has_ended_whatever_the_run_does(run: Run) -> None:
    lock = state_files.take_lock(run.waiting_lock)
    assert lock is not None
    assert Run(run.folder).state() == "waiting" and run.at(1).state() == "ended"


def test_the_history_learns_from_each_with_its_own_command(run: Run) -> None:
    ledger = open_ledger(None)
    (sixteen,) = peak_history.peaks_of(ledger, "sixteen")
    (five,) = peak_history.peaks_of(ledger, "five")
    assert not sixteen.whole and five.whole, "a killed attempt is a lower bound"
    assert peak_history.run_of(sixteen).argv[-1] == "16" and peak_history.run_of(five).argv[-1] == "5"
    # judged as well, each is one row
    peak_history.keep(run.at(1), 400 << 20, None, whole=False)
    peak_history.keep(run, 200 << 20, None, whole=True)
    assert [peak.use for peak in ledger.peaks("sixteen")] == [400 << 20]
    assert [peak.use for peak in ledger.peaks("five")] == [200 << 20]
    ledger.close()


def test_resuming_does_not_make_it_another_command() -> None:
    plain = command_key(["python", "-m", "t", "--lr", "1"], "/")
    assert (
        command_key(["python", "-m", "t", "--lr", "1", "--resume_from_checkpoint", "out/c-5"], "/") == plain
    )


def test_a_damaged_attempt_file_is_named(run: Run) -> None:
    run.attempt.info_file.write_text("{")
    again = Run(run.folder)
    assert again.argv == ["t", "--workers", "16"] and "attempt.json" in (again.damage() or "")


def test_a_live_view_follows_to_the_next_attempt(run: Run) -> None:
    waiting, guard = state_files.take_lock(run.waiting_lock), state_files.take_lock(run.guard_lock)
    assert waiting is not None and guard is not None
    reader = RunReader(run)
    second = reader.read(None, 10.0)
    assert second is not None and "--workers 5" in second.command
    (run.folder / "3").mkdir()
    write(run.folder / "3/attempt.json", {"argv": ["t", "--workers", "2"]})
    third = reader.read(None, 11.0)
    assert third is not None and third.state == "waiting" and "--workers 2" in third.command


def test_a_stop_between_the_end_and_the_decision_reaches_the_front(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with subprocess.Popen(["sleep", "60"]) as front:
        started = json.loads(run.attempt.started_file.read_text())
        write(run.attempt.started_file, {**started, "guard": {"pid": front.pid, "start": None}})
        guard = state_files.take_lock(run.guard_lock)
        assert guard is not None
        assert stop.run(argparse.Namespace(runs=["big"], grace=None, now=False, kill=False)) == 0
        assert front.wait(60) == -signal.SIGTERM
    assert "is not tried again" in capsys.readouterr().err
