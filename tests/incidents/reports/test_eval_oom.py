"""I3: a card of 24 GB that is full only at evaluations, every 50 steps: `generate()` with 2048 new tokens, a second daemon on the
card. Logs and a recording in; the phase that reached it, what else was on the card, and the names of settings that count, out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oomproof.machine import processes
from oomproof.recording.writer import Writer

MIB, GIB = 1 << 20, 1 << 30
LONG_AGO = 1_700_000_000.0
ERROR = """Traceback (most recent call last):
  File "/home/me/grpo.py", line 212, in <module>
    trainer.train()
  File "/home/me/grpo.py", line 140, in evaluate
    out = model.generate(**batch, max_new_tokens=2048)
  File "/home/me/venv/lib/python3.11/site-packages/transformers/generation/utils.py", line 2215, in generate
    result = self._sample(
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 23.64 GiB of which \
561.00 MiB is free. Process 4711 has 2.90 GiB memory in use. Including non-PyTorch memory, this process has 20.18 GiB memory \
in use. Of the allocated memory 15.00 GiB is allocated by PyTorch, and 4.60 GiB is reserved by PyTorch but unallocated. If \
reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.
"""


def told(*words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "oomproof", *words]
    value: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return value


def log(folder: Path, step: int) -> str:
    path = folder / f"train{step}.log"
    steps = "".join(f"step {n}/900 loss 0.4{n % 10}\n" for n in range(1, step + 1))
    path.write_text(f"eval_steps: 50\nmax_new_tokens: 2048\n{steps}{ERROR}")
    os.utime(path, (LONG_AGO, LONG_AGO))
    return str(path)


def test_it_is_the_evaluation_that_fills_the_card_beside_a_second_daemon(tmp_path: Path) -> None:
    answer = told("why", "--json", log(tmp_path, 200))
    verdict = answer["verdict"]
    assert (verdict["cause"], verdict["phase"], verdict["step"]) == ("cuda-oom", "generate", 200)
    assert "process 4711 on the card held 2.9 GiB" in verdict["headline"]
    assert "ps -fp 4711" in verdict["next"] and not verdict["next"].startswith("halve")
    assert verdict["gpu"]["reserved_unallocated_bytes"] == pytest.approx(4.6 * GIB, rel=0.01)
    said = " ".join(remedy["title"] for remedy in answer["remedies"])
    assert "PYTORCH_ALLOC_CONF" in said and "PYTORCH_CUDA_ALLOC_CONF" in said and "ignores" in said


def test_several_such_deaths_are_tied_to_the_evaluations(tmp_path: Path) -> None:
    patterns = told("why", "--all", "--json", *(log(tmp_path, step) for step in (50, 200, 100, 350)))
    tied = [each["text"] for each in patterns["statements"] if each["found"] == "tied"]
    assert any("multiples of 50, the evaluations" in text for text in tied), tied


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A training of 3 GiB whose evaluation generated until the card was full; then its exception died in `train`."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    attempt = tmp_path / "state/oomproof/runs/20260102-030405-ev1/1"
    attempt.mkdir(parents=True)
    begin, boot = 1000.0, processes.boot_id()
    info = {"schema": 1, "id": attempt.parent.name, "name": "eval", "argv": ["python", "grpo.py"], "cwd": "/"}
    files: dict[Path, dict[str, Any]] = {
        attempt.parent / "run.json": {**info, "boot_id": boot, "created": LONG_AGO, "env": {}, "settings": {}},
        attempt / "started.json": {
            "boot_id": boot, "boottime": begin, "wall": LONG_AGO, "job": {"pid": 4_100_000, "start": 1},
        },
        attempt / "exit.json": {
            "boottime": begin + 90, "wall": LONG_AGO + 90, "code": 1, "signal": None, "core": False,
            "leftovers": [], "counters": {"memcg_oom_kill": 0, "vmstat_oom_kill": 0},
        },
    }  # fmt: skip
    for path, value in files.items():
        path.write_text(json.dumps(value))
    (attempt / "output.log").write_text(ERROR)
    writer = Writer(attempt / "recording.sqlite", {"boot_id": boot, "wall_offset": repr(LONG_AGO - begin)})
    used = [1.0] * 10 + [3.0] * 50 + [3.0, 9.0, 15.0, 20.0, 23.9] + [23.8] * 2
    for second, size in enumerate(used):
        writer.put("gpu", (begin + second, 0, int(size * GIB), int(23.64 * GIB), int(size * GIB)))
        writer.put("job", (begin + second, 2 * GIB, 0, 0, 0, 0, None, 1, None, None))
    for t, name, step in ((0, "load", None), (10, "train", 1), (60, "generate", 50), (65, "train", 50)):
        writer.put("phase", (begin + t, name, step, 4_100_000, None, None))
    writer.close()
    return "eval"


def test_a_phases_peak_on_the_card_is_what_it_reached_itself(run: str) -> None:
    """`train`, which had held 3 GiB, was shown with the 23.8 that it found when `generate()` had died."""
    phases = {
        row["phase"]: row["peak_gpu_bytes"] / GIB for row in told("runs", "--json", "show", run)["phases"]
    }
    assert phases == pytest.approx({"load": 1.0, "train": 3.0, "generate": 23.9}, rel=0.01)
