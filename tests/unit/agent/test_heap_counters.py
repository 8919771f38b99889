"""The allocators' own counters, in a process of its own: each kind of memory moves its counter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src"
PROGRAM = """
import ctypes, json, sys
sys.path.insert(0, {source!r})
from oomproof.agent.heap_counters import counters
before = counters()
{code}
after = counters()
print(json.dumps({{name: after[name] - before[name] for name in before}}))
"""


def moved(code: str) -> dict[str, int]:
    program = PROGRAM.format(source=str(SOURCE), code=code)
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return dict(json.loads(told.stdout))


def test_each_kind_moves_its_counter() -> None:
    held = moved("kept = bytearray(50 << 20)")
    if "malloc" not in held:
        pytest.skip("this C library has no mallinfo2")
    assert held["malloc"] > 49 << 20
    assert moved("kept = [str(number) for number in range(100_000)]")["blocks"] > 90_000
    freed = moved("kept = [bytearray(100_000) for _ in range(300)]\nlast = bytearray(3000)\ndel kept")
    assert freed["malloc"] < 5 << 20


def test_what_is_not_loaded_is_not_loaded_for_it() -> None:
    code = (
        f"import sys\nsys.path.insert(0, {str(SOURCE)!r})\nfrom oomproof.agent.heap_counters import counters\n"
        "before = set(sys.modules)\ncounters()\nassert set(sys.modules) == before, set(sys.modules) - before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
