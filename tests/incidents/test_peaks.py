"""What a job held at most, and at its end, however fast it was: the same figure in every report."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Cgroup, Lab
from test_without_cgroups import around, bare

from oomproof.recording.reader import open_recording

MIB = 1 << 20
__all__ = ["around", "bare"]  # the fixtures: no right to any cgroup


def shown(lab: Lab, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(lab.run("runs", "show", "--json", name).stdout)
    return value


def held_at_end(lab: Lab, name: str) -> str:
    evidence = lab.verdict(name)["evidence"]
    return next(item["text"] for item in evidence if item["id"] == "sample.job")


def size_in(text: str, pattern: str) -> float:
    """In MiB."""
    number, unit = re.findall(pattern + r" ([\d.]+) (\w+)", text)[0]
    return float(number) * {"KiB": 1 / 1024, "MiB": 1, "GiB": 1024}[unit]


def sampled_peak(lab: Lab, name: str) -> int:
    """Of the recording's rows alone: a starved burst may last a sample."""
    folder = lab.folder_of(name)
    assert folder is not None
    return open_recording(folder / "1" / "recording.sqlite").figures().peaks.use or 0


@pytest.mark.usefixtures("kernel_limit")
def test_a_job_that_fills_its_limit_in_two_seconds(lab: Lab) -> None:
    """It was on record with 4 MiB: in `runs`, in the evidence, in the advice, in `--system` and in `--all`."""
    lab.run("run", "--name", "fast", "--limit", "500M", "--grace", "1", "--", *lab.job("grow.py", 280, 2000))
    row = shown(lab, "fast")["run"]
    peak = row["peak_bytes"]
    assert 440 * MIB < peak <= 500 * MIB, row
    # the guard saw it between two samples; what samples saw while it died is not its end
    assert abs(size_in(held_at_end(lab, "fast"), "the job held") - peak / MIB) < 80, held_at_end(lab, "fast")
    page = lab.state / "fast.md"
    lab.run("why", "--md", str(page), "fast")
    assert "--need 64M" not in page.read_text()
    deaths = json.loads(lab.run("why", "--all", "--json", "fast").stdout)["deaths"]
    assert [abs(death["held_bytes"] - peak) < 80 * MIB for death in deaths] == [True]


@pytest.mark.parametrize("after", [0.0, 2.5])
def test_a_burst_between_two_samples(lab: Lab, small_machine: Callable[[int], Cgroup], after: float) -> None:
    lab.prefix = [*small_machine(4000 * MIB).prefix]
    done = lab.run("run", "--name", "burst", "--need", "1G", "--", *lab.job("spike.py", 20, 700, after))
    assert done.returncode == 0, done.stderr
    value = shown(lab, "burst")
    assert 700 * MIB < value["run"]["peak_bytes"] < 780 * MIB, value["run"]
    assert f"held at most {round(value['run']['peak_bytes'] / MIB)} MiB" in value["verdict"]["verdict"]["why"]
    assert value["run"]["peak_source"] != "samples" or sampled_peak(lab, "burst") > 700 * MIB


def test_a_burst_of_many_processes(lab: Lab, small_machine: Callable[[int], Cgroup]) -> None:
    """Five of 150 MiB, at once and for a moment: what the largest of them held was the peak on record."""
    lab.prefix = [*small_machine(2000 * MIB).prefix]
    done = lab.run("run", "--name", "pool", "--need", "1G", "--", *lab.job("many_spikes.py", 5, 150))
    assert done.returncode == 0, done.stderr
    row = shown(lab, "pool")["run"]
    assert 600 * MIB < row["peak_bytes"] < 850 * MIB, row


def test_page_cache_between_two_samples_is_no_burst(
    lab: Lab, small_machine: Callable[[int], Cgroup], tmp_path: Path
) -> None:
    lab.prefix = [*small_machine(4000 * MIB).prefix]
    job = lab.job("scratch.py", 200, 300, str(tmp_path / "scratch"))
    done = lab.run("run", "--name", "writer", "--need", "1G", "--", *job)
    assert done.returncode == 0, done.stderr
    row = shown(lab, "writer")["run"]
    assert 200 * MIB < row["peak_bytes"] < 240 * MIB, row


def test_a_burst_without_any_cgroup(bare: Lab) -> None:
    done = bare.run("run", "--name", "burst", "--need", "1G", "--", *bare.job("spike.py", 20, 700, 1.0))
    assert done.returncode == 0, done.stderr
    row = shown(bare, "burst")["run"]
    assert 700 * MIB < row["peak_bytes"] < 780 * MIB, row


def test_the_history_knows_what_a_burst_needs(lab: Lab, small_machine: Callable[[int], Cgroup]) -> None:
    """Of a command that needs 700 MiB for a moment, 7 were on record: it never waited for room."""
    lab.prefix = [*small_machine(4000 * MIB).prefix]
    for _ in range(2):
        done = lab.run("run", "--name", "again", "--", *lab.job("spike.py", 20, 700, 1.0))
    info = shown(lab, "again")["info"]
    assert 700 * MIB < info["claim"]["need"] < 900 * MIB, (info["claim"], done.stderr)


def test_a_burst_of_an_adopted_job(lab: Lab) -> None:
    """Nobody of ours is its parent, and it has no cgroup of ours: its own high-water mark tells."""
    burst = subprocess.Popen(lab.job("spike.py", 20, 700, 8.0), env=lab.environment)
    lab.run("adopt", str(burst.pid), "--name", "found")
    burst.wait()
    row = shown(lab, "found")["run"]
    assert 700 * MIB < row["peak_bytes"] < 780 * MIB, row
    assert row["peak_source"] == "process" or sampled_peak(lab, "found") > 700 * MIB, row
