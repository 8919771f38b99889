"""The same command twice: the twin that still lives is the first remedy of a death for memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL

import pytest
from helpers_case import END, GIB, MACHINE_KILL, MIB, Attempt, kernel

from oomproof.diagnosis.judge import judge
from oomproof.evidence import case_collector as collect_module
from oomproof.evidence.other_runs import living_twin

SCRIPT = "import sys; held = bytearray(b'x') * (150 << 20); print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def twin(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [sys.executable, "train.py", "--lr", "3", "--token", "hf_abcdefghijklmnop"]
    process = subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    yield process
    process.communicate()


RECORDED = [sys.executable, "train.py", "--lr", "3", "--token", "•••"]  # as run.json has it


def test_found_by_script_arguments_and_folder(tmp_path: Path, twin: subprocess.Popen[bytes]) -> None:
    found = living_twin(RECORDED, str(tmp_path))
    assert found is not None and found.pid == twin.pid and 150 * MIB <= found.held < 300 * MIB
    assert living_twin(RECORDED, "/elsewhere") is None
    assert living_twin([*RECORDED[:3], "4", *RECORDED[4:]], str(tmp_path)) is None
    assert living_twin(["python", "-c", "pass"], str(tmp_path)) is None
    assert living_twin([], None) is None


def test_it_is_the_first_remedy(
    tmp_path: Path, twin: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(tmp_path)
    attempt.run |= {"argv": RECORDED, "cwd": str(tmp_path)}
    attempt.ended(signal=SIGKILL, memcg_oom_kill=1, memcg_oom=0, vmstat_oom_kill=8)
    attempt.sample(available=200 * MIB)
    attempt.kernel_lines = kernel(MACHINE_KILL)
    monkeypatch.setattr(collect_module, "boottime", lambda: END + 2)
    found = living_twin(RECORDED, str(tmp_path))  # of the real /proc; the case has one of its own
    monkeypatch.setattr("oomproof.evidence.other_runs.living_twin", lambda argv, folder, proc: found)
    verdict = judge(attempt.case())
    assert verdict.cause == "oom-kill-global"
    first, second = verdict.remedies[:2]
    assert (
        first.command == f"kill {twin.pid}" and first.basis == "measured" and "one at a time" in first.title
    )
    assert second.command == "oomproof check" and (second.saves_bytes or 0) > 20 * GIB
    assert "sample.twin" in verdict.causes[0].evidence
    assert verdict.remedies[-1].change is not None and verdict.remedies[-1].change.key == "batch_size"


def test_a_death_of_long_ago_has_no_twin_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path)
    attempt.ended(signal=SIGKILL)
    monkeypatch.setattr(collect_module, "boottime", lambda: END + 4000)

    def never(*_: object) -> None:
        raise AssertionError("not asked")

    monkeypatch.setattr("oomproof.evidence.other_runs.living_twin", never)
    assert attempt.case().samples.twin is None
