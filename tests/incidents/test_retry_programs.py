"""I4: batch 64 × 16 loader workers where a third of it fits, refused by `fit` and retried by `run`; and a training that resumes from its checkpoint. Real PyTorch, real trainers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from conftest import JOBS, Lab, until

PYTHON = sys.executable
ML = JOBS / "ml"


@pytest.mark.usefixtures("kernel_limit")
def test_batch_64_by_16_workers_finishes_with_fewer_workers(lab: Lab) -> None:
    """Without a limit it holds 2.2 GiB. With a third of that the first attempt dies, of the guard or of the kernel; what comes after it has the same
    effective batch and sees the same samples."""
    words = ("--batch-size", "64", "--accum", "1", "--workers", "16", "--samples", "1024")
    done = lab.run(
        "run", "--name", "i4", "--limit", "750M", "--retry", "3", "--",
        PYTHON, "-W", "ignore", str(ML / "augmented.py"), *words, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1024 samples in 16 steps of [64]" in done.stdout
    attempts = json.loads(lab.run("runs", "show", "i4", "--json").stdout)["attempts"]
    assert len(attempts) > 1
    for attempt in attempts[:-1]:
        assert attempt["cause"] in ("stopped-by-guard", "oom-kill-memcg"), attempt
    counts = [int(attempt["plan"]["workers"]) for attempt in attempts]
    assert counts[0] == 16 and counts == sorted(set(counts), reverse=True)
    assert attempts[-1]["cause"] == "finished" and attempts[-1]["peak_bytes"] < 750 << 20
    why = lab.run("why", "i4/1").stdout
    assert "limit of 750 MiB" in why and "workers" in why


@pytest.mark.usefixtures("kernel_limit")
def test_fit_refuses_the_plan_beforehand_and_proposes_one_that_finishes(lab: Lab) -> None:
    """Of 1000 MiB a quarter is margin: the same 750 as above."""
    words = ("--batch-size", "64", "--accum", "1", "--workers", "16", "--samples", "512")
    job = (PYTHON, "-W", "ignore", str(ML / "augmented.py"))
    asked = lab.run("fit", "--gpu", "none", "--ram", "1000M", "--json", "--", *job, *words, timeout=280)
    assert asked.returncode == 0, asked.stderr
    told = json.loads(asked.stdout)
    assert any("as it stands" in note and "does not fit" in note for note in told["notes"]), told["notes"]
    (tier,) = (tier for tier in told["tiers"] if tier["name"] == "maximum")
    assert tier["effective"] == 64 and int(tier["plan"]["workers"]) < 16
    command = tier["command"].split(" -- ", 1)[1].split()
    done = lab.run("run", "--limit", "750M", "--", *command, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "512 samples in 8 steps of [64]" in done.stdout


def test_a_trainer_resumes_from_its_checkpoint(lab: Lab, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = lab.run(
        "run", "--name", "hf", "--retry", "2", "--", PYTHON, str(ML / "hf_resumed.py"), "--output_dir", str(out),
        "--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "1", "--max_steps", "12",
        "--save_steps", "5", "--report_to", "none", "--use_cpu", "--disable_tqdm", "true", timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "begins at step 0" in done.stdout and "begins at step 5" in done.stdout, done.stdout
    assert "ended at step 12, effective batch 8" in done.stdout
    assert f"resumes from {out}/checkpoint-5" in done.stderr
    folder = until(lambda: lab.folder_of("hf"), "the run")
    second = lab.read(folder / "2" / "attempt.json")
    assert second["resumed_from"] == str(out / "checkpoint-5")
    assert second["argv"][-2:] == ["--resume_from_checkpoint", str(out / "checkpoint-5")]
    assert lab.read(folder / "1" / "verdict.json")["verdict"]["cause"] == "cuda-oom"
