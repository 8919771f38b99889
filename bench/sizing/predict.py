"""What `oomproof size` says of the sixty jobs, without a GPU: one line of JSON a job; those that are there already are left out.

    python bench/sizing/predict.py rows.jsonl [--only tuning|reporting|fresh|fresh2|NAME,NAME] [--python PYTHON] [--keep FOLDER] [--limit SECONDS]

PYTHON has torch, torchvision, transformers, lightning and accelerate. ``--keep`` copies what the virtual GPU wrote down.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from jobs import PROGRAMS, command, half, wanted

from oomproof.sizing import script_sizing, virtual_run
from oomproof.sizing.virtual_gpu.step_limits import STEPS

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds, as size --time-limit")
    args = parser.parse_args()
    done = (
        {json.loads(line)["job"] for line in args.rows.read_text().splitlines()}
        if args.rows.exists()
        else set()
    )
    for name in wanted(args.only):
        if name in done:
            continue
        with tempfile.TemporaryDirectory() as folder, args.rows.open("a") as file:
            print(
                json.dumps(
                    {"job": name, "half": half(name), **predicted(name, args.python, folder, args.limit)}
                ),
                file=file,
            )
            if args.keep:
                shutil.copytree(
                    folder,
                    args.keep / name,
                    dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("upper*", "work*"),
                )
        print(args.rows.read_text().splitlines()[-1], flush=True)


def predicted(name: str, python: str, folder: str, limit: float) -> dict[str, object]:
    file = command(name)[0]
    os.chdir(os.path.dirname(file) if not file.startswith(str(PROGRAMS)) else PROGRAMS)
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    watched = script_sizing._run(
        [python, "-W", "ignore", *command(name)], folder, limit, 139 << 30, False, True
    )
    seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = {"seconds": round(seconds, 1), "cpu": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
            "host": watched.peak // MIB}  # fmt: skip
    run = virtual_run.read(folder)
    ended_early = watched.status and (run is None or run.result.steps < STEPS)
    if run is None or not run.events or run.result.refused or ended_early:
        lines = Path(folder, "output").read_text(errors="replace").splitlines()[-3:]
        return {"failed": (run and run.result.refused) or " | ".join(lines), **used}
    if why := virtual_run.by_values(run):
        return {"failed": why, **used}
    replay, (gpu, _) = virtual_run.replay(run), virtual_run.gpu_estimate(run)
    sizes = {
        "allocated": replay.allocated,
        "reserved": replay.reserved,
        "low": gpu.low,
        "expected": gpu.expected,
        "high": gpu.high,
    }
    return {**{key: size // MIB for key, size in sizes.items()}, "steps": run.result.steps, **used}


if __name__ == "__main__":
    main()
