"""A Hugging Face training with one of the leaks that people really have. `leaks.py KIND`."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

MIB = 1 << 20
KEPT: list[Any] = []  # where the leaks go


def keep(size: int) -> None:
    KEPT.append(torch.ones(size, dtype=torch.uint8))


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """``leak``: bytes that each item leaves behind in the process that reads it, the training's or a worker's."""

    def __init__(self, count: int, leak: int = 0) -> None:
        self.ids = torch.randint(0, 2000, (count, 64), generator=torch.Generator().manual_seed(1))
        self.leak = leak

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if self.leak:
            keep(self.leak)
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


class Leak(TrainerCallback):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = state.global_step
        time.sleep(0.05)  # a step takes a tenth of a second on any machine
        if self.kind == "each step":
            keep(MIB // 2)
        elif self.kind == "drip":
            keep(MIB // 16)
        elif self.kind == "stairs" and step % 60 == 0:
            keep(12 * MIB)
        elif self.kind == "late" and step > 250:
            keep(MIB // 2)
        elif self.kind == "fill" and step > 60:
            for _ in range(40):
                keep(25 * MIB)
                time.sleep(0.02)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.kind == "eval":
            keep(10 * MIB)


if __name__ == "__main__":
    kind = sys.argv[1]
    config = GPT2Config(vocab_size=2000, n_embd=96, n_layer=2, n_head=2, n_positions=64)
    settings = TrainingArguments(
        output_dir="leak", max_steps=4000, per_device_train_batch_size=4, report_to="none", use_cpu=True,
        disable_tqdm=True, save_strategy="no", eval_strategy="steps" if kind == "eval" else "no", eval_steps=40,
        dataloader_num_workers=2 if kind == "workers" else 0,
    )  # fmt: skip
    trainer = Trainer(
        GPT2LMHeadModel(config),
        settings,
        train_dataset=Tokens(20_000, MIB // 8 if kind == "workers" else 0),
        eval_dataset=Tokens(32),
        callbacks=[Leak(kind)],
    )
    trainer.train()
