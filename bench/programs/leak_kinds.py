"""A plain PyTorch loop with one kind of leak: `leak_kinds.py KIND SECONDS`. About 10 MiB/s, each of another kind of memory."""

from __future__ import annotations

import mmap
import sys
import time
from typing import Any

import torch

kind, seconds = sys.argv[1], float(sys.argv[2])
kept: list[Any] = []
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
begun, step = time.monotonic(), 0
while time.monotonic() - begun < seconds:
    loss = model(torch.randn(512, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if kind == "losses":
        out = model(torch.randn(512, 256))
        kept.append(out.square().mean() + 0 * loss.detach())  # with the graph and its activations
    elif kind == "objects":
        kept.append([{"step": step, "text": f"{step}-{number}"} for number in range(2_000)])
    elif kind == "arrays":
        kept.append(torch.ones(1 << 17))
    elif kind == "retained":
        blocks = []
        for _ in range(100):  # each step's are a little too large for the holes of the step before
            blocks.append(bytearray(4_000 + 40 * step))
            kept.append(bytearray(600))
        del blocks
    elif kind == "arrow":
        import pyarrow

        kept.append(pyarrow.array(range(60_000)))
    elif kind == "mapped":
        block = mmap.mmap(-1, 1 << 19, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        block.write(b"x" * (1 << 19))
        kept.append(block)
    time.sleep(0.05)
print("done", step)
