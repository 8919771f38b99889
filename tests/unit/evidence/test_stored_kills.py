"""Kills that outlive their logs: kept once, read whatever state the file is in, joined with what is still told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oomproof.evidence import stored_kills
from oomproof.evidence.stored_kills import SystemKill
from oomproof.evidence.system_kills import system_kills
from oomproof.records import replace
from oomproof.reports.system_kill_table import regular_kills

DAY = 86400.0
KILL = SystemKill(
    1_700_000_000.0, "oom-kill-global", 812, "python", 50 << 30, "proven", "journal", "Out of memory", "/a", 7
)


def test_a_kill_is_kept_once_and_read_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "state" / "kills.jsonl"
    assert stored_kills.keep([KILL, replace(KILL, wall=None, pid=5)], path=file) == 1, (
        "without a time it is no history"
    )
    told_later = replace(KILL, wall=1_700_000_003.0, source="kernel log")
    another = replace(KILL, wall=KILL.wall + 8 * DAY if KILL.wall else None, pid=99)
    assert stored_kills.keep([told_later, another], path=file) == 1
    assert stored_kills.stored_kills([file]) == [KILL, another]
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "7", '{"wall": "x"}', json.dumps({"wall": 1.0, "certainty": "sure", "cause": "x"}), "\0" * 50,
     json.dumps({"wall": 1.0, "certainty": "proven", "cause": "oom-kill-global", "pid": "7"}), "[" * 100_000],
)  # fmt: skip
def test_what_is_damaged_is_left_out(tmp_path: Path, line: str) -> None:
    file = tmp_path / "kills.jsonl"
    stored_kills.keep([KILL], path=file)
    file.write_text(line + "\n" + file.read_text())
    assert stored_kills.stored_kills([file]) == [KILL]


def test_what_was_kept_stands_beside_what_the_logs_tell(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text("")
    report = system_kills(
        0.0,
        kmsg=str(tmp_path / "none"),
        journalctl=str(tmp_path / "none"),
        logs=(str(log),),
        runs=(),
        kept=[KILL],
    )
    assert [(kill.pid, kill.held) for kill in report.kills] == [(812, 50 << 30)]
    assert "what was kept of earlier logs" in report.sources


def test_kills_at_regular_intervals_have_a_next_one() -> None:
    """I1: every eighth day."""
    kills = [replace(KILL, wall=1.7e9 + number * 8 * DAY + number * 3600, pid=number) for number in range(4)]
    interval, last, count = regular_kills(kills)["python"]
    assert interval == pytest.approx(8 * DAY, rel=0.02) and count == 4 and last == kills[-1].wall
    assert regular_kills(kills[:2]) == {}, "two tell no interval"
    assert regular_kills([*kills, replace(KILL, wall=1.7e9 + 400 * DAY, pid=50)]) == {}
