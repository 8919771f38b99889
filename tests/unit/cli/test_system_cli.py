"""The verb: what it refuses, what it asks, what an ordinary user sees. The real machine is changed in tests/vm only."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from fake_machine import freeze_machine

from oomproof.cli import system
from oomproof.cli.main import main
from oomproof.ledger.job_history import JobHistory, JobPeak
from oomproof.machine.asking_user import AskingUser
from oomproof.machine.daemons import Daemon, Threshold
from oomproof.machine.disk_space import DiskSpace
from oomproof.machine.host_identity import HostEnvironment
from oomproof.machine.kernel_settings import KernelSettings
from oomproof.machine.systemd_manager import Delegation
from oomproof.records import replace
from oomproof.remedies.system_facts import SystemFacts, gather_system

GIB = 1 << 30


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SystemFacts:
    """The desktop of the freeze, its user, and the two jobs."""
    machine = freeze_machine(tmp_path / "machine")
    ada = AskingUser(1000, 1000, "ada", "/home/ada")
    told = gather_system(machine.proc, machine.sys, machine.dev, machine.folder.as_posix(), ada)
    told = replace(
        told, kernel=KernelSettings(60, 0, 176, 1, 1), delegation=Delegation(2, ("memory", "pids")), systemd=True,
        disk=DiskSpace(500 * GIB, 300 * GIB),
        thresholds=(Threshold(Daemon("earlyoom", 7), 10, None, 10, settings_file="/etc/default/earlyoom"),),
    )  # fmt: skip
    jobs = JobHistory(12, (JobPeak("glm", 20 * GIB), JobPeak("train", 19 * GIB)))
    monkeypatch.setattr(system, "ROOT", str(tmp_path / "root"))
    monkeypatch.setattr(system, "gather_system", lambda: told)
    monkeypatch.setattr(system.job_history, "read_of", lambda user, own: jobs)
    monkeypatch.setenv("COLUMNS", "100")
    return told


def as_user(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)


def test_one_screen(
    facts: SystemFacts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_user(monkeypatch, 1000)
    assert main(["system"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= 40
    assert "glm 20.0 GiB + train 19.0 GiB, at the same time, of 12 runs" in shown
    assert "add 9.0 GiB of swap on disk" in shown and "kernel.sysrq = 240" in shown
    assert "earlyoom is first" in " ".join(shown.split())
    assert "loginctl enable-linger ada" in shown and "usermod -aG adm,systemd-journal ada" in shown
    assert shown.rstrip().endswith("sudo oomproof system --apply")


def test_json(
    facts: SystemFacts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_user(monkeypatch, 1000)
    assert main(["system", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == 1 and value["applied"] is None
    assert [change["name"] for change in value["changes"] if not change["by_hand"]] == ["swap", "sysrq"]
    assert value["oom_daemons"][0]["memory_percent"] == 10 and value["kernel"]["sysrq"] == 176
    assert [job["use_bytes"] for job in value["jobs"]["largest"]] == [20 * GIB, 19 * GIB]


def test_an_ordinary_user_gets_the_commands_and_changes_nothing(
    facts: SystemFacts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    as_user(monkeypatch, 1000)
    assert main(["system", "--apply", "--yes"]) == 125
    printed = capsys.readouterr()
    assert "fallocate -l 9G" in printed.out and "this needs root" in printed.err
    assert main(["system", "--undo"]) == 125
    assert not (tmp_path / "root").exists()


def test_without_a_terminal_or_a_yes_nothing_is_changed(
    facts: SystemFacts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    as_user(monkeypatch, 0)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["system", "--apply"]) == 125
    assert "--yes" in capsys.readouterr().err
    answers = io.StringIO("\n")
    monkeypatch.setattr(answers, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", answers)
    assert main(["system", "--apply"]) == 125
    printed = capsys.readouterr()
    assert "add 9.0 GiB of swap" in printed.out and "[y/N]" in printed.out
    assert "nothing was changed" in printed.err and not (tmp_path / "root").exists()


def test_a_container_is_left_alone(
    facts: SystemFacts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = replace(facts, host=replace(facts.host, place=HostEnvironment(True, False, "overlay")))
    monkeypatch.setattr(system, "gather_system", lambda: inside)
    as_user(monkeypatch, 0)
    assert main(["system", "--apply", "--yes"]) == 125
    assert "this is a container" in capsys.readouterr().err


def test_nothing_to_undo(
    facts: SystemFacts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_user(monkeypatch, 0)
    assert main(["system", "--undo"]) == 0
    assert "nothing to undo" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--yes"], ["--undo", "--apply"], ["--undo", "--json"], ["--apply", "--json"], ["--only", "swp"],
        ["--need", "much"], ["--need", "1G+"],
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(
    facts: SystemFacts, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["system", *words]) == 2
    assert "hint:" in capsys.readouterr().err


def test_only(
    facts: SystemFacts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_user(monkeypatch, 1000)
    assert main(["system", "--only", "sysrq,linger", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert [change["name"] for change in value["changes"]] == ["sysrq", "linger"]
    assert main(["system", "--only", "swp"]) == 2
    assert "did you mean 'swap'?" in capsys.readouterr().err


def test_a_size_of_ones_own(
    facts: SystemFacts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_user(monkeypatch, 1000)
    assert main(["system", "--need", "19G+20G"]) == 0
    assert "19.0 GiB + 20.0 GiB (--need)" in capsys.readouterr().out
