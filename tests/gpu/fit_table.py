"""By hand, on a machine with an NVIDIA GPU: the batch table of a decoder on a card of which a ballast process leaves 24 GiB (I3).

    PYTHONPATH=src python tests/gpu/fit_table.py RESULTS.json [--left 24] [--answer FIT.json]

Each tier is then run for real and must finish; a batch 5 % above the maximum must not. About five minutes; one with an answer that
`oomproof fit --gpu 24G --card H200.json --json` gave on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GIB = 1 << 30
JOB = str(Path(__file__).parent / "jobs" / "decoder.py")
BALLAST = """
import sys, torch
torch.zeros(1, device="cuda")
free, total = torch.cuda.mem_get_info()
held = torch.empty(free - int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda")
print(torch.cuda.mem_get_info()[0], flush=True); sys.stdin.read()
"""
ENVIRONMENT = {
    **os.environ,
    "XDG_STATE_HOME": tempfile.mkdtemp(),
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
}


def real(batch: int) -> dict[str, Any]:
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, JOB, "--batch-size", str(batch)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    words = done.stdout.split()
    said = (done.stderr.strip().splitlines() or [""])[-1][:200]
    return {
        "batch": batch,
        "status": done.returncode,
        "out_of_memory": "out of memory" in done.stderr,
        "reserved": int(words[1]) if words else None,
        "retries": int(words[3]) if words else None,
        "seconds": round(time.monotonic() - begun, 1),
        "said": said if done.returncode else "",
    }


def asked(results: dict[str, Any]) -> Any:
    """Of `oomproof fit`, here and now."""
    begun = time.monotonic()
    ours = [sys.executable, "-m", "oomproof.cli.main", "fit", "--json", "--"]
    job = [sys.executable, JOB, "--batch-size", "{batch}"]
    done = subprocess.run([*ours, *job], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, timeout=400)
    results["seconds"] = round(time.monotonic() - begun, 1)
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("results")
    parser.add_argument("--left", default="24")
    parser.add_argument("--answer", default="")
    options = parser.parse_args()
    ballast = subprocess.Popen(
        [sys.executable, "-c", BALLAST, options.left],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert ballast.stdout is not None and ballast.stdin is not None
    left = int(ballast.stdout.readline())
    results: dict[str, Any] = {"free": left, "tiers": []}
    good = True
    try:
        answer = json.loads(Path(options.answer).read_text()) if options.answer else asked(results)
        results["answer"] = answer
        batches = {tier["name"]: int(tier["plan"]["batch"]) for tier in answer["tiers"]}
        for tier in answer["tiers"]:
            row = {
                "tier": tier["name"],
                **real(batches[tier["name"]]),
                "expected": tier["gpu"]["expected_bytes"],
            }
            good = good and row["status"] == 0
            results["tiers"].append(row)
            print(json.dumps(row), flush=True)
            Path(options.results).write_text(json.dumps(results, indent=1))
        above = real(math.ceil(batches["maximum"] * 1.05))
        good = good and above["status"] != 0 and above["out_of_memory"]
        results["above"] = above
        print("5 % above:", json.dumps(above), flush=True)
    finally:
        Path(options.results).write_text(json.dumps(results, indent=1))
        ballast.stdin.close()
        ballast.wait(20)
    print("all as predicted" if good else "NOT as predicted", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
