"""By hand, on a machine with an NVIDIA GPU: `run --retry` after real CUDA out of memory: at the first step, after steps were made, by a neighbour.

    PYTHONPATH=src python tests/gpu/retry_on_card.py RESULTS.json [--seconds 150] [--only first later neighbour]

A case that RESULTS.json has already is left out. Each must finish with the effective batch it began with; about 30 s each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TRAIN = """
import argparse, torch
parser = argparse.ArgumentParser()
for name, default in (("--batch-size", 64), ("--accum", 1), ("--steps", 12), ("--long-at", 0)):
    parser.add_argument(name, type=int, default=default)
a = parser.parse_args()
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.GELU()) for _ in range(4))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
seen = 0
for step in range(1, a.steps + 1):
    for part in range(a.accum):
        rows = a.batch_size * (3 if step == a.long_at else 2) // 2
        loss = model(torch.randn(rows, 4096, device="cuda")).square().mean() / a.accum
        loss.backward()
        seen += a.batch_size
    optimizer.step()
    optimizer.zero_grad()
    if step == 3:
        print("three steps", flush=True)
print("finished", seen, "effective", a.batch_size * a.accum, flush=True)
"""
BALLAST = """
import sys, torch
held = []
torch.zeros(1, device="cuda")
print("ready", flush=True)
for line in sys.stdin:
    free, total = torch.cuda.mem_get_info()
    held.append(torch.empty(max(0, free - int(float(line) * 2**30)), dtype=torch.uint8, device="cuda"))
    print("took", held[-1].numel(), flush=True)
"""


class Case:
    def __init__(self, name: str, flags: list[str], words: list[str]) -> None:
        self.name, self.flags, self.words = name, flags, words
        self.folder = Path(tempfile.mkdtemp())
        (self.folder / "train.py").write_text(TRAIN)
        (self.folder / "ballast.py").write_text(BALLAST)
        self.environment = {
            **os.environ,
            "XDG_STATE_HOME": str(self.folder / "state"),
            "PYTHONWARNINGS": "ignore",
        }

    def command(self) -> list[str]:
        return [
            sys.executable, "-m", "oomproof", "run", "--name", self.name, "--retry", "3", *self.flags,
            "--", sys.executable, "train.py", *self.words,
        ]  # fmt: skip

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(), cwd=self.folder, env=self.environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def result(self, process: subprocess.Popen[str], seconds: float) -> dict[str, Any]:
        try:
            out, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            out, said = process.communicate(timeout=60)
        shown = subprocess.run(
            [sys.executable, "-m", "oomproof", "runs", "show", self.name, "--json"],
            cwd=self.folder, env=self.environment, capture_output=True, text=True,
        )  # fmt: skip
        attempts = json.loads(shown.stdout)["attempts"] if shown.returncode == 0 else []
        told = [
            line
            for line in said.splitlines()
            if line.startswith(("oomproof: attempt", "oomproof: not tried", "verdict"))
        ]
        return {
            "status": process.returncode,
            "finished": next((line for line in out.splitlines() if line.startswith("finished")), ""),
            "attempts": [
                {key: attempt[key] for key in ("plan", "cause", "peak_gpu_bytes", "seconds")}
                for attempt in attempts
            ],
            "told": told,
        }


def first(seconds: float) -> dict[str, Any]:
    """Far too large from its first step on."""
    case = Case("first", ["--gpu-limit", "6G"], ["--batch-size", "65536", "--accum", "1"])
    return case.result(case.start(), seconds)


def later(seconds: float) -> dict[str, Any]:
    """It fits until a longer batch comes: what was short is known, and the step is no longer than it need be."""
    case = Case("later", ["--gpu-limit", "6G"], ["--batch-size", "24000", "--accum", "2", "--long-at", "8"])
    return case.result(case.start(), seconds)


def neighbour(seconds: float) -> dict[str, Any]:
    """A neighbour takes the card while it trains; it goes when the training has died of it. The plan stays."""
    case = Case(
        "neighbour", [], ["--batch-size", "16384", "--accum", "1", "--steps", "160", "--long-at", "120"]
    )
    beside = subprocess.Popen(
        [sys.executable, "ballast.py"],
        cwd=case.folder,
        env=case.environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert beside.stdin is not None and beside.stdout is not None
    beside.stdout.readline()
    process = case.start()
    assert process.stdout is not None
    process.stdout.readline()
    beside.stdin.write("0.2\n")
    beside.stdin.flush()
    end = time.monotonic() + seconds / 2
    folder = case.folder / "state/oomproof/runs"
    while time.monotonic() < end and not list(folder.glob("*/1/verdict.json")):
        time.sleep(0.2)
    beside.stdin.close()
    beside.wait(60)
    return case.result(process, seconds / 2)


CASES = {"first": first, "later": later, "neighbour": neighbour}


def judged(name: str, result: dict[str, Any]) -> bool:
    plans = [attempt["plan"] for attempt in result["attempts"]]
    sizes = {int(plan["batch"]) * int(plan["accum"]) for plan in plans}
    same = len({json.dumps(plan) for plan in plans}) == 1
    return result["status"] == 0 and len(plans) > 1 and len(sizes) == 1 and same == (name == "neighbour")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results")
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    arguments = parser.parse_args()
    path = Path(arguments.results)
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    end = time.monotonic() + arguments.seconds
    for name in arguments.only:
        if name in results or (left := end - time.monotonic()) < 30:
            continue
        results[name] = CASES[name](left)
        path.write_text(json.dumps(results, indent=1))
        print("ok  " if judged(name, results[name]) else "FAIL", name, json.dumps(results[name]), flush=True)


if __name__ == "__main__":
    main()
