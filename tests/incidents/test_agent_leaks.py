"""Leaks that people really have, in real trainings: the verdict names the line that keeps the memory, and what to keep instead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import JOBS, Lab

pytest.importorskip("torch", reason="the extra [ml] is not installed")
pytestmark = pytest.mark.timeout(280)

SCRIPT = JOBS / "ml" / "known_leaks.py"
KNOWN = {  # the line that keeps, and what is said of it
    "losses": ("losses.append(loss)", "losses, a list of main(), got "),
    "hook": ("self.activations.append(output)", "Recorder.activations, a list, got "),
    "cache": ("CACHE[step] = torch.ones(600, 512)", "CACHE, a dict, got "),
    "logits": ("outputs.append(model(torch.randn(600, 512)))", "outputs, a list of main(), got "),
}


def line_of(script: Path, text: str) -> int:
    return 1 + next(at for at, line in enumerate(script.read_text().splitlines()) if text in line)


def test_leaks_that_everybody_has_had_are_named_by_line(lab: Lab) -> None:
    """All at once: they sleep most of the time, and die of their limit."""
    runs = [
        lab.start(kind, "--limit", "600M", "--", sys.executable, str(SCRIPT), kind)
        for kind in (*KNOWN, "workers")
    ]
    assert all(run.wait() != 0 for run in runs)
    for kind, (text, said) in KNOWN.items():
        verdict = json.loads(lab.run("why", kind, "--json").stdout)["verdict"]
        assert f"known_leaks.py:{line_of(SCRIPT, text)} `{text}`: {said}" in verdict["next"], (kind, verdict)
        assert "history" not in verdict["next"], "a log of numbers is no leak"
        change = {
            "losses": "(keep .item() or .detach() of it)",
            "hook": "(keep .detach() of it, or a part)",
        }
        assert change.get(kind, "") in verdict["next"]
        trend = json.loads(lab.run("trend", kind, "--json").stdout)
        assert trend["kind"] in ("growing", "steps", "slowing") and trend["heap"]["kind"] == "native", kind
        assert 600 * 512 * 4 / 2 < trend["bytes_per_step"] < 8 * 600 * 512 * 4, "an activation or two a step"
    judged = json.loads(lab.run("why", "workers", "--json").stdout)
    rows = "reading loader.dataset.rows, a list of 2,000,000 str ("
    place = f"known_leaks.py:{line_of(SCRIPT, 'self.rows = [')}), copies it into each of them"
    assert judged["growth"]["workers"] == 2 and rows in judged["verdict"]["next"]
    assert (
        place in judged["verdict"]["next"] and "a NumPy array or an Arrow table" in judged["verdict"]["next"]
    )


EPOCHS = """import time

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

KEPT = []


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, x=None, labels=None):
        if not self.training:
            KEPT.append(torch.ones(1 << 20))
        out = self.layer(x)
        return {"loss": (out - labels).square().mean(), "logits": out}


class Slow(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        time.sleep(0.2)


data = [{"x": torch.randn(64), "labels": torch.randn(64)} for _ in range(80)]
arguments = TrainingArguments(
    output_dir="out", num_train_epochs=16, per_device_train_batch_size=8, per_device_eval_batch_size=10, eval_strategy="epoch",
    save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
)
Trainer(Model(), arguments, train_dataset=data, eval_dataset=data, callbacks=[Slow()]).train()
"""


@pytest.mark.long
def test_what_each_evaluation_keeps_is_told_in_epochs(lab: Lab, tmp_path: Path) -> None:
    """A real Trainer whose evaluation keeps 32 MiB each time; it ends long before 3 GiB are full, and tells so."""
    pytest.importorskip("transformers", reason="the extra [ml] is not installed")
    script = tmp_path / "train.py"
    script.write_text(EPOCHS)
    running = lab.start("epochs", "--limit", "3G", "--", sys.executable, str(script), cwd=tmp_path)
    running.output_has("'epoch': '13'")
    asked = json.loads(lab.run("trend", "epochs", "--json").stdout)
    assert asked["kind"] == "steps"
    assert (asked["phase"], asked["cycle"]["name"], asked["ends"]["total_steps"]) == ("eval", "epoch", 160)
    assert asked["ends"]["full_before"] is False and asked["alert"] is None
    assert running.wait() == 0
    told = json.loads(lab.run("trend", "epochs", "--json").stdout)
    assert told["kind"] == "steps" and told["bytes_per_cycle"] == pytest.approx(32 << 20, rel=0.15)
    epochs = told["full_in_cycles"]
    assert epochs["low"] - 1 <= ((3 << 30) - told["held_bytes"]) / (32 << 20) <= epochs["high"] + 1
    assert "per epoch in eval (" in lab.run("trend", "epochs").stdout
    (phase,) = [
        row
        for row in json.loads(lab.run("runs", "show", "epochs", "--json").stdout)["phases"]
        if row["phase"] == "eval"
    ]
    assert phase["entered"] == 16, (
        "not twice an epoch, for the batch that is taken before the model trains again"
    )


LEAKS = """import time
kept = []
for number in range(1, 161):
    kept.append(bytearray(4 << 20))
    kept[-1][::4096] = b"x" * 1024
    print(f"{number / 2:3.0f}%|████      | {number}/1600 [00:{number // 6:02}<00:20,  6.0it/s]", end="\\r", flush=True)
    time.sleep(0.16)
"""

SOONER = """import sys
import oomproof.runner.leak_watch as leak_watch
from oomproof.cli.main import main

leak_watch._LEAST_SEEN, leak_watch._EVERY, leak_watch._FIRST_WIDTH = 8.0, 2.0, 0.5  # ten minutes are too long for a test
sys.exit(main(["run", "--name", "live", "--limit", "2G", "--alert-above", "1900M", "--", sys.executable, *sys.argv[1:]]))
"""


@pytest.mark.long
def test_a_run_asks_for_its_trend_and_tells_it(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "leaks.py").write_text(LEAKS)
    (tmp_path / "sooner.py").write_text(SOONER)
    command = [sys.executable, str(tmp_path / "sooner.py"), str(tmp_path / "leaks.py")]
    ended = subprocess.run(
        command, env=lab.environment, capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    alerts = [line for line in ended.stderr.splitlines() if line.startswith("oomproof: memory has grown by ")]
    assert ended.returncode == 0 and 1 <= len(alerts) <= 3
    assert "at this rate it is full in " in alerts[0] and "unknown" not in alerts[0], (
        "its progress bar tells when it ends"
    )
