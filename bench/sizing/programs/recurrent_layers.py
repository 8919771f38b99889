"""LSTM and GRU layers as people use them: taggers, forecasters, acoustic models; depth, directions, projection and packing are arguments."""

import argparse
import contextlib

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

parser = argparse.ArgumentParser()
parser.add_argument("cell", choices=("LSTM", "GRU"))
parser.add_argument("--input", type=int, default=256)
parser.add_argument("--hidden", type=int, default=512)
parser.add_argument("--layers", type=int, default=1)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--length", type=int, default=128)
parser.add_argument("--outputs", type=int, default=32)
parser.add_argument("--vocabulary", type=int, default=0)
parser.add_argument("--projection", type=int, default=0)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--both-ways", action="store_true")
parser.add_argument("--batch-first", action="store_true")
parser.add_argument("--last-only", action="store_true")
parser.add_argument("--packed", action="store_true")
parser.add_argument("--amp", choices=("bfloat16", "float16"))
parser.add_argument("--optimizer", default="Adam")
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        if args.vocabulary:
            self.words = nn.Embedding(args.vocabulary, args.input)
        options = {"proj_size": args.projection} if args.projection else {}
        self.body = getattr(nn, args.cell)(
            args.input, args.hidden, args.layers, batch_first=args.batch_first, bidirectional=args.both_ways,
            dropout=args.dropout, **options,
        )  # fmt: skip
        self.head = nn.Linear((args.projection or args.hidden) * (2 if args.both_ways else 1), args.outputs)

    def forward(self, x, lengths):
        if args.vocabulary:
            x = self.words(x)
        if args.packed:
            x = pack_padded_sequence(x, lengths, batch_first=args.batch_first, enforce_sorted=False)
        out, _ = self.body(x)
        if args.packed:
            out, _ = pad_packed_sequence(out, batch_first=args.batch_first, total_length=args.length)
        if args.last_only:
            out = out[:, -1] if args.batch_first else out[-1]
        return self.head(out)


torch.manual_seed(0)
model = Network().cuda().train()
optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda", enabled=args.amp == "float16")
shape = (args.batch, args.length) if args.batch_first else (args.length, args.batch)
for step in range(args.steps):
    if args.vocabulary:
        x = torch.randint(0, args.vocabulary, shape).cuda()
    else:
        x = torch.randn(*shape, args.input).cuda()
    lengths = torch.randint(args.length // 2, args.length + 1, (args.batch,))
    lengths[0] = args.length
    mixed = torch.autocast("cuda", getattr(torch, args.amp)) if args.amp else contextlib.nullcontext()
    with mixed:
        logits = model(x, lengths)
        target = torch.randint(0, args.outputs, logits.shape[:-1]).cuda()
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), target.flatten())
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.3f}", flush=True)
