"""Trainings to rehearse, as people write them: nothing in here knows of oomproof.

    rehearse_job.py nano|trainer|lightning|keeps|narrow [--length N] [--device cpu]

nano: batches drawn from a memory-mapped file, an evaluation and a checkpoint every so many steps. trainer: Hugging Face's, texts of
very different lengths, generation in evaluation. lightning: images of several sizes. keeps: every evaluation keeps its outputs.
narrow: an evaluation whose batches do not fit the share of the card that the script takes.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")
import torch

options = argparse.Namespace()
SMALL = 0  # set on a machine without a card


def gpt2(layers: int, positions: int = 1024) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    width = 64 if SMALL else 768
    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=width // 64,
        n_positions=positions,
        vocab_size=1000 if SMALL else 50257,
    )
    config.bos_token_id = config.eos_token_id = config.pad_token_id = 0
    return GPT2LMHeadModel(config)


def nano() -> None:
    """After nanoGPT's train.py: get_batch, estimate_loss, one file of weights and optimizer."""
    data = Path("train.bin")
    if not data.exists():
        data.write_bytes(bytes(random.Random(0).randbytes(1 << 20)))
    block, batch, accumulation, every = (64, 4, 2, 20) if SMALL else (1024, 12, 5, 20)
    device = options.device

    def get_batch() -> tuple[Any, Any]:
        import numpy

        numbers = numpy.memmap(data, dtype=numpy.uint16, mode="r")
        starts = torch.randint(len(numbers) - block, (batch,))
        rows = [
            torch.from_numpy(numbers[start : start + block].astype(numpy.int64)) % 1000 for start in starts
        ]
        x = torch.stack(rows)
        return (x.pin_memory().to(device, non_blocking=True),) * 2 if device == "cuda" else (x, x)

    model = gpt2(2 if SMALL else 12).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 6e-4)

    @torch.no_grad()
    def estimate_loss() -> float:
        model.eval()
        losses = [model(input_ids=x, labels=y).loss.item() for x, y in (get_batch() for _ in range(10))]
        model.train()
        return sum(losses) / len(losses)

    for number in range(options.length):
        if number % every == 0:
            loss = estimate_loss()
            if number:
                torch.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter": number},
                    "ckpt.pt",
                )
            print("eval", number, round(loss, 3), flush=True)
        for _ in range(accumulation):
            x, y = get_batch()
            with torch.autocast(device, torch.bfloat16):
                loss = model(input_ids=x, labels=y).loss / accumulation
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


class Texts(torch.utils.data.Dataset):
    """Most short, a few long."""

    def __init__(self, count: int, longest: int, seed: int, is_sorted: bool = False) -> None:
        lengths = [
            random.Random(seed * 7919 + number).randint(longest // 16, longest // 5)
            for number in range(count)
        ]
        lengths[count // 3] = longest
        self.lengths = sorted(lengths) if is_sorted else lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        words = random.Random(index)
        return {"input_ids": [words.randint(1, 999) for _ in range(self.lengths[index])]}


def padded(rows: list[dict[str, list[int]]]) -> dict[str, Any]:
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
    return {"input_ids": ids, "labels": ids}


def trainer() -> None:
    from transformers import Trainer, TrainingArguments

    longest = 96 if SMALL else 1536
    count = options.length

    class Generating(Trainer):
        def evaluate(self, *args: Any, **more: Any) -> Any:
            told = super().evaluate(*args, **more)
            prompts = torch.randint(1, 999, (4 if SMALL else 64, 16), device=self.model.device)
            self.model.generate(
                prompts, max_new_tokens=24 if SMALL else 256, attention_mask=torch.ones_like(prompts)
            )
            return told

    arguments = TrainingArguments(
        output_dir="out", per_device_train_batch_size=4, per_device_eval_batch_size=4, num_train_epochs=1, eval_strategy="steps",
        eval_steps=max(1, count // 8), save_steps=max(1, count // 8), save_total_limit=1, report_to=[], disable_tqdm=True, seed=0,
        use_cpu=options.device == "cpu", remove_unused_columns=False, prediction_loss_only=True,
    )  # fmt: skip
    model = gpt2(2 if SMALL else 12, 2048)
    train, test = Texts(count, longest, 1), Texts(max(8, count // 10), longest * 2 // 3, 2, is_sorted=True)
    Generating(
        model=model, args=arguments, train_dataset=train, eval_dataset=test, data_collator=padded
    ).train()


def lightning() -> None:
    import lightning

    sides = [(16, 32), (32, 48)] if SMALL else [(160, 224), (224, 512)]

    class Images(torch.utils.data.Dataset):
        def __init__(self, count: int, seed: int) -> None:
            self.sides = [
                random.Random(seed * 104729 + number).choice([sides[0][0], sides[0][1]])
                for number in range(count)
            ]
            self.sides[count // 2] = sides[1][1]

        def __len__(self) -> int:
            return len(self.sides)

        def __getitem__(self, index: int) -> Any:
            return torch.zeros(3, self.sides[index], self.sides[index])

    def stacked(images: list[Any]) -> Any:
        side = max(image.shape[1] for image in images)
        return torch.stack(
            [
                torch.nn.functional.pad(image, (0, side - image.shape[2], 0, side - image.shape[1]))
                for image in images
            ]
        )

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            width = 8 if SMALL else 64
            nn = torch.nn
            parts = [
                nn.Conv2d(3, width, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1),
            ]
            self.net = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))

        def training_step(self, batch: Any, number: int) -> Any:
            return self.net(batch).square().mean()

        def validation_step(self, batch: Any, number: int) -> None:
            self.log("loss", self.net(batch).square().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 1e-3)

    loaders = [
        torch.utils.data.DataLoader(
            Images(options.length * scale, scale),
            batch_size=8,
            shuffle=scale > 1,
            collate_fn=stacked,
            num_workers=2,
        )
        for scale in (4, 1)
    ]
    kind = "cpu" if options.device == "cpu" else "gpu"
    lightning.Trainer(max_epochs=2, accelerator=kind, devices=1, enable_progress_bar=False, logger=False).fit(
        Net(), *loaders
    )


def keeps() -> None:
    width = 2000 if SMALL else 200_000
    rows = torch.randn(options.length, 64)
    model = torch.nn.Linear(64, width).to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    results = []
    for _ in range(3):
        for batch in torch.utils.data.DataLoader(rows, batch_size=64, shuffle=True):
            model(batch.to(options.device)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            for batch in torch.utils.data.DataLoader(rows.repeat(100, 1), batch_size=64):
                results.append(model(batch.to(options.device)))
                if len(results) % 2:
                    __import__("time").sleep(0.3)  # a real evaluation takes its time
        model.train()


def narrow() -> None:
    if options.device == "cuda":
        torch.cuda.set_per_process_memory_fraction(0.02)
    model = torch.nn.Linear(1024, 32_000).to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    small, large = (
        torch.utils.data.DataLoader(torch.randn(60_000, 1024), batch_size=size) for size in (256, 30_000)
    )
    for _ in range(2):
        for batch in small:
            model(batch.to(options.device)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            for batch in large:
                model(batch.to(options.device)).softmax(-1).sum()
        model.train()


def main() -> int:
    global SMALL
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["nano", "trainer", "lightning", "keeps", "narrow"])
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    parser.parse_args(namespace=options)
    SMALL = options.device == "cpu"
    torch.manual_seed(0)
    globals()[options.what]()
    print("done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
