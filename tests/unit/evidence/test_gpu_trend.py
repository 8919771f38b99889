"""The trend on a card: tensors that are kept, reserved memory that only falls apart, and what the driver alone tells."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from oomproof.evidence.gpu_trend import ALLOCATED, OUTSIDE, RESERVED, USED, GpuTrend, gpu_trends
from oomproof.recording.reader import open_recording
from oomproof.recording.sqlite_files import INSERTS
from oomproof.recording.writer import Writer
from oomproof.reports.trend_text import Answer, alert_text, gpu_lines
from oomproof.trend.leaks import FLAT, GROWING, UNKNOWN, Trend
from oomproof.units import GIB, MIB

CARD = 24 * GIB
CONTEXT = 750 * MIB
Level = Callable[[int], int]  # bytes after so many seconds


def recorded(
    folder: Path,
    allocated: Level | None,
    reserved: Level | None = None,
    outside: int = 0,
    allowed: int | None = None,
    seconds: int = 1800,
    every: int = 10,
) -> Path:
    """A step a second. The agent tells its allocator every ten seconds, as it does after minutes, the driver each second."""
    path = folder / "recording.sqlite"
    Writer(path, {}).close()
    connection = sqlite3.connect(path)
    dice = random.Random(4)
    for t in range(seconds):
        connection.execute(INSERTS["phase"], (float(t), "train", t, 7, None, None))
        connection.execute(INSERTS["job"], (float(t), 2 * GIB, 0, 0, 0, 0, None, 1, None, None))
        tensors = allocated(t) + dice.randrange(3 * MIB) if allocated else 0
        segments = max(tensors + 900 * MIB, reserved(t) if reserved else 0)
        held = segments + CONTEXT + outside * t if allocated else reserved(t) if reserved else 0
        connection.execute(INSERTS["gpu"], (float(t), 0, held + GIB, CARD, held))
        if allocated and t % every == 0:
            told = {
                "pid": 7, "device": 0, "total": CARD, "free": CARD - held - GIB, "allocated": tensors, "reserved": segments,
                "peak": tensors + 600 * MIB, "allowed": allowed,
            }  # fmt: skip
            connection.execute(INSERTS["event"], (float(t), "agent:allocator", "", json.dumps(told)))
    connection.commit()
    connection.close()
    return path


def card(path: Path, limit: int | None = None) -> GpuTrend:
    with open_recording(path).series() as series:
        (trend,) = gpu_trends(series, limit)
    return trend


def said(trend: GpuTrend, is_over: bool = False) -> str:
    flat = Trend(FLAT, None, None, 0.0, 0.0, 0.0, None, None, None)
    return "\n".join(gpu_lines(Answer(flat, None, "", 0.0, 1_790_000_000.0, None, is_over, gpus=(trend,))))


def test_tensors_that_are_kept(tmp_path: Path) -> None:
    found = card(recorded(tmp_path, lambda t: 4 * GIB + 4 * MIB * t))
    assert (found.what, found.trend.kind, found.limit_from) == (ALLOCATED, GROWING, "the card")
    assert found.trend.rate is not None and found.trend.rate.expected == pytest.approx(4 * MIB, rel=0.03)
    assert found.bytes_per_step == pytest.approx(4 * MIB, rel=0.03)
    # 600 MiB of each step's own are needed too; what others and the context hold cannot be had
    left = (CARD - GIB - CONTEXT - 600 * MIB - 4 * GIB - 4 * MIB * 1800) / (4 * MIB)
    assert found.trend.full_in is not None and found.trend.full_in.low < left < found.trend.full_in.high
    assert found.trend.full_in.expected == pytest.approx(left, rel=0.05)
    text = said(found)
    assert "GPU 0: growing: tensors that are kept on the card" in text and "+4.0 MiB a step" in text
    assert "in tensors, " in text and "(the card) in " in text and " steps, " in text
    assert "would have been reached" in said(found, is_over=True)


def test_reserved_that_grows_without_tensors_is_no_leak(tmp_path: Path) -> None:
    found = card(recorded(tmp_path, lambda t: 4 * GIB, lambda t: 6 * GIB + 4 * MIB * t))
    assert (found.what, found.trend.kind) == (RESERVED, GROWING) and found.is_fragmentation
    assert "GPU 0: fragmentation: PyTorch reserves ever more" in said(
        found
    ) and "expandable_segments" in said(found)
    assert "leak" not in said(found)


def test_a_minute_of_a_real_leak(tmp_path: Path) -> None:
    """As an H200 told it after 41 s: 8 MiB a step, ten steps a second, 2 s between two looks, reserved just above."""
    path = recorded(tmp_path, lambda t: GIB // 2 + 80 * MIB * t, allowed=7811891200, seconds=41, every=2)
    found = card(path)
    assert (found.what, found.trend.kind, found.is_fragmentation) == (ALLOCATED, GROWING, False)
    assert found.trend.rate is not None and found.trend.rate.expected == pytest.approx(80 * MIB, rel=0.05)


def test_tensors_that_grow_by_steps_are_not_taken_for_pieces(tmp_path: Path) -> None:
    found = card(recorded(tmp_path, lambda t: 4 * GIB + GIB * (t // 700), lambda t: 6 * GIB + 2 * MIB * t))
    assert not found.is_fragmentation


def test_what_comes_and_goes(tmp_path: Path) -> None:
    found = card(recorded(tmp_path, lambda t: 4 * GIB + (t % 100) * 10 * MIB, lambda t: 6 * GIB))
    assert (found.what, found.trend.kind) == (ALLOCATED, FLAT) and not found.is_fragmentation
    assert said(found).startswith("GPU 0: flat, ")


def test_a_limit_of_its_own(tmp_path: Path) -> None:
    path = recorded(tmp_path, lambda t: 4 * GIB + 4 * MIB * t, allowed=16 * GIB)
    assert (card(path).limit, card(path).limit_from) == (16 * GIB, "--gpu-limit, less what CUDA itself takes")
    assert (card(path, 14 * GIB).limit, card(path, 14 * GIB).limit_from) == (14 * GIB, "--gpu-limit")


def test_another_librarys_buffers(tmp_path: Path) -> None:
    found = card(recorded(tmp_path, lambda t: 4 * GIB, lambda t: 6 * GIB, outside=4 * MIB))
    assert (found.what, found.trend.kind) == (OUTSIDE, GROWING)
    assert "growing beside PyTorch" in said(found)


def test_the_driver_alone(tmp_path: Path) -> None:
    found = card(recorded(tmp_path, None, lambda t: 4 * GIB + 4 * MIB * t))
    assert (found.what, found.trend.kind, found.allocated) == (USED, GROWING, None)
    assert found.limit == pytest.approx(CARD - GIB, rel=0.01), "without what others hold"
    assert "as the driver counts it" in said(found)


def test_a_minute_is_too_short(tmp_path: Path) -> None:
    path = recorded(tmp_path, lambda t: 4 * GIB + 4 * MIB * t, seconds=60)
    assert card(path).what == USED, "six looks of the allocator are none"


def test_a_run_without_a_card(tmp_path: Path) -> None:
    path = recorded(tmp_path, None, None, seconds=100)
    with open_recording(path).series() as series:
        assert gpu_trends(series) == []


@pytest.mark.parametrize(
    "damage",
    ["DROP TABLE gpu", "UPDATE event SET data = '{\"allocated\": []}'", "UPDATE gpu SET job_used = 'x'"],
)
def test_damaged(tmp_path: Path, damage: str) -> None:
    path = recorded(tmp_path, lambda t: 4 * GIB + 4 * MIB * t)
    connection = sqlite3.connect(path)
    connection.execute(damage)
    connection.commit()
    connection.close()
    with open_recording(path).series() as series:
        assert all(trend.trend.kind in (GROWING, FLAT, UNKNOWN) for trend in gpu_trends(series))


def test_an_alert_of_a_card(tmp_path: Path) -> None:
    flat = Trend(FLAT, None, None, 0.0, 0.0, 0.0, None, None, None)
    grows = card(recorded(tmp_path, lambda t: 4 * GIB + 4 * MIB * t))
    alert = alert_text(Answer(flat, None, "", 0.0, 1_790_000_000.0, gpus=(grows,)))
    assert alert is not None and alert.startswith(
        "GPU 0: memory in tensors has grown by 4.0 MiB/s: at this rate it is full in "
    )
