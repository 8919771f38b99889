"""Runs that an earlier version left behind open after every change: tests/fixtures/state_0.1, real runs of 0.1.0."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from oomproof.causes import cause_of
from oomproof.cli.main import main
from oomproof.ledger import peak_history
from oomproof.ledger.ledger_folder import ledger_name
from oomproof.ledger.ledger_store import open_ledger
from oomproof.machine import host_identity, processes
from oomproof.recording import run_folders

KEPT = Path(__file__).parents[2] / "fixtures" / "state_0.1"
BOOT = "36a3ee20-dbc8-4f30-a172-86245d511dc0"
CAUSES = {
    "finished": "finished",
    "limited": "oom-kill-memcg",
    "stopped": "stopped-by-user",
    "vanished": "guard-lost",
    "unjudged": "finished",
}


@pytest.fixture(autouse=True)
def state(folders_of_their_own: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, on the machine and in the boot it was made on."""
    folder = folders_of_their_own / "state" / "oomproof"
    shutil.copytree(KEPT, folder, ignore=shutil.ignore_patterns("*-shm"))
    (folder / "ledger-workstation.sqlite").rename(folder / ledger_name())
    for module in (host_identity, run_folders):
        monkeypatch.setattr(module, "host_name", lambda: "workstation")
        monkeypatch.setattr(module, "machine_id", lambda: "0123456789abcdef")
    monkeypatch.setattr(processes, "boot_id", lambda *_: BOOT)
    return folder


def test_their_states(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {run.name: run.state() for run in run_folders.list_runs()}
    assert states == dict.fromkeys(CAUSES, "ended") | {"vanished": "vanished"}
    assert {run.state("a later boot") for run in run_folders.list_runs()} == {"ended", "machine went down"}
    monkeypatch.setattr(run_folders, "host_name", lambda: "laptop")
    assert run_folders.find("vanished").state("another boot") == run_folders.ELSEWHERE


def test_what_is_in_them() -> None:
    for run in run_folders.list_runs():
        assert run.damage() is None and run.info["version"] == "0.1.0"
        assert run.info["settings"]["margin"] == 5 << 30 and run.info["settings"]["freeze_max"] == 21600.0
        assert run.started()["rung"]["name"] == "cgroup v1"
    assert run_folders.find("limited").info["settings"]["limit"] == 150 << 20
    assert (
        run_folders.find("limited").exit()["signal"] == 9 and run_folders.find("finished").exit()["code"] == 0
    )
    assert run_folders.find("vanished").exit() == {}


def test_the_history(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, cause in CAUSES.items():
        line = next(line for line in lines if line.startswith(name))
        assert ("vanished" if name == "vanished" else cause_of(cause).title) in line and " MiB" in line
    assert main(["runs", "--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["runs"]}
    assert {name: one["problem"] for name, one in found.items()} == dict.fromkeys(CAUSES)
    # its highest sample is 100511744; what it took after that, its cgroup knew
    assert (found["finished"]["peak_bytes"], found["finished"]["peak_source"]) == (132198400, "cgroup")


@pytest.mark.parametrize("name", CAUSES)
def test_one_in_full(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["runs", "show", name]) == 0
    shown = capsys.readouterr().out
    assert "memory of the job" in shown and "train" in shown and "missing" not in shown
    assert main(["runs", "show", "--json", name]) == 0
    phases = {row["phase"]: row for row in json.loads(capsys.readouterr().out)["phases"]}
    assert phases["train"]["entered"] == 1 and phases["load"]["peak_bytes"] > 20 << 20
    assert main(["logs", name]) == 0
    assert main(["runs", "export", "--csv", name]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].startswith("wall_seconds,anon") and len(rows) >= 4
    assert main(["why", name, "--json", "--html", str(tmp_path / "page.html")]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["cause"] == CAUSES[name]


def test_what_they_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "unjudged"]) == 0
    assert capfd.readouterr().out == "step 0\nstep 1\nstep 2\ndone\n"


def test_two_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "compare", "finished", "limited"]) == 0
    assert "peak in train" in capsys.readouterr().out


def test_the_ledger() -> None:
    ledger = open_ledger()
    peaks = ledger.peaks(run_folders.find("finished").info["claim"]["key"])
    ledger.close()
    assert [(peak.use, peak.whole) for peak in peaks] == [(100511744, True)]


@pytest.fixture
def retried(state: Path) -> run_folders.Run:
    """Two attempts of one run, each as a real one left it: killed at its limit, then finished."""
    run = run_folders.find("limited")
    shutil.copytree(run_folders.find("finished").attempt, run.folder / "2")
    told = run.attempt.verdict()
    run.attempt.verdict_file.write_text(json.dumps({**told, "run": run.id, "attempt": 2}))
    return run


def test_the_newest_attempt_speaks_for_the_run(
    retried: run_folders.Run, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert retried.attempt.number == 2 and retried.state() == "ended" and retried.exit()["code"] == 0
    assert main(["runs", "--json"]) == 0
    row = next(one for one in json.loads(capfd.readouterr().out)["runs"] if one["id"] == retried.id)
    assert (row["cause"], row["code"], row["peak_bytes"]) == ("finished", 0, 132198400)
    assert main(["runs", "show", "limited"]) == 0
    shown = capfd.readouterr().out
    assert "attempt  2 of 2" in shown and "verdict  finished" in shown
    assert main(["logs", "limited"]) == 0
    assert capfd.readouterr().out.endswith("done\n")
    assert main(["runs", "export", "--csv", "limited"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 6
    page, bundle = tmp_path / "page.html", tmp_path / "bundle.tar.gz"
    assert main(["why", "limited", "--json", "--html", str(page), "--bundle", str(bundle)]) == 0
    assert json.loads(capfd.readouterr().out)["verdict"]["cause"] == "finished"
    with tarfile.open(bundle) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
        exited = packed.extractfile(next(name for name in packed.getnames() if name.endswith("/exit.json")))
        assert exited is not None and json.loads(exited.read())["code"] == 0
    assert {"started.json", "recording.sqlite", "run/output.log"} <= names
    assert main(["runs", "compare", "limited", "finished"]) == 0


def test_patterns_look_at_every_attempt(retried: run_folders.Run) -> None:
    from oomproof.diagnosis.endings import endings_of_runs

    found = [(ending.label, ending.cause) for ending in endings_of_runs([retried])]
    assert found == [("limited/1", "oom-kill-memcg"), ("limited/2", "finished")]


def test_what_another_part_adds_is_packed(tmp_path: Path) -> None:
    folder = run_folders.find("finished").attempt.extra("leaks")
    folder.mkdir(parents=True)
    (folder / "found.txt").write_text("train.py:12 grows\n")
    assert main(["why", "finished", "--bundle", str(tmp_path / "bundle.tar.gz")]) == 0
    with tarfile.open(tmp_path / "bundle.tar.gz") as packed:
        assert any(name.endswith("/extra/leaks/found.txt") for name in packed.getnames())


def on_disk(state: Path) -> dict[str, bytes]:
    """All files but SQLite's own beside a database, and the cache of the history's lines."""
    ours = (path for path in state.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal")))
    return {str(path.relative_to(state)): path.read_bytes() for path in ours if path.name != "summary.json"}


def test_readers_only_read(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = run_folders.find("unjudged").info["claim"]["key"]
    before = on_disk(state)
    for words in (
        ["runs"],
        ["runs", "--all"],
        ["runs", "--json"],
        ["runs", "compare", "finished", "vanished"],
    ):
        assert main(words) == 0
    for name in CAUSES:
        for words in (["runs", "show"], ["runs", "show", "--json"], ["logs"], ["runs", "export", "--csv"]):
            assert main([*words, name]) == 0
        main(["wait", name])
    assert on_disk(state) == before
    assert not run_folders.find("vanished").attempt.summary_file.exists(), (
        "no line is cached that nobody judged"
    )
    ledger = open_ledger()
    assert len(ledger.peaks(key)) == 1
    ledger.close()


def test_why_judges_and_stores(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folders.find("unjudged")
    assert main(["why", "--short", "unjudged"]) == 0
    assert run.attempt.verdict()["verdict"]["cause"] == "finished"
    ledger = open_ledger()
    assert next(peak.run for peak in ledger.peaks(run.info["claim"]["key"])) == run.id
    ledger.close()
    run.attempt.verdict_file.write_text(
        json.dumps({**run.attempt.verdict(), "kills": [], "note": "as it was"})
    )
    assert main(["why", "--short", "unjudged"]) == 0
    assert run.attempt.verdict()["note"] == "as it was", "a stored verdict stands"


def test_a_verdict_is_judged_again_when_no_less_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    finished, limited = run_folders.find("finished"), run_folders.find("limited")
    told = finished.attempt.verdict()
    told["verdict"]["cause"] = "other-error"
    finished.attempt.verdict_file.write_text(json.dumps(told))
    assert main(["why", "--again", "--json", "finished"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["cause"] == "finished"
    assert finished.attempt.verdict()["verdict"]["cause"] == "finished"
    limited.attempt.output_file.unlink()  # what it printed could be read then
    assert main(["why", "--again", "--json", "limited"]) == 0
    output = capsys.readouterr()
    assert (
        json.loads(output.out)["verdict"]["cause"] == "oom-kill-memcg" and "that verdict stands" in output.err
    )


def test_the_next_start_learns_from_a_run_that_nobody_judged() -> None:
    run = run_folders.find("unjudged")
    ledger = open_ledger()
    found = peak_history.peaks_of(ledger, run.info["claim"]["key"])
    assert next((peak.run, peak.whole) for peak in found) == (run.id, True) and len(found) == 2
    assert peak_history.peaks_of(ledger, run.info["claim"]["key"]) == found, "once"
    ledger.close()
