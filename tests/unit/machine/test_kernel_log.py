"""The kernel log's records, the journal beside it, and the refusal of both."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.machine import kernel_log


def script(path: Path, body: str) -> str:
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return str(path)


def test_a_record() -> None:
    parsed = kernel_log.parse_record(b"3,452,589494216,-;Out of memory\\x3a it is\n SUBSYSTEM=x\n", 10.0)
    assert parsed == (452, kernel_log.KernelLine(pytest.approx(599.494216), "Out of memory: it is"))


@given(st.binary(max_size=100))
def test_any_record(data: bytes) -> None:
    kernel_log.parse_record(data)


def test_since(tmp_path: Path) -> None:
    kmsg = tmp_path / "kmsg"
    kmsg.write_text("6,0,1000000,-;old\n6,1,99000000,-;new\n")
    log = kernel_log.read(90.0, kmsg=str(kmsg), offset=0.0)
    assert [line.text for line in log.lines] == ["new"] and log.reason is None and not log.overwritten


def test_a_ring_that_was_overwritten_says_so(tmp_path: Path) -> None:
    kmsg = tmp_path / "kmsg"
    kmsg.write_text("6,5000,99000000,-;new\n")
    assert kernel_log.read(90.0, kmsg=str(kmsg), offset=0.0).overwritten


def test_the_journal_when_kmsg_is_refused(tmp_path: Path) -> None:
    journal = script(
        tmp_path / "journalctl",
        'echo "[    5.000000] host kernel: early"\n'
        'echo "[  589.494216] host kernel: Out of memory: Killed process 9 (x)"\n',
    )
    log = kernel_log.read(500.0, kmsg=str(tmp_path / "none"), journalctl=journal, offset=0.0)
    assert [(line.time, line.text) for line in log.lines] == [
        (589.494216, "Out of memory: Killed process 9 (x)")
    ]


def test_both_refused(tmp_path: Path) -> None:
    journal = script(tmp_path / "journalctl", "echo 'Hint: You are currently not seeing messages' >&2\n")
    log = kernel_log.read(1.0, kmsg=str(tmp_path / "none"), journalctl=journal)
    assert log.lines == () and log.reason is not None and "Hint" in log.reason
    assert "dmesg_restrict" in log.how_to_grant


def test_no_journalctl(tmp_path: Path) -> None:
    log = kernel_log.read(1.0, kmsg=str(tmp_path / "none"), journalctl=str(tmp_path / "no"))
    assert log.reason is not None and "cannot be run" in log.reason


def test_a_journal_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "_JOURNAL_DEADLINE", 0.1)
    journal = script(tmp_path / "journalctl", "exec sleep 5\n")
    log = kernel_log.read(1.0, kmsg=str(tmp_path / "none"), journalctl=journal)
    assert log.reason is not None and "no answer" in log.reason


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel log is closed to us")
def test_the_real_one() -> None:
    log = kernel_log.read(0.0)
    assert log.reason is not None or all(line.time >= -2 for line in log.lines)
