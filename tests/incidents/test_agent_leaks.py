"""Leaks that people really have, in real trainings: the verdict names the line that keeps the memory, and what to keep instead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Lab

pytest.importorskip("torch", reason="the extra [ml] is not installed")
pytestmark = pytest.mark.timeout(280)

TRAIN = """import time

import torch


class Cache:
    def __init__(self):
        self.outputs = {{}}


def main():
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses, history, cache = [], [], Cache()
    for step in range(2000):
        loss = model(torch.randn(600, 512)).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        history.append(loss.item())
        {keep}
        time.sleep(0.4)


main()
"""


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ("losses.append(loss)", "losses, a list of main(), got "),
        pytest.param(
            "cache.outputs[step] = torch.ones(600, 512)",
            "Cache.outputs, a dict, got ",
            marks=pytest.mark.long,
        ),
    ],
    ids=["losses with their graph", "a cache without bound"],
)
def test_the_line_that_leaks_is_named(lab: Lab, tmp_path: Path, keep: str, said: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN.format(keep=keep))
    ended = lab.run(
        "run", "--name", "leak", "--limit", "900M", "--", sys.executable, str(script), timeout=260
    )
    assert ended.returncode != 0
    judged = json.loads(lab.run("why", "leak", "--json").stdout)
    verdict = judged["verdict"]
    number = 1 + next(at for at, line in enumerate(script.read_text().splitlines()) if keep in line)
    assert f"train.py:{number} `{keep}`: {said}" in verdict["next"]
    assert ("with its graph (keep .item() or .detach() of it)" in verdict["next"]) == ("losses" in keep)
    assert "history" not in verdict["next"], "a log of numbers is no leak"
    trend = json.loads(lab.run("trend", "leak", "--json").stdout)
    assert (
        trend["kind"] in ("growing", "slowing")
        and trend["phase"] == "train"
        and trend["heap"]["kind"] == "native"
    )
    assert 600 * 512 * 4 / 2 < trend["bytes_per_step"] < 8 * 600 * 512 * 4, "an activation or two a step"


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
