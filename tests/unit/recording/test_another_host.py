"""Homes are shared over networks: a run of another machine is neither judged nor touched from here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers_report import make_run, verdict

from oomproof.diagnosis.conclusion import conclude, conclusion_of
from oomproof.diagnosis.conclusion import verdict_of as why_verdict
from oomproof.evidence.outage_finder import find_outages
from oomproof.machine import host_identity
from oomproof.recording import prune, run_folders, state_files

OTHER_BOOT = "99999999-2222-3333-4444-555555555555"


def other(state: Path, *, ended: bool = False, **info: Any) -> run_folders.Run:
    """A run that another machine started, and that has written no end."""
    told = {"host": "node7", "machine": "0" * 16, "boot_id": OTHER_BOOT, **info}
    run = make_run(state, seconds=30, gpu=False, created=time.time() - 60, **told)
    (run.attempt / "verdict.json").unlink()
    if not ended:
        (run.attempt / "exit.json").unlink()
    return run


@pytest.fixture
def state(folders_of_their_own: Path) -> Path:
    return folders_of_their_own / "state"


def oomproof(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "oomproof", *words],
        env={**os.environ, "COLUMNS": "140"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_it_is_shown_and_no_verdict_is_kept(state: Path) -> None:
    run = other(state)
    assert run.state() == run_folders.ELSEWHERE and run.elsewhere() == "node7"
    assert conclusion_of(run) is None
    assert "on node7, not visible from here" in oomproof("runs").stdout
    assert "on node7, not visible from here" in oomproof("runs", "show", run.id).stdout
    told = oomproof("why", run.id).stdout
    assert "it is on node7, not visible from here" in told and "machine went down" not in told
    assert not (run.attempt / "verdict.json").exists()
    assert find_outages() == []


def test_a_wrong_verdict_of_an_earlier_version_is_not_believed(state: Path) -> None:
    run = other(state)
    kept = verdict(run.id).to_json()
    kept["verdict"]["cause"] = "machine-down"
    (run.attempt / "verdict.json").write_text(json.dumps({**kept, "lines": "the machine went down"}))
    assert conclusion_of(run) is None and why_verdict(run.attempt).cause != "machine-down"
    # but what its own host wrote down is
    (run.attempt / "verdict.json").write_text(json.dumps({**kept, "lines": "down", "host": "node7"}))
    found = conclusion_of(run)
    assert found is not None and found.cause == "machine-down" == why_verdict(run.attempt).cause


def test_one_that_has_ended_there_is_judged_by_its_files_alone(state: Path) -> None:
    run = other(state, ended=True)
    assert run.state() == "ended"
    assert conclusion_of(run) is not None
    conclude(run)
    assert not (run.attempt / "verdict.json").exists(), "its own host knows more"


@pytest.mark.parametrize("verb", ["stop", "resume", "pause", "watch", "save", "wait"])
def test_nothing_is_done_to_it(state: Path, verb: str) -> None:
    run = other(state)
    pid = os.getpid()  # the same number is another process here: this one
    started = json.loads((run.attempt / "started.json").read_text())
    (run.attempt / "started.json").write_text(json.dumps({**started, "job": {"pid": pid, "start": None}}))
    locks = [
        state_files.take_lock(run.folder / "keeper.lock")
    ]  # as a file system shows it that passes locks on
    if verb != "watch":
        locks.append(state_files.take_lock(run.folder / "waiting.lock"))
    done = oomproof(verb, run.id)
    for lock in locks:
        os.close(lock)  # type: ignore[arg-type]
    assert done.returncode == 125, done.stderr
    assert "nightly is on node7, not visible from here" in done.stderr and "ssh node7" in done.stderr


def test_logs_are_read(state: Path) -> None:
    run = other(state)
    assert "step 117" in oomproof("logs", run.id).stdout


def test_it_is_not_pruned_while_it_writes(state: Path) -> None:
    run = other(state)
    assert prune.stored(run).alive
    assert prune.remove(run) == "it lives"
    assert "step 117" in (run.attempt / "output.log").read_text()
    long_ago = time.time() - 30 * 86400
    for path in run.attempt.folder.iterdir():
        os.utime(path, (long_ago, long_ago))
    assert not prune.stored(run).alive


@pytest.mark.parametrize(
    ("host", "machine", "here"),
    [
        ("", "", True),  # written by an early version
        ("HERE", "", True),
        ("HERE", "MINE", True),
        ("HERE", "0" * 16, False),  # all nodes are called localhost
        ("node7", "MINE", False),  # all nodes boot one image
        ("node7", "", False),
    ],
)
def test_what_makes_another_machine(
    state: Path, monkeypatch: pytest.MonkeyPatch, host: str, machine: str, here: bool
) -> None:
    monkeypatch.setattr(run_folders, "machine_id", lambda: "f" * 16)
    told = {
        "host": host.replace("HERE", host_identity.host_name()),
        "machine": machine.replace("MINE", "f" * 16),
    }
    run = other(state, **told)
    assert (run.elsewhere() is None) == here
    assert run.state() == ("machine went down" if here else run_folders.ELSEWHERE)


def test_the_same_boot_is_the_same_machine_whatever_its_name(state: Path) -> None:
    run = make_run(state, seconds=30, gpu=False, host="renamed", machine="0" * 16)
    assert run.elsewhere() is None


def test_a_new_run_says_where_it_is(state: Path) -> None:
    assert oomproof("run", "--", "true").returncode == 0
    info = run_folders.find(None).info
    assert info["host"] == host_identity.host_name() and info["machine"] == host_identity.machine_id()


def test_the_machines_id_is_not_told_around(tmp_path: Path) -> None:
    (tmp_path / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    found = host_identity.machine_id(str(tmp_path / "machine-id"))
    assert len(found) == 16 and found not in "0123456789abcdef0123456789abcdef"
    assert host_identity.machine_id(str(tmp_path / "none")) == ""
