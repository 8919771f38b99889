"""Real programs that tell no steps: some leak, some only look like it, one has a progress bar that tells when it ends."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import JOBS, Lab

MAPS = """import mmap, os, time
size = 256 << 20
with open("big.bin", "wb") as file:
    for _ in range(size >> 20):
        file.write(os.urandom(1 << 20))
with open("big.bin", "rb") as file:
    view = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
    for at in range(0, size, 4 << 20):
        view[at : at + (4 << 20)].count(b"x")
        time.sleep(0.2)
"""
LEAKS = """import time
kept = []
for number in range(1, 81):
    kept.append(bytearray(4 << 20))
    kept[-1][::4096] = b"x" * 1024
    print(f"{number / 2:3.0f}%|████      | {number}/160 [00:{number // 6:02}<00:20,  6.0it/s]", end="\\r", flush=True)
    time.sleep(0.16)
"""


def test_what_leaks_and_what_only_maps_a_file(lab: Lab, tmp_path: Path) -> None:
    runs = []
    for name, text in (("maps", MAPS), ("leaks", LEAKS)):
        script = tmp_path / f"{name}.py"
        script.write_text(text)
        runs.append(lab.start(name, "--limit", "2G", "--", sys.executable, str(script), cwd=tmp_path))
    assert [run.wait() for run in runs] == [0, 0]
    maps, leaks = (json.loads(lab.run("trend", name, "--json").stdout) for name in ("maps", "leaks"))
    assert maps["kind"] == "flat" and maps["file_bytes"] >= 200 << 20
    assert "no growth, the kernel takes them back" in lab.run("trend", "maps").stdout
    assert leaks["kind"] == "growing" and leaks["bytes_per_step"] is None
    assert 8 << 20 < leaks["bytes_per_second"] < 40 << 20
    assert leaks["ends"]["total_steps"] == 160 and leaks["ends"]["told_by"] == "its progress bar"
    assert (
        leaks["full_in_seconds"]["low"]
        < ((2 << 30) - leaks["held_bytes"]) / leaks["bytes_per_second"]
        < leaks["full_in_seconds"]["high"]
    )


EXTENSION = """#include <stdlib.h>
#include <string.h>
static void *keep_row(size_t size) { void *row = malloc(size); memset(row, 1, size); return row; }
void tokenize(size_t size) { keep_row(size); }
"""


@pytest.mark.timeout(280)
@pytest.mark.skipif(
    importlib.util.find_spec("memray") is None or shutil.which("gcc") is None,
    reason="no memray, or no compiler",
)
def test_native_code_is_named_and_what_is_only_kept_is_no_leak(lab: Lab, tmp_path: Path) -> None:
    """No steps to look between: asked by signal as they reach new highs."""
    source, library = tmp_path / "rows.c", tmp_path / "librows.so"
    source.write_text(EXTENSION)
    subprocess.run(["gcc", "-g", "-O0", "-shared", "-fPIC", "-o", library, source], check=True)
    script = JOBS / "grows_or_not.py"
    kinds = ("extension", "retained", "warm-up")
    runs = [
        lab.start(kind, "--limit", "700M", "--", sys.executable, str(script), kind, str(library))
        for kind in kinds
    ]
    assert [run.wait() for run in runs] == [0, 0, 0]
    native, retained, warm_up = (json.loads(lab.run("trend", kind, "--json").stdout) for kind in kinds)
    line = 1 + next(
        at for at, line in enumerate(script.read_text().splitlines()) if "library.tokenize(8" in line
    )
    assert native["kind"] in ("growing", "slowing") and native["heap"]["kind"] == "native"
    assert (native["where"][0]["file"], native["where"][0]["line"]) == (str(script), line)
    assert "in keep_row (rows.c:3) < tokenize (rows.c:4), made " in lab.run("trend", "extension").stdout
    assert "malloc_trim gave" in retained["not_a_leak"] and "not a leak" in retained["not_a_leak"]
    assert "a leak, or a cache without bound" not in lab.run("trend", "retained").stdout
    assert warm_up["kind"] not in ("growing", "steps") and warm_up["alert"] is None
