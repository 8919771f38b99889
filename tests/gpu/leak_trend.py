"""By hand, on a machine with an NVIDIA GPU and PyTorch: what `oomproof trend` says of memory on a real card. About two minutes.

    PYTHONPATH=src python tests/gpu/leak_trend.py [RESULTS.json]

Needs only the standard library, pynvml (nvidia-ml-py) and torch. Prints one line per check; exits 1 when one fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MIB, GIB = 1 << 20, 1 << 30
STEP = 8 * MIB  # that the leaking jobs keep of each step
LIMIT = 8 * GIB
JOB = """
import sys, time, torch
what, seconds = sys.argv[1], float(sys.argv[2])
model = torch.nn.Linear(1024, 1024, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
kept, began, step = [], time.monotonic(), 0
try:
    while time.monotonic() - began < seconds:
        loss = model(torch.randn(4096, 1024, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if what == "leak":
            kept.append(torch.empty(8 << 20, dtype=torch.uint8, device="cuda"))
        elif what == "pieces":  # ever larger, and given back: what is cached never fits the next
            torch.empty((256 << 20) + step * (2 << 20), dtype=torch.uint8, device="cuda")
        step += 1
        time.sleep(0.3 if what == "pieces" else 0.1)
except torch.OutOfMemoryError:
    print("full at", time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
    raise
"""

failures: list[str] = []
results: dict[str, Any] = {}


def check(name: str, good: bool, detail: object = "") -> None:
    print(f"{'ok  ' if good else 'FAIL'} {name}: {detail}", flush=True)
    results[name] = {"ok": good, "detail": str(detail)}
    if not good:
        failures.append(name)


def main() -> int:
    state = Path(tempfile.mkdtemp())
    environment = {**os.environ, "XDG_STATE_HOME": str(state)}
    ours = [sys.executable, "-m", "oomproof.cli.main"]

    def start(name: str, what: str, seconds: float, *flags: str) -> subprocess.Popen[str]:
        command = [
            *ours,
            "run",
            "--allow-twin",
            "--name",
            name,
            *flags,
            "--",
            sys.executable,
            "-c",
            JOB,
            what,
            str(seconds),
        ]
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def trend(name: str) -> tuple[dict[str, Any], str]:
        told = subprocess.run(
            [*ours, "trend", name, "--json"], env=environment, capture_output=True, text=True
        )
        text = subprocess.run([*ours, "trend", name], env=environment, capture_output=True, text=True).stdout
        try:
            return json.loads(told.stdout), text
        except ValueError:
            return {"gpus": [], "error": told.stderr}, told.stderr

    def card(told: dict[str, Any]) -> dict[str, Any]:
        return max(told["gpus"], key=lambda gpu: gpu["held_bytes"] or 0, default={})

    jobs = {
        "leak": start("leak", "leak", 600, "--gpu-limit", f"{LIMIT >> 30}G"),
        "flat": start("flat", "flat", 75),
        "pieces": start("pieces", "pieces", 60),
        "driver": start("driver", "leak", 75, "--no-agent"),
    }
    time.sleep(60)
    asked, text = trend("leak")
    print(text)
    gpu = card(asked)
    check("a leak is found while it runs", gpu.get("kind") == "growing" and gpu.get("of") == "allocated", gpu)
    per_step = gpu.get("bytes_per_step") or 0
    check(
        "bytes a step", abs(per_step - STEP) < 0.05 * STEP, f"{per_step / MIB:.2f} MiB, kept {STEP / MIB:.0f}"
    )
    limit = gpu.get("limit_bytes") or 0
    is_own = LIMIT - GIB < limit <= LIMIT and "--gpu-limit" in str(gpu.get("limit_from"))
    check(
        "its own limit, less CUDA's context, is the limit",
        is_own,
        f"{limit / GIB:.2f} GiB, {gpu.get('limit_from')}",
    )
    ended = {name: (*job.communicate(timeout=240), job.returncode) for name, job in jobs.items()}

    told_at = [line.split()[-1] for line in ended["leak"][0].splitlines() if line.startswith("full at")]
    full = gpu.get("full_in_seconds") or {}
    if told_at and full:
        left = float(told_at[0]) - asked["last_sample_boottime"]
        said = f"{left:.1f} s later; said {full['low']:.1f} to {full['high']:.1f}, expected {full['expected']:.1f}"
        check(
            "it was full within a tenth of when it was said to be",
            abs(left / full["expected"] - 1) < 0.1,
            said,
        )
    else:
        check("it was full within a tenth of when it was said to be", False, ended["leak"])

    asked, text = trend("flat")
    gpu = card(asked)
    check(
        "a training without a leak is flat",
        gpu.get("kind") == "flat",
        (gpu.get("of"), gpu.get("kind"), gpu.get("seen_seconds")),
    )

    asked, text = trend("pieces")
    print(text)
    gpu = card(asked)
    check(
        "reserved memory that only falls apart is no leak",
        bool(gpu.get("fragmentation")),
        (gpu.get("of"), gpu.get("kind")),
    )

    asked, text = trend("driver")
    print(text)
    gpu = card(asked)
    rate = gpu.get("bytes_per_second") or 0
    check(
        "without the agent the driver tells",
        gpu.get("of") == "used" and gpu.get("kind") == "growing",
        f"{rate / MIB:.1f} MiB/s",
    )

    recordings = list(state.glob("oomproof/runs/*/1/recording.sqlite"))
    check(
        "recordings stay small",
        all(path.stat().st_size < 4 * MIB for path in recordings),
        [path.stat().st_size for path in recordings],
    )
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(results, indent=2))
    print(f"{len(results) - len(failures)} of {len(results)} good")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
