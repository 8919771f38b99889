"""A plain PyTorch loop with one leak: `leak_kinds.py KIND SECONDS`. A few MiB a second, each of another kind of memory or place."""

from __future__ import annotations

import mmap
import sys
import time
from typing import Any

import torch

CACHE: dict[int, Any] = {}


class Recorder:
    def __init__(self) -> None:
        self.activations: list[Any] = []

    def hook(self, module: Any, inputs: Any, output: Any) -> None:
        self.activations.append(output)


def main(kind: str, seconds: float) -> int:
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    recorder = Recorder()
    if kind == "hook":
        model.register_forward_hook(recorder.hook)
    losses, rows, arrays, tables, blocks, outputs = [], [], [], [], [], []
    begun, step = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        loss = model(torch.randn(512, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        step += 1
        if kind == "losses":
            losses.append(loss)
        elif kind == "objects":
            rows.append([{"step": step, "text": f"{step}-{number}"} for number in range(2_000)])
        elif kind == "arrays":
            arrays.append(torch.ones(1 << 17))
        elif kind == "cache":
            CACHE[step] = torch.ones(1 << 17)
        elif kind == "logits" and step % 10 == 0:
            model.eval()
            for _ in range(10):
                with torch.no_grad():
                    outputs.append(model(torch.randn(512, 256)))
            model.train()
        elif kind == "arrow":
            import pyarrow

            tables.append(pyarrow.array(range(60_000)))
        elif kind == "mapped":
            block = mmap.mmap(-1, 1 << 19, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            block.write(b"x" * (1 << 19))
            blocks.append(block)
        time.sleep(0.05)
    return step


print("done", main(sys.argv[1], float(sys.argv[2])))
