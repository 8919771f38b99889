"""Boots and shutdowns out of wtmp."""

from __future__ import annotations

from pathlib import Path

from helpers_case import Attempt
from hypothesis import given
from hypothesis import strategies as st

from oomproof.machine import wtmp


def test_boots_and_shutdowns(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.write_wtmp(
        (2, "reboot", 100), (7, "ana", 150), (1, "runlevel", 160), (1, "shutdown", 200), (2, "reboot", 300)
    )
    log = wtmp.read(str(attempt.wtmp))
    assert log.boots == (100.0, 300.0) and log.shutdowns == (200.0,) and log.reason is None
    assert log.shutdown_between(150, 300) == 200.0 and log.shutdown_between(201, 300) is None
    assert log.boot_after(150) == 300.0 and log.boot_after(301) is None


def test_a_record_cut_short(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.write_wtmp((2, "reboot", 100), (1, "shutdown", 200))
    attempt.wtmp.write_bytes(attempt.wtmp.read_bytes()[:-10])
    assert wtmp.read(str(attempt.wtmp)).shutdowns == ()


def test_absent_and_empty_are_values(tmp_path: Path) -> None:
    assert "No such file" in (wtmp.read(str(tmp_path / "none")).reason or "")
    (tmp_path / "wtmp").touch()
    assert "empty" in (wtmp.read(str(tmp_path / "wtmp")).reason or "")


@given(st.binary(max_size=1200))
def test_any_bytes(data: bytes) -> None:
    wtmp.parse(data)
