"""Asking the job for a closer look, and reading what memray wrote in it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from oomproof.agent import tracers
from oomproof.runner.trace_requests import TraceRequests, trim_text

MIB = 1 << 20

NATIVE = """#include <stdlib.h>
#include <string.h>
static void *keep_row(size_t size) { void *row = malloc(size); memset(row, 1, size); return row; }
void tokenize(size_t size) { keep_row(size); }
void use(size_t size) { free(keep_row(size)); }
"""

JOB = """import ctypes, os, sys, time
sys.path.insert(0, {source!r})
from oomproof.agent.tracers import MemrayTracer

library = ctypes.CDLL({library!r})
for function in (library.tokenize, library.use):
    function.argtypes = [ctypes.c_size_t]


def train(step):
    library.use(3 << 20)
    library.tokenize(1 << 18)
    return bytearray(8 << 20)  # a batch: alive at the end, and made anew in each step


tracer = MemrayTracer({file!r})
assert tracer.problem(1 << 40) == "", tracer.problem(1 << 40)
tracer.start()
for step in range(40):
    batch = train(step)
    if step == 20 and not os.fork():
        os._exit(0)  # a worker that begins inside the window
    time.sleep(0.02)
assert not tracer.is_full()
tracer.finish()
train(0)
"""


class Read:
    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.stored: list[tuple[str, dict[str, Any]]] = []
        self.done = threading.Event()
        self.requests = TraceRequests(folder, self.said.append, self.store)

    def store(self, t: float, kind: str, text: str, pid: int, fields: dict[str, Any]) -> None:
        self.stored.append((text, fields))
        self.done.set()


@pytest.mark.skipif(
    importlib.util.find_spec("memray") is None or shutil.which("gcc") is None,
    reason="no memray, or no compiler",
)
def test_native_code_that_leaks_is_named(tmp_path: Path) -> None:
    source, library, file = tmp_path / "rows.c", tmp_path / "librows.so", tmp_path / "7-1.memray"
    source.write_text(NATIVE)
    subprocess.run(["gcc", "-g", "-O0", "-shared", "-fPIC", "-o", library, source], check=True)
    script = tmp_path / "train.py"
    package = str(Path(tracers.__file__).parents[2])
    script.write_text(JOB.format(source=package, library=str(library), file=str(file)))
    subprocess.run([sys.executable, script], check=True, cwd=tmp_path)
    read = Read(tmp_path)
    fields = {"file": str(file), "python": sys.executable, "steps": 40, "seconds": 1.0, "witness": "memray"}
    read.requests.take(1.0, 7, {**fields, "memory": "native", "grown": 10 * MIB})
    assert read.done.wait(120)
    text, told = read.stored[0]
    line = 1 + script.read_text().splitlines().index("    library.tokenize(1 << 18)")
    assert text.startswith(
        f"`library.tokenize(1 << 18)` at train.py:{line}, in keep_row (rows.c:3) < tokenize (rows.c:4), made "
    )
    assert 0.8 * 40 * (1 << 18) < told["lines"][0][3] < 1.2 * 40 * (1 << 18) and not file.exists()
    assert "python" not in told and told["lines"][0][2] == "train"
    while not read.said:
        threading.Event().wait(0.01)
    assert read.said == [f"what grows: {text}"]


@pytest.mark.parametrize("python", [sys.executable, "/nowhere/python"], ids=["no memray file", "no python"])
def test_a_file_that_cannot_be_read_is_no_trouble(tmp_path: Path, python: str) -> None:
    (tmp_path / "7-1.memray").write_bytes(b"cut off")
    read = Read(tmp_path)
    read.requests.take(
        1.0, 7, {"file": str(tmp_path / "7-1.memray"), "python": python, "steps": 4, "seconds": 1.0}
    )
    assert read.done.wait(60)
    assert read.stored[0][0].startswith("memray's file could not be read") and not read.said
    assert not list(tmp_path.glob("*.memray"))


def test_it_is_asked_for_seldom(tmp_path: Path) -> None:
    requests = TraceRequests(tmp_path, print, lambda *_: None)
    requests.ask(5 * MIB)
    file = tmp_path / "trace.json"
    assert json.loads(file.read_text())["headroom"] == 5 * MIB
    file.unlink()
    requests.ask(5 * MIB)
    assert not file.exists(), "the first one was a moment ago"
    requests.close()


def test_a_folder_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    requests = TraceRequests(tmp_path / "gone", print, lambda *_: None)
    requests.ask(5 * MIB)
    requests.close()


def test_what_malloc_trim_proves() -> None:
    assert trim_text({"given": 118 * MIB, "free": 120 * MIB}).startswith(
        "the C library kept 120 MiB that nothing used: malloc_trim gave 118 MiB back; not a leak"
    )
    assert "fragmentation" in trim_text({"given": MIB, "free": 120 * MIB})
    assert trim_text({"given": None, "free": 3}) == ""
