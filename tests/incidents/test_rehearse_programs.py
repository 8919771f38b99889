"""Unmodified programs rehearsed on the CPU: their largest batch comes first, every phase is reached, and their files stay as they were."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra [ml] is not installed")
pytestmark = pytest.mark.timeout(280)
MIB = 1 << 20

# Texts of 10 to 60 tokens and one of 400; what an evaluation keeps is let go. `torch.set_num_threads`: two cores are shared.
PLAIN = """
import random, sys, torch
from torch import nn
torch.set_num_threads(1)
lengths = [random.Random(number).randint(10, 60) for number in range(300)]
lengths[217] = 400
data = [torch.randint(0, 500, (length,)) for length in lengths]
pad = lambda rows: nn.utils.rnn.pad_sequence(rows, batch_first=True)
train = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, collate_fn=pad, num_workers=1)
test = torch.utils.data.DataLoader(sorted(data, key=len)[:96], batch_size=16, collate_fn=pad)
model = nn.Sequential(nn.Embedding(500, 64), nn.Linear(64, 500))
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(1000):
    model.train()
    for ids in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for ids in test:
            model(ids)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
    open("precious.txt", "a").write("spoiled")
"""

TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
torch.set_num_threads(1)

class Texts(torch.utils.data.Dataset):
    def __init__(self, count): self.count = count
    def __len__(self): return self.count
    def __getitem__(self, index):
        return {"input_ids": [1 + index % 400] * (96 if index == self.count // 2 else 8 + index % 12)}

def pad(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows])
    return {"input_ids": ids, "labels": ids}

class Generating(Trainer):
    def evaluate(self, *args, **more):
        told = super().evaluate(*args, **more)
        self.model.generate(torch.ones(2, 4, dtype=torch.long), max_new_tokens=12, pad_token_id=0)
        return told

model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=500, n_positions=128, bos_token_id=0, eos_token_id=1))
model.eval()  # as from_pretrained() leaves it; the Trainer takes its first batch before it calls train()
arguments = TrainingArguments("out", per_device_train_batch_size=4, max_steps=5000, eval_strategy="steps", eval_steps=1000,
                              save_steps=1000, report_to=[], use_cpu=True, disable_tqdm=True, remove_unused_columns=False)
Generating(model=model, args=arguments, train_dataset=Texts(400), eval_dataset=Texts(24), data_collator=pad).train()
"""

NEVER_SWITCHED = """
import torch
from torch import nn
torch.set_num_threads(1)
rows = [torch.ones(300 if number == 40 else 5, 16) for number in range(64)]
train = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True, collate_fn=torch.cat)
model = nn.Linear(16, 16).eval()  # as from_pretrained() leaves it
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(1000):
    for batch in train:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
"""

LIGHTNING = """
import lightning, torch
torch.set_num_threads(1)

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
    def training_step(self, batch, number): return self.net(batch).square().mean()
    def validation_step(self, batch, number): self.log("loss", self.net(batch).square().mean())
    def configure_optimizers(self): return torch.optim.Adam(self.parameters())

rows = [torch.ones(300 if number == 40 else 2 + number % 9, 16) for number in range(200)]
loaders = [torch.utils.data.DataLoader(rows[:count], batch_size=8, shuffle=count > 100, collate_fn=torch.cat) for count in (200, 64)]
lightning.Trainer(max_epochs=1000, accelerator="cpu", enable_progress_bar=False, logger=False).fit(Net(), *loaders)
"""


def rehearse(
    script: str, folder: Path, *flags: str
) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    (folder / "train.py").write_text(script)
    (folder / "precious.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    command = [
        sys.executable,
        "-m",
        "oomproof.cli.main",
        "rehearse",
        "--json",
        *flags,
        "--",
        sys.executable,
        "-W",
        "ignore",
        "train.py",
    ]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder.parent / "state")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=250)
    value = json.loads(done.stdout)
    if "cannot be kept private here" in str(value["refused"]):
        pytest.skip(value["refused"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before, "not a file has changed"
    return value, done


def reached(value: dict[str, Any]) -> set[str]:
    return {phase["phase"] for phase in value["phases"] if phase["reached"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def test_a_plain_loop(folder: Path) -> None:
    value, done = rehearse(PLAIN, folder)
    assert (value["refused"], done.returncode) == (None, 0), done.stderr
    train, test = value["batches"]
    assert (
        train["training"]
        and train["shapes"] == ["int64 [8, 400]"]
        and train["looked_at"] == train["of"] == 300
    )
    assert "draws at random" in train["how"]
    assert (
        not test["training"] and test["shapes"][0].startswith("int64 [16, ") and "of 6 batches" in test["how"]
    )
    assert reached(value) == {"load", "train", "eval", "save"} and value["evaluations"] == 2
    assert all(phase["host_bytes"] > 50 * MIB for phase in value["phases"] if phase["reached"])
    assert value["gpu"] is None and value["seconds"] < 120
    assert 0 < value["step_seconds"] < value["seconds"]


def test_hugging_face_trainer(folder: Path) -> None:
    pytest.importorskip("transformers")
    value, done = rehearse(TRAINER, folder)
    assert (value["refused"], done.returncode) == (None, 0), done.stderr
    train, test = value["batches"][:2]
    assert train["training"] and train["shapes"][0] == "int64 [4, 96]"
    assert not test["training"]
    assert reached(value) == {"load", "train", "eval", "generate", "save"}
    assert value["evaluations"] == 2 and value["generations"] >= 1 and value["saves"] >= 1


def test_a_model_that_is_never_switched_to_training_is_trained_all_the_same(folder: Path) -> None:
    value, done = rehearse(NEVER_SWITCHED, folder, "--time-limit", "12s")
    assert (value["refused"], done.returncode) == (None, 0), done.stderr
    (batch,) = value["batches"]
    assert batch["training"] and batch["shapes"] == ["float32 [315, 16]"]
    assert value["evaluations"] == 0


def test_lightning(folder: Path) -> None:
    pytest.importorskip("lightning")
    value, done = rehearse(LIGHTNING, folder)
    assert (value["refused"], done.returncode) == (None, 0), done.stderr
    trained = next(batch for batch in value["batches"] if batch["training"])
    rows = int(trained["shapes"][0].split("[")[1].split(",")[0])
    assert rows > 300, "the row of 300 is in it"
    assert {"train", "eval"} <= reached(value) and value["evaluations"] >= 2
