"""A run as an ending among several: what it held when it was killed, not what was left of it later."""

from __future__ import annotations

from pathlib import Path
from signal import SIGINT

import pytest
from helpers_case import END, GIB, MIB, OWN_KILL, Attempt, kernel

from oomproof.diagnosis.endings import endings_of_runs
from oomproof.diagnosis.judge import judge
from oomproof.recording.run_folders import Run
from oomproof.recording.state_files import write_json


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def test_a_hung_pool_held_what_its_killed_worker_did(attempt: Attempt) -> None:
    """`--all` had "13 MiB", `runs` 265 MiB, and "not at one level of memory: 13 MiB to 290 MiB" came of it."""
    attempt.samples = []
    attempt.sample(used=13 * MIB)
    attempt.ended(signal=SIGINT, memcg_oom_kill=1, memcg_oom=1, vmstat_oom_kill=8)
    attempt.kernel_lines = kernel(OWN_KILL, at=END - 44, pid=4100)
    verdict = judge(attempt.case())
    assert verdict.victim is not None and verdict.victim.held > GIB
    write_json(attempt.dir / "verdict.json", verdict.to_json())
    (ending,) = endings_of_runs([Run(attempt.dir.parent)])
    assert ending.memory is not None and ending.memory.held == verdict.victim.held
    assert ending.memory.available is None and ending.memory.growing is None
