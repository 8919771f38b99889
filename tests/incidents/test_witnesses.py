"""Leaks that counters and containers cannot name, in real trainings: the tracer of that kind of memory is asked, and names the line;
and memory that is only kept is called no leak."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Lab

pytest.importorskip("torch", reason="the extra [ml] is not installed")
pytestmark = [pytest.mark.timeout(400), pytest.mark.long]

TRAIN = """import ctypes
import functools
import threading
import time

import torch

torch.set_num_threads(1)
{before}


def main():
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    servers = []
    for step in range({steps}):
        loss = model(torch.randn(16, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {leak}
        time.sleep(0.1)


main()
"""

EXTENSION = """#include <stdlib.h>
#include <string.h>
static void *keep_row(size_t size) { void *row = malloc(size); memset(row, 1, size); return row; }
void tokenize(size_t size) { keep_row(size); }
"""

CACHE = """

@functools.lru_cache(maxsize=None)
def describe(step, number):
    return f"row {number} of step {step}, " + "described in some words, which are kept " * 8
"""

SERVER = """

def serve():
    blocks = [bytearray(20_000) for _ in range(2000)]
    last = blocks[-1]
    del blocks
    threading.Event().wait()
"""


def train(lab: Lab, script: Path, name: str, limit: str) -> str:
    lab.run("run", "--name", name, "--limit", limit, "--", sys.executable, str(script), timeout=380)
    return "\n".join(path.read_text() for path in lab.state.glob("oomproof/runs/*/1/memory_alerts.log"))


def line_of(script: Path, text: str) -> int:
    return 1 + next(at for at, line in enumerate(script.read_text().splitlines()) if text in line)


def test_a_cache_inside_a_library_is_named_by_tracemalloc(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    leak = "[describe(step, number) for number in range(1500)]"
    script.write_text(TRAIN.format(before=CACHE, leak=leak, steps=3000))
    said = train(lab, script, "cache", "900M")
    number = line_of(script, "return f")
    assert f"at serve.py:{number} made " in said and "a step" in said
    judged = json.loads(lab.run("why", "cache", "--json").stdout)
    following = judged["verdict"]["next"]
    assert f"serve.py:{number} made " in following or "kept in describe, a _lru_cache_wrapper" in following
    place = judged["growth"]["where"][0]
    assert (place["file"], place["line"], place["witness"]) == (str(script), number, "tracemalloc")


@pytest.mark.skipif(
    importlib.util.find_spec("memray") is None or shutil.which("gcc") is None,
    reason="no memray, or no compiler",
)
def test_a_c_extension_is_named_by_memray(lab: Lab, tmp_path: Path) -> None:
    source, library = tmp_path / "rows.c", tmp_path / "librows.so"
    source.write_text(EXTENSION)
    subprocess.run(["gcc", "-g", "-O0", "-shared", "-fPIC", "-o", library, source], check=True)
    script = tmp_path / "train.py"
    before = f'library = ctypes.CDLL("{library}")\nlibrary.tokenize.argtypes = [ctypes.c_size_t]'
    script.write_text(TRAIN.format(before=before, leak="library.tokenize(1 << 19)", steps=3000))
    said = train(lab, script, "native", "900M")
    number = line_of(script, "library.tokenize(1 <<")
    assert f"at train.py:{number}, in keep_row (rows.c:3) < tokenize (rows.c:4), made " in said


def test_what_arenas_keep_is_no_leak(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    leak = "step % 50 or servers.append(threading.Thread(target=serve, daemon=True)) or servers[-1].start()"
    script.write_text(TRAIN.format(before=SERVER, leak=leak, steps=900))
    said = train(lab, script, "kept", "3G")
    assert "malloc_trim gave" in said and "not a leak" in said
    told = lab.run("trend", "kept").stdout
    assert "a leak, or a cache without bound" not in told and "proof    the C library kept" in told
