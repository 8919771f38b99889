"""Trainings whose one batch in eleven is too large for what the card has left. Plain PyTorch loops: nothing in here knows of oomproof.

    spill_job.py MODEL[,MODEL…] [--large N] [--sizes 4,4,12] [--then raise|exit|sleep:N] [--catch] [--gate FILE] [--device cpu]

One JSON line a step. ``--measure LEFT`` finds, on an empty card, the batch that needs LEFT GiB and four more. ``--gate``: all is
imported and built, and the card is not touched before that file is there.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")
import torch

GIB = 1 << 30
options = argparse.Namespace()
USUAL = {"gpt2": 4, "bf16": 4, "compiled": 8, "resnet": 32, "lora": 4, "unet": 2, "small": 64}


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def on(thing: Any) -> Any:
    return thing.to(options.device)


def gate() -> None:
    """Waits for its turn on the card."""
    say(ready=True)
    end = time.monotonic() + 300
    while options.gate and not os.path.exists(options.gate) and time.monotonic() < end:
        time.sleep(0.05)


def gpt2(layers: int = 12, positions: int = 1024) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers, n_positions=positions, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0
    )
    config.bos_token_id = config.eos_token_id = config.pad_token_id = 0
    return GPT2LMHeadModel(config)


class Adapter(torch.nn.Module):
    """Of low rank, beside a frozen layer."""

    def __init__(self, layer: Any, inputs: int, outputs: int, rank: int = 8) -> None:
        super().__init__()
        self.layer = layer
        self.down, self.up = (
            torch.nn.Linear(inputs, rank, bias=False),
            torch.nn.Linear(rank, outputs, bias=False),
        )
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, x: Any) -> Any:
        return self.layer(x) + self.up(self.down(x))


def lora() -> Any:
    model = gpt2()
    model.requires_grad_(False)
    for block in model.transformer.h:
        block.attn.c_attn = Adapter(block.attn.c_attn, 768, 3 * 768)
    return model


class Unet(torch.nn.Module):
    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        sizes = [width << level for level in range(depth)]
        self.down = torch.nn.ModuleList(
            self.block(a, b) for a, b in zip([3, *sizes[:-1]], sizes, strict=True)
        )
        self.up = torch.nn.ModuleList(self.block(a + b, a) for a, b in itertools.pairwise(sizes))
        self.last = torch.nn.Conv2d(width, 1, 1)

    @staticmethod
    def block(inputs: int, outputs: int) -> Any:
        nn = torch.nn
        parts = [
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
        ]
        return nn.Sequential(*parts, nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, x: Any) -> Any:
        kept = []
        for number, block in enumerate(self.down):
            x = block(x if number == 0 else torch.nn.functional.max_pool2d(x, 2))
            kept.append(x)
        x = kept.pop()
        for block in reversed(self.up):
            x = block(torch.cat([torch.nn.functional.interpolate(x, scale_factor=2), kept.pop()], 1))
        return self.last(x)


def built(name: str) -> Any:
    """In host memory."""
    torch.manual_seed(0)
    if name == "lora":
        return lora()
    if name == "compiled":
        return gpt2(4)
    if name == "trainer":
        return gpt2(12, 4096)
    if name == "small":
        return torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(12)])
    if name == "unet":
        return Unet()
    if name == "resnet":
        import torchvision

        return torchvision.models.resnet50(weights=None)
    return gpt2()


def loss_of(name: str, model: Any) -> Any:
    """From the size of a batch to its loss."""
    random = torch.Generator().manual_seed(1)

    def of_text(n: int) -> Any:
        ids = on(torch.randint(1, 50257, (n, 512), generator=random))
        with torch.autocast(options.device, torch.bfloat16, enabled=name in ("bf16", "compiled")):
            return model(input_ids=ids, labels=ids).loss

    def of_images(n: int) -> Any:
        x, y = (
            on(torch.randn(n, 3, 224, 224, generator=random)),
            on(torch.randint(0, 1000, (n,), generator=random)),
        )
        return torch.nn.functional.cross_entropy(model(x), y)

    def of_numbers(n: int) -> Any:
        shape = (n, 3, 512, 512) if name == "unet" else (n, 512)
        return model(on(torch.randn(shape, generator=random))).square().mean()

    return {"resnet": of_images, "unet": of_numbers, "small": of_numbers}.get(name, of_text)


class Batches(torch.utils.data.Dataset):
    """Tensors as long as the batches are large: the loop makes those itself; the loader's workers are forked all the same."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(self.sizes[index])


def train(name: str, model: Any, sizes: list[int]) -> None:
    model = on(model)
    model = torch.compile(model) if name == "compiled" else model
    loss_from = loss_of(name, model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-4)
    workers = 2 if name == "resnet" else 0
    for number, numbers in enumerate(
        torch.utils.data.DataLoader(Batches(sizes), batch_size=None, num_workers=workers)
    ):
        size = len(numbers)
        sync()
        begun = time.perf_counter()
        loss = loss_from(size)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        say(
            model=name,
            step=number + 1,
            batch=size,
            s=round(time.perf_counter() - begun, 4),
            loss=round(value, 6),
        )


def sync() -> None:
    if options.device == "cuda":
        torch.cuda.synchronize()


def trainer(model: Any, sizes: list[int]) -> None:
    """Hugging Face's, with one batch of long texts. ``sizes`` are lengths."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    random = torch.Generator().manual_seed(1)
    rows = [torch.randint(1, 50257, (length,), generator=random) for length in sizes for _ in range(4)]

    class Told(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            if logs and "loss" in logs:
                say(model="trainer", step=state.global_step, batch=sizes[state.global_step - 1], s=round(time.perf_counter() - self.begun, 4),
                    loss=round(float(logs["loss"]), 6))  # fmt: skip

        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            sync()
            self.begun = time.perf_counter()

    class InOrder(Trainer):
        def _get_train_sampler(self, *args: Any, **more: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = TrainingArguments(
        output_dir=options.out, per_device_train_batch_size=4, num_train_epochs=1, logging_steps=1, save_strategy="no", report_to=[],
        disable_tqdm=True, learning_rate=1e-4, seed=0, use_cpu=options.device == "cpu",
    )  # fmt: skip

    def collate(batch: list[Any]) -> Any:
        ids = torch.stack(batch)
        return {"input_ids": ids, "labels": ids}

    InOrder(
        model=model, args=arguments, train_dataset=rows, data_collator=collate, callbacks=[Told()]
    ).train()


def generate(model: Any, sizes: list[int]) -> None:
    """A step of training, then an evaluation that generates for so many sequences."""
    model = on(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    random = torch.Generator().manual_seed(1)
    for number, size in enumerate(sizes):
        ids = on(torch.randint(1, 50257, (2, 256), generator=random))
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        prompts = on(torch.randint(1, 50257, (size, 160), generator=random))
        sync()
        begun = time.perf_counter()
        with torch.no_grad():
            made = model.generate(
                prompts,
                max_new_tokens=64,
                min_new_tokens=64,
                do_sample=False,
                attention_mask=torch.ones_like(prompts),
            )
        sync()
        model.train()
        say(
            model="generate",
            step=number + 1,
            batch=size,
            s=round(time.perf_counter() - begun, 4),
            loss=round(loss.item(), 6),
            tokens=int(made[:, 160:].sum()),
        )


LARGE = {"trainer": 1600, "generate": 640}  # for 10 GiB; what --measure finds for the others
FEW = {"trainer": 256, "generate": 64}


def run(name: str, model: Any, sizes: list[int]) -> None:
    torch.manual_seed(0)
    if name in FEW:
        {"trainer": trainer, "generate": generate}[name](model, sizes)
    else:
        train(name, model, sizes)


def measure(name: str, left: float) -> int:
    """The batch that needs what is left and four GiB more, by what the usual one and one twice as large need."""
    if name in LARGE:
        return LARGE[name]
    model = on(built(name))
    model = torch.compile(model) if name == "compiled" else model
    loss_from = loss_of(name, model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-4)
    usual, peaks = USUAL[name], []
    for size in (usual, usual, 2 * usual):
        torch.cuda.reset_peak_memory_stats()
        loss_from(size).backward()
        optimizer.step()
        optimizer.zero_grad()
        peaks.append(torch.cuda.max_memory_allocated())
    each = (peaks[2] - peaks[1]) / usual
    return round(usual + (left * GIB + 4 * GIB - peaks[1]) / each)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("models")
    parser.add_argument("--large", type=int, default=0)
    parser.add_argument("--sizes", default="")  # by hand: 4,4,12
    parser.add_argument("--then", default="")
    parser.add_argument("--catch", action="store_true")
    parser.add_argument("--measure", type=float, default=0.0)
    parser.add_argument("--plan", default="")  # a file with the large batch of each model
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", default="/tmp/spill-job")
    parser.add_argument("--gate", default="")
    parser.parse_args(namespace=options)
    plan = json.loads(Path(options.plan).read_text()) if options.plan and os.path.exists(options.plan) else {}
    names = options.models.split(",")
    models = {} if options.measure else {name: built(name) for name in names}
    gate()
    for name in names:
        if options.measure and name not in plan:
            plan[name] = measure(name, options.measure)
            say(model=name, large=plan[name])
            Path(options.plan).write_text(json.dumps(plan))
            forget()
        few = FEW.get(name) or USUAL[name]
        large = options.large or plan.get(name) or 3 * few
        sizes = [int(size) for size in options.sizes.split(",") if size] or [few] * 5 + [large] + [few] * (
            0 if options.catch else 5
        )
        try:
            run(name, models.pop(name, None) or built(name), sizes)
        except torch.cuda.OutOfMemoryError as error:
            if not options.catch:
                raise
            say(model=name, oom=str(error)[:160])
        forget()
    then, _, value = options.then.partition(":")
    if then == "sleep":
        say(sleeps=True)
        time.sleep(float(value))
    if then in ("raise", "exit"):
        kept = [
            torch.ones(64 << 20, device=options.device) for _ in range(4 * int(value or 12))
        ]  # of 256 MiB each: some lie in host memory
        say(kept=len(kept))
        if then == "raise":
            raise ValueError("while spilled")
        sys.exit(3)
    say(done=True)
    return 0


def forget() -> None:
    gc.collect()
    if options.device == "cuda":
        torch._dynamo.reset() if "torch._dynamo" in sys.modules else None
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
