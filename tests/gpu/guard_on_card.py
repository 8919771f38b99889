"""By hand, on a machine with an NVIDIA GPU: `oomproof guard` and `top` beside a run that keeps memory of the card unused and a job that grows there.

    PYTHONPATH=$PWD/src python tests/gpu/guard_on_card.py RESULTS.json [--seconds 110]

Needs the standard library, pynvml and torch. A ballast leaves 45 GiB of the card; the job that was not started by oomproof takes 60, so it lives
only if the run gives back what it keeps reserved and unused. One line a check; exits 1 when one fails.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GIB = 1 << 30
KEPT, LEFT, GROWN = (
    40,
    45,
    60,
)  # GiB: reserved and unused by the run; free when all has begun; taken by the job
KEEPS = f"""
import time, torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.randn(64, 1024, device="cuda")).square().mean().backward()  # cuBLAS takes its workspace, not from what is free later
large = torch.empty({KEPT} << 30, dtype=torch.uint8, device="cuda")
del large
print("ready", flush=True)
while True:
    model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.1)
"""
GROWS = f"""
import time, torch
held = []
for _ in range({GROWN}):
    held.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
    time.sleep(0.8)
print("finished", flush=True)
"""
BALLAST = f"""
import sys, torch
torch.zeros(1, device="cuda")
sys.stdin.readline()
free, total = torch.cuda.mem_get_info()
held = torch.empty(free - ({LEFT} << 30), dtype=torch.uint8, device="cuda")
print("took", flush=True)
sys.stdin.read()
"""
OURS = [sys.executable, "-m", "oomproof.cli.main"]
STATE = Path(tempfile.mkdtemp(prefix="oomproof-guard-gpu-"))
ENVIRONMENT = {
    **os.environ,
    "XDG_STATE_HOME": str(STATE),
    "XDG_RUNTIME_DIR": str(STATE),
    "PYTHONUNBUFFERED": "1",
}
results: dict[str, Any] = {"checks": {}}


def check(name: str, good: bool, detail: object = "") -> None:
    print(f"{'ok  ' if good else 'FAIL'} {name}: {str(detail)[:1500]}", flush=True)
    results["checks"][name] = {"ok": bool(good), "detail": str(detail)[:3000]}


def started(name: str, *words: str) -> subprocess.Popen[str]:
    with (STATE / f"{name}.out").open("w") as out, (STATE / f"{name}.err").open("w") as errors:
        return subprocess.Popen(
            words,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=errors,
            text=True,
            start_new_session=True,
        )


def text(name: str) -> str:
    return (STATE / name).read_text()


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


def top() -> dict[str, Any]:
    done = subprocess.run(
        [*OURS, "top", "--json"], env=ENVIRONMENT, capture_output=True, text=True, timeout=30
    )
    return json.loads(done.stdout) if done.returncode == 0 else {"gpus": [], "jobs": [], "said": done.stderr}


def row(seen: dict[str, Any], word: str) -> dict[str, Any]:
    return next((job for job in seen["jobs"] if word in (job["command"] or "")), {})


def driver_free() -> int:
    import pynvml

    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).free)


def watched(processes: dict[str, subprocess.Popen[str]], seconds: float) -> None:
    for name, code in (("keeps.py", KEEPS), ("grows.py", GROWS), ("ballast.py", BALLAST)):
        (STATE / name).write_text(code)
    python = sys.executable
    processes["guard"] = started("guard", *OURS, "guard")
    processes["ballast"] = started("ballast", python, str(STATE / "ballast.py"))
    processes["keeps"] = started(
        "keeps", *OURS, "run", "--name", "keeps", "--", python, str(STATE / "keeps.py")
    )
    if not wait_until(lambda: "ready" in text("keeps.out"), 60):
        check("the run has begun", False, text("keeps.err"))
        return
    before = driver_free()
    stdin = processes["ballast"].stdin
    assert stdin is not None
    stdin.write("\n")
    stdin.flush()
    check(
        "the ballast has taken its part", wait_until(lambda: "took" in text("ballast.out"), 30), before / GIB
    )
    time.sleep(3)
    seen, free = top(), driver_free()
    results["top, before"] = seen["gpus"]
    mine = row(seen, "keeps.py")
    figures = {
        key: round((mine.get(key) or 0) / GIB, 2)
        for key in ("gpu_used_bytes", "gpu_allocated_bytes", "gpu_reserved_bytes")
    }
    check("top: what the run uses and what it reserves", figures["gpu_reserved_bytes"] > KEPT - 1 > 1 > figures["gpu_allocated_bytes"], figures)  # fmt: skip
    card = seen["gpus"][0] if seen["gpus"] else {}
    results["card"] = card
    check("top: the card", bool(card), (card, round(free / GIB, 2)))
    # of nobody's: below this script it would be a part of this script
    left = f"{python} {STATE / 'grows.py'} >{STATE / 'grows.out'} 2>{STATE / 'grows.err'}; echo $? >{STATE / 'grows.rc'}"
    subprocess.run(["setsid", "sh", "-c", f"({left}) &"], env=ENVIRONMENT, check=True)
    wait_until(lambda: "card" in text("guard.err") and "grows" in text("guard.err"), min(60.0, seconds / 2))
    seen = top()
    check("top: the job that grows has its figure", (row(seen, "grows.py").get("gpu_used_bytes") or 0) > 5 * GIB, row(seen, "grows.py"))  # fmt: skip
    screen = subprocess.run(
        [*OURS, "top", "-1"], env={**ENVIRONMENT, "COLUMNS": "110"}, capture_output=True, text=True
    ).stdout
    results["screen"] = screen
    print(screen, flush=True)
    wait_until((STATE / "grows.rc").exists, seconds / 2)
    status = int(text("grows.rc").strip() or -1) if (STATE / "grows.rc").exists() else -1
    said = text("guard.err")
    results["guard said"] = said.splitlines()
    named = [line for line in said.splitlines() if "grows.py" in line and "GPU" in line]
    check("guard: the job that will be refused is named", bool(named), named or said[-1500:])
    check("guard: the run gave back what it did not use, and the job lived", status == 0, (status, text("grows.err")[-300:]))  # fmt: skip
    mine = row(top(), "keeps.py")
    check("guard: the run trains on, and reserves little", processes["keeps"].poll() is None and (mine.get("gpu_reserved_bytes") or 99 * GIB) < 2 * GIB, mine.get("gpu_reserved_bytes"))  # fmt: skip
    check("guard: lives", processes["guard"].poll() is None, said[-600:])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("results")
    parser.add_argument("--seconds", type=float, default=110.0)
    options = parser.parse_args()
    processes: dict[str, subprocess.Popen[str]] = {}
    try:
        watched(processes, options.seconds)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        results["keeps said"] = text("keeps.err").splitlines() if (STATE / "keeps.err").exists() else []
        Path(options.results).write_text(json.dumps(results, indent=1))
    return 0 if all(entry["ok"] for entry in results["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
