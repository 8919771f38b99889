"""Trains a language model on random tokens: a loop with the usual options."""

import argparse
import contextlib

import torch
from shapes import make
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--length", type=int, default=512)
parser.add_argument("--optimizer", default="AdamW")
parser.add_argument("--amp", choices=("bfloat16", "float16"))
parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="float32")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--lora", type=int, default=0)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--generate", type=int, default=0)
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False, device="cuda")
        self.b = nn.Linear(rank, base.out_features, bias=False, device="cuda")

    def forward(self, x):
        return self.base(x) + self.b(self.a(x.to(self.a.weight.dtype))).to(x.dtype)


torch.manual_seed(0)
with torch.device("cuda"):
    model = make(args.model)
model = model.to(getattr(torch, args.dtype))
if args.lora:
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name in ("q_proj", "v_proj"):
            if isinstance(getattr(module, name, None), nn.Linear):
                setattr(module, name, LoRALinear(getattr(module, name), args.lora))
if args.checkpointing:
    model.gradient_checkpointing_enable()
    model.config.use_cache = False
model.train()
optimizer = getattr(torch.optim, args.optimizer)([p for p in model.parameters() if p.requires_grad], lr=1e-5)
scaler = torch.amp.GradScaler("cuda", enabled=args.amp == "float16")
vocabulary = model.config.vocab_size
classes = getattr(model.config, "num_labels", 2) if "Classification" in type(model).__name__ else 0

for step in range(args.steps):
    for _ in range(args.accumulate):
        ids = torch.randint(0, vocabulary, (args.batch, args.length)).cuda()
        labels = torch.randint(0, classes, (args.batch,)).cuda() if classes else ids
        mixed = torch.autocast("cuda", getattr(torch, args.amp)) if args.amp else contextlib.nullcontext()
        with mixed:
            loss = model(input_ids=ids, labels=labels).loss / args.accumulate
        scaler.scale(loss).backward()
    if args.clip:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print(f"step {step} loss {loss.item():.3f}", flush=True)

if args.generate:
    model.eval()
    with torch.no_grad():
        prompt = torch.randint(0, vocabulary, (args.batch, 64)).cuda()
        model.generate(
            prompt, max_new_tokens=args.generate, min_new_tokens=args.generate, do_sample=True, pad_token_id=0
        )
    print("generated", flush=True)
