"""Verbs over runs that have ended: readers change nothing on disk, `why` stores what it found and stands by it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from helpers_report import make_run

from oomproof.cli.main import main
from oomproof.ledger import peak_history
from oomproof.ledger.ledger_store import open_ledger
from oomproof.recording.run_folders import Run


@pytest.fixture
def state(folders_of_their_own: Path) -> Path:
    return folders_of_their_own / "state"


@pytest.fixture
def finished(state: Path) -> Run:
    """It exited with code 0, and nobody has judged it."""
    run = make_run(state, "20260921-221500-fin", name="finished", seconds=60, claim={"key": "train"})
    ended = run.attempt.exit()
    run.attempt.exit_file.write_text(json.dumps({**ended, "status": 0, "code": 0, "signal": None}))
    run.attempt.verdict_file.unlink()
    return Run(run.folder)


@pytest.fixture
def killed(state: Path) -> Run:
    return make_run(state, "20260921-231500-kil", name="killed", seconds=60, claim={"key": "train"})


def on_disk(state: Path) -> dict[str, bytes]:
    """All files but SQLite's own beside a database, and the cache of the history's lines."""
    ours = (path for path in state.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal")))
    return {str(path.relative_to(state)): path.read_bytes() for path in ours if path.name != "summary.json"}


@pytest.mark.usefixtures("killed")
def test_readers_only_read(state: Path, finished: Run, capsys: pytest.CaptureFixture[str]) -> None:
    before = on_disk(state)
    for words in ("runs", "runs --all", "runs --json", "runs compare finished killed"):
        assert main(words.split()) == 0
    for name in ("finished", "killed"):
        for words in ("runs show", "runs show --json", "logs", "runs export --csv"):
            assert main([*words.split(), name]) == 0
        main(["wait", name])
    assert on_disk(state) == before
    assert not finished.attempt.summary_file.exists(), "no line is cached that nobody judged"


def test_why_judges_and_stores(finished: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "--short", "finished"]) == 0
    assert finished.attempt.verdict()["verdict"]["cause"] == "finished"
    ledger = open_ledger()
    assert [peak.run for peak in ledger.peaks("train")] == [finished.id]
    ledger.close()
    finished.attempt.verdict_file.write_text(json.dumps({**finished.attempt.verdict(), "note": "as it was"}))
    assert main(["why", "--short", "finished"]) == 0
    assert finished.attempt.verdict()["note"] == "as it was", "a stored verdict stands"


def test_a_verdict_is_judged_again_when_no_less_can_be_read(
    finished: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", "--short", "finished"]) == 0
    stored = finished.attempt.verdict()
    stored["verdict"]["cause"] = "other-error"
    finished.attempt.verdict_file.write_text(json.dumps(stored))
    capsys.readouterr()
    assert main(["why", "--again", "--json", "finished"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["cause"] == "finished"
    assert finished.attempt.verdict()["verdict"]["cause"] == "finished"
    finished.attempt.output_file.unlink()  # what it printed could be read then
    assert main(["why", "--again", "--json", "finished"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["verdict"]["cause"] == "finished" and "that verdict stands" in output.err


def test_the_next_start_learns_from_a_run_that_nobody_judged(finished: Run) -> None:
    ledger = open_ledger()
    peaks = peak_history.peaks_of(ledger, "train")
    assert [(peak.run, peak.whole) for peak in peaks] == [(finished.id, True)]
    assert peak_history.peaks_of(ledger, "train") == peaks, "once"
    ledger.close()


def test_what_another_part_adds_is_packed(finished: Run, tmp_path: Path) -> None:
    folder = finished.attempt.extra("leaks")
    folder.mkdir(parents=True)
    (folder / "found.txt").write_text("train.py:12 grows\n")
    assert main(["why", "finished", "--bundle", str(tmp_path / "bundle.tar.gz")]) == 0
    with tarfile.open(tmp_path / "bundle.tar.gz") as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"started.json", "recording.sqlite", "run/output.log"} <= names
    assert any(name.endswith("extra/leaks/found.txt") for name in names)
