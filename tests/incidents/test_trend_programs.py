"""Real programs that tell no steps: one that leaks, one that only maps a file, one whose progress bar tells when it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from conftest import Lab

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
