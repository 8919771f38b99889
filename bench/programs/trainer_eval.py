"""Hugging Face Trainer: a small GPT-2 with random weights, evaluation that gathers logits, a checkpoint after each."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, count: int) -> None:
        self.ids = torch.randint(0, 4000, (count, 96), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


if __name__ == "__main__":
    config = GPT2Config(vocab_size=4000, n_embd=192, n_layer=3, n_head=3, n_positions=96)
    settings = TrainingArguments(
        output_dir="trainer", max_steps=90, per_device_train_batch_size=4, eval_strategy="steps", eval_steps=30,
        save_strategy="steps", save_steps=30, report_to="none", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(
        GPT2LMHeadModel(config),
        settings,
        train_dataset=Tokens(2000),
        eval_dataset=Tokens(64),
        compute_metrics=lambda seen: {"highest": float(seen.predictions.max())},
    )
    trainer.train()
