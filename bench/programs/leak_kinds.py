"""A plain PyTorch loop with one leak, or with what only looks like one: `leak_kinds.py KIND SECONDS`. A few MiB a second, each of
another kind of memory or place."""

from __future__ import annotations

import ctypes
import functools
import mmap
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

CACHE: dict[int, Any] = {}


class Recorder:
    def __init__(self) -> None:
        self.activations: list[Any] = []

    def hook(self, module: Any, inputs: Any, output: Any) -> None:
        self.activations.append(output)


EXTENSION = """#include <stdlib.h>
#include <string.h>
static void *keep_row(size_t size) { void *row = malloc(size); memset(row, 1, size); return row; }
void tokenize(size_t size) { keep_row(size); }
"""


def extension() -> Any:
    """Native code that leaks with malloc."""
    folder = Path(tempfile.mkdtemp(prefix="oomproof-bench-"))
    source, library = folder / "rows.c", folder / "librows.so"
    source.write_text(EXTENSION)
    subprocess.run(["gcc", "-g", "-O0", "-shared", "-fPIC", "-o", library, source], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.tokenize.argtypes = [ctypes.c_size_t]
    return loaded


@functools.cache  # a cache without bound, in an object of the standard library
def describe(step: int, number: int) -> str:
    return f"row {number} of step {step}, described in some words"


class Server(threading.Thread):
    """Serves one request after the other and frees all of it but the last block, which lies above the rest: the arena that the C
    library gave this thread keeps the rest. The threads themselves stay, as those of a pool do."""

    def __init__(self, size: int) -> None:
        super().__init__(daemon=True)
        self.size = size
        self.start()

    def run(self) -> None:
        blocks = [bytearray(20_000) for _ in range(self.size // 20_000)]
        self.words = blocks[-1]
        del blocks
        threading.Event().wait()


class Rows(torch.utils.data.Dataset[Any]):
    """Strings in a Python list, which each worker copies by reading them."""

    def __init__(self) -> None:
        self.rows = [f"row {number} with some words in it" for number in range(3_000_000)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> int:
        return len(self.rows[index])


def copied(seconds: float) -> int:
    model, begun, step = torch.nn.Linear(1, 1), time.monotonic(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=4000, num_workers=2, shuffle=False)
    for batch in loader:
        optimizer.zero_grad()
        model(batch.float()[:8, None]).mean().backward()
        optimizer.step()
        step += 1
        time.sleep(0.25)
        if time.monotonic() - begun >= seconds:
            print("done", step, flush=True)
            for worker in multiprocessing.active_children():
                worker.kill()
            os._exit(0)  # as a training that is ended in the middle of an epoch
    return step


def main(kind: str, seconds: float) -> int:
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    recorder = Recorder()
    if kind == "hook":
        model.register_forward_hook(recorder.hook)
    if kind == "copied":
        return copied(seconds)
    library = extension() if kind == "extension" else None
    servers: list[Server] = []
    pages = page_cache() if kind == "page-cache" else None
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
        elif kind == "extension":
            library.tokenize(1 << 20)
        elif kind == "library":
            for number in range(4_000):
                describe(step, number)
        elif kind == "retained" and step % 60 == 0:
            servers.append(Server(40 << 20))
        elif kind == "warm-up" and step <= 300:
            arrays.append(torch.ones(1 << 18))
        elif pages is not None:
            begin = step * (1 << 20) % len(pages)
            sum(pages[begin : begin + (1 << 20) : 4096])
        time.sleep(0.05)
    return step


def page_cache() -> Any:
    """A mapped file: its pages are read one after the other, and stay as long as there is memory for them."""
    with tempfile.TemporaryFile() as file:
        for _ in range(1024):
            file.write(bytes(1 << 20))
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


print("done", main(sys.argv[1], float(sys.argv[2])))
