"""A trial on a card: 16 MiB for each sample of its batch, held while it "trains"; a loss at the end. Without a card: 1 MiB of RAM."""

import argparse
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seconds", type=float, default=1.0)
arguments = parser.parse_args()

on_card = torch.cuda.is_available()
size = arguments.batch << (24 if on_card else 20)
samples = 0
for _ in range(arguments.accum):
    batch = torch.ones(size, dtype=torch.uint8, device="cuda" if on_card else "cpu")
    samples += arguments.batch
    time.sleep(arguments.seconds / arguments.accum)
    del batch
print(f"samples={samples}", flush=True)
print(f"loss={1 / (arguments.batch * arguments.accum) + arguments.lr:.6f}", flush=True)
