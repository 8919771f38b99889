"""`oomproof trend` as people type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oomproof.cli.main import main
from oomproof.errors import USAGE
from oomproof.units import GIB, MIB


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "memory.csv"
    rows = "\n".join(f"{1790000000 + t},{4096 + t / 2}" for t in range(0, 3600, 5))
    path.write_text(f"timestamp,rss_mb\n{rows}\n")
    return path


def test_a_table(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trend", str(table), "--limit", "8G"]) == 0
    said = capsys.readouterr().out
    assert "growing: a leak, or a cache without bound" in said
    assert "+30 MiB/min; 1.7 GiB so far" in said
    assert "8.0 GiB in " in said and "4 times in 5" in said
    assert "720 rows: time from column timestamp, memory from column rss_mb in MiB" in said


def test_json(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trend", str(table), "--limit", "8G", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["kind"], answer["limit_bytes"]) == (1, "growing", 8 * GIB)
    assert answer["bytes_per_second"] == pytest.approx(MIB / 2, rel=0.02)
    full = answer["full_in_seconds"]
    left = (8192 - 4096 - 3595 / 2) * 2
    assert full["low"] < left < full["high"] and full["expected"] == pytest.approx(left, rel=0.05)


def test_flags_of_a_table_need_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trend", "--unit", "MiB"]) == USAGE
    assert "--unit is for a table" in capsys.readouterr().err


def test_a_unit_that_is_none(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trend", str(table), "--unit", "pound"]) == USAGE
    assert "bytes, KiB, MiB or GiB" in capsys.readouterr().err
