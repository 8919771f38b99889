"""Metrics as scripts tell them: what real libraries print, and what only looks like it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from oomproof.agent import script_api
from oomproof.sweeps.metric_sources import in_text, names_in, read_file

LIGHTNING = """
┏━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━━━━┓
┃        Test metric        ┃       DataLoader 0        ┃
┡━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━━━━┩
│         test_acc          │    0.8712999820709229     │
│         test_loss         │    0.34567809104919434    │
└───────────────────────────┴───────────────────────────┘
"""
PLAIN_LIGHTNING = """
────────────────────────────────────────────────────────
       Test metric             DataLoader 0
────────────────────────────────────────────────────────
        test_loss           0.34567809104919434
────────────────────────────────────────────────────────
"""
WANDB = (
    "\x1b[1;34mwandb\x1b[0m: Run history:\nwandb:     loss █▁\nwandb: Run summary:\nwandb:     loss 0.25\n"
)


@pytest.mark.parametrize(
    ("name", "text", "value", "source"),
    [
        ("loss", "epoch 1 loss=0.5\nepoch 2 loss=0.25\n", 0.25, "a line loss=value"),
        ("loss", "epoch 3: loss: 1.5e-3, acc: 0.9", 0.0015, "a line loss=value"),
        ("loss", "Epoch 0: 100%|██| 8/8 [00:01, 7it/s, v_num=0, loss=0.75]\rdone", 0.75, "a line"),
        ("eval_loss", "{'eval_loss': 0.41, 'eval_runtime': 1.2, 'epoch': 1.0}", 0.41, "a dictionary"),
        ("eval/loss", "{'eval_loss': '0.41', 'epoch': '1.0'}", 0.41, "a dictionary"),
        ("acc", '{"step": 3, "acc": 0.5}\n{"step": 4, "acc": 1}\n', 1.0, "a dictionary or JSON"),
        ("test_loss", LIGHTNING, 0.34567809104919434, "a table"),
        ("test_loss", PLAIN_LIGHTNING, 0.34567809104919434, "a table"),
        ("loss", WANDB, 0.25, "the summary that wandb printed"),
        ("loss", "loss=tensor(0.125, device='cuda:0')", 0.125, "a line"),
        ("val/acc", "val.acc = 93", 93.0, "a line"),
        ("loss", "loss=-3\n", -3.0, "a line"),
        ("val/loss", "step 9: train loss 4.2168, val loss 4.1951\n", 4.1951, "a line val/loss value"),
        ("loss", "iter 9: loss 4.2188, time 3377.00ms", 4.2188, "a line loss value"),
    ],
)
def test_what_is_printed(name: str, text: str, value: float, source: str) -> None:
    metric = in_text(text, name)
    assert metric is not None and metric.value == value and metric.source.startswith(source)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("loss", "val_loss=0.5 train/loss=0.4 {'eval_loss': 0.3}"),
        ("loss", "loss=0.5x is not a number, loss=abc"),
        ("loss", "the loss went down to 0.5"),
        ("acc", "accuracy=0.5"),
        ("loss", "train loss 4.2168, val loss 4.1951"),
        ("loss", "loss 12 times"),
        ("loss", ""),
    ],
)
def test_what_is_another_name_or_no_number(name: str, text: str) -> None:
    assert in_text(text, name) is None


def test_no_number_is_a_value() -> None:
    metric = in_text("loss=nan", "loss")
    assert metric is not None and math.isnan(metric.value)


def test_what_was_printed_instead() -> None:
    assert names_in("lr=0.1 val_loss=0.5\n{'eval_acc': 0.3, 'epoch': 1}")[:2] == ["val_loss", "eval_acc"]
    assert names_in("nothing here") == []


def test_the_file_of_a_script_and_report_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metric"
    assert read_file(path, "loss") is None
    for text, value in (
        ("0.5\n", 0.5),
        ("loss=0.5\nloss=0.25\n", 0.25),
        ('{"loss": 1}\n{"other": 2}\n', 1.0),
    ):
        path.write_text(text)
        metric = read_file(path, "loss")
        assert metric is not None and metric.value == value and "OOMPROOF_METRIC_FILE" in metric.source
    path.unlink()
    monkeypatch.setenv("OOMPROOF_METRIC_FILE", str(path))
    script_api.report_metric(loss=0.75, accuracy=1)
    script_api.report_metric(loss="not a number")
    monkeypatch.setenv("RANK", "1")
    script_api.report_metric(loss=9.0)
    metric = read_file(path, "loss")
    assert metric is not None and metric.value == 0.75 and metric.source == "oomproof.report_metric"
    monkeypatch.delenv("OOMPROOF_METRIC_FILE")
    script_api.report_metric(loss=1.0)  # outside of a sweep it does nothing
