"""By hand, on a machine with an NVIDIA GPU and PyTorch: what `oomproof run` and `check` say about a real card.

    PYTHONPATH=src python tests/gpu/run_on_gpu.py [RESULTS.json]

Needs only the standard library, pynvml (nvidia-ml-py) and torch. Prints one line per check; exits 1 when one fails.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GIB = 1 << 30
HOLD = """
import sys, time, torch
held = []
for _ in range(int(sys.argv[1])):
    held.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
    time.sleep(0.3)
print("ready", flush=True)
time.sleep(float(sys.argv[2]))
"""
OOM = "import torch; a = torch.empty(8 << 30, dtype=torch.uint8, device='cuda'); torch.empty(300 << 30, dtype=torch.uint8, device='cuda')"

failures: list[str] = []
results: dict[str, Any] = {}


def check(name: str, good: bool, detail: object = "") -> None:
    print(f"{'ok  ' if good else 'FAIL'} {name}: {detail}", flush=True)
    results[name] = {"ok": good, "detail": str(detail)}
    if not good:
        failures.append(name)


def cpu_seconds(pid: int) -> float:
    return (
        sum(
            int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
            for task in os.listdir(f"/proc/{pid}/task")
        )
        / 1e9
    )


def rss(pid: int) -> int:
    line = next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")
    )
    return int(line.split()[1]) * 1024


def main() -> int:
    state = Path(tempfile.mkdtemp())
    environment = {**os.environ, "XDG_STATE_HOME": str(state)}
    ours = [sys.executable, "-m", "oomproof.cli.main"]

    # --- a job that holds 4 GiB of the card
    command = [
        *ours,
        "run",
        "--name",
        "hold",
        "--alert-gpu-above",
        "3G",
        "--",
        sys.executable,
        "-c",
        HOLD,
        "4",
        "25",
    ]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    folder = None
    while (
        folder is None
        or not (folder / "output.log").exists()
        or "ready" not in (folder / "output.log").read_text()
    ):
        folder = next(iter(state.glob("oomproof/runs/*/1")), None)
        time.sleep(0.1)
    time.sleep(2)
    children = [
        int(word)
        for task in Path(f"/proc/{process.pid}/task").iterdir()
        for word in (task / "children").read_text().split()
    ]
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in children}
    helper = next((pid for pid, name in names.items() if "oomproof.machine.gpu" in name), None)
    keeper = next((pid for pid, name in names.items() if "keeper.py" in name), None)
    check("the GPU helper is a process of its own", helper is not None, names)
    watched = {"guard": process.pid, "keeper": keeper, "gpu helper": helper}
    before, begun = {name: cpu_seconds(pid) for name, pid in watched.items() if pid}, time.monotonic()
    time.sleep(15)
    elapsed = time.monotonic() - begun
    for name, pid in watched.items():
        if pid:
            share = (cpu_seconds(pid) - before[name]) / elapsed
            check(f"cost of the {name}", True, f"{share:.3%} of a core, {rss(pid) / (1 << 20):.1f} MiB")
    checked = json.loads(
        subprocess.run([*ours, "check", "--json"], env=environment, capture_output=True, text=True).stdout
    )
    results["check_gpus"] = checked.get("gpus")
    _, said = process.communicate(timeout=60)
    rows = (
        sqlite3.connect(folder / "recording.sqlite")
        .execute("SELECT idx, max(used), max(total), max(job_used), count(*) FROM gpu GROUP BY idx")
        .fetchall()
    )
    check(
        "the recording has the job's own VRAM", any(4 * GIB <= (row[3] or 0) < 6 * GIB for row in rows), rows
    )
    check("about one GPU row a second", any(row[4] >= 20 for row in rows), rows)
    check(
        "the alert came once",
        said.count("GPU memory, above 3.0 GiB") == 1,
        [line for line in said.splitlines() if "above" in line],
    )
    shown = subprocess.run(
        [*ours, "runs", "show", "hold"], env=environment, capture_output=True, text=True
    ).stdout
    check(
        "runs show tells the GPU peak",
        "GPU peak  4." in shown,
        [line for line in shown.splitlines() if "peak" in line],
    )

    # --- a real CUDA out of memory
    done = subprocess.run(
        [*ours, "run", "--name", "oom", "--", sys.executable, "-c", OOM],
        env=environment,
        capture_output=True,
        text=True,
    )
    verdict = json.loads(
        next(
            path
            for path in state.glob("oomproof/runs/*/1/verdict.json")
            if json.loads((path.parent.parent / "run.json").read_text())["name"] == "oom"
        ).read_text()
    )
    check("a CUDA OOM is told", verdict["verdict"]["cause"] == "cuda-oom", verdict["verdict"]["headline"])
    check(
        "with the numbers of its sentence",
        (verdict["verdict"]["gpu"] or {}).get("requested_bytes") == 300 * GIB,
        verdict["verdict"]["gpu"],
    )
    print(done.stderr[-1200:])

    # --- does it fit
    answers = {
        need: subprocess.run(
            [*ours, "check", "--gpu-need", need], env=environment, capture_output=True
        ).returncode
        for need in ("1G", "4T")
    }
    check("check --gpu-need", answers == {"1G": 0, "4T": 69}, answers)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(results, indent=1))
    print("FAILED: " + ", ".join(failures) if failures else "all checks passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
