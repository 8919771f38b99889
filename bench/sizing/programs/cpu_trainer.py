"""The Trainer of transformers on the CPU: a small GPT-2 on random tokens, with an evaluation."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict:
        ids = torch.randint(0, 8000, (128,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


with tempfile.TemporaryDirectory() as folder:
    Trainer(
        model=GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=384, n_head=6, vocab_size=8000, n_positions=128)),
        args=TrainingArguments(
            folder, max_steps=5, per_device_train_batch_size=16, use_cpu=True, eval_strategy="steps", eval_steps=5,
            logging_steps=5, report_to=[], save_strategy="no", disable_tqdm=True, prediction_loss_only=True,
        ),
        train_dataset=Tokens(400), eval_dataset=Tokens(16),
    ).train()  # fmt: skip
