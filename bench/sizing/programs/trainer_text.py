"""The Trainer of transformers on random tokens, with an evaluation."""

import argparse
import tempfile

import torch
from shapes import make
from transformers import Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--length", type=int, default=512)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--optim", default="adamw_torch")
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--eval", action="store_true")
args = parser.parse_args()


class Tokens(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict:
        ids = torch.randint(0, 30000, (args.length,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=make(args.model),
        args=TrainingArguments(
            folder, max_steps=4, per_device_train_batch_size=args.batch, per_device_eval_batch_size=args.batch,
            gradient_accumulation_steps=args.accumulate, optim=args.optim, bf16=args.bf16,
            gradient_checkpointing=args.checkpointing, eval_strategy="steps" if args.eval else "no", eval_steps=4,
            logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True, prediction_loss_only=True,
        ),
        train_dataset=Tokens(1000), eval_dataset=Tokens(args.batch * 4),
    )  # fmt: skip
    trainer.train()
