"""All that a card is needed for to judge one set of jobs, in one bounded call that may be repeated until it says it is done.

    python bench/sizing/on_card.py FOLDER [--set fresh4] [--seconds 480]

This is all there is to do for a set that was written down and sized, but never ran on a card: its jobs are in jobs.py, what was predicted of
them in bench/results/sizing-SET-predicted-h200.jsonl. The machine needs a card that nobody else uses, torch, torchvision, transformers,
lightning, accelerate and pynvml; nothing is downloaded. About eight minutes for forty jobs: call it again with the same FOLDER while it says
"out of time". Then docs/size-accuracy.md gets the table that it prints last, and bench/results the five files.

FOLDER gets `took.jsonl` (each job measured), `card.json` (the committed card's file and the jobs' own operations), `caps.json` and
`capped.jsonl` (each job again, its allocator held to our calibrated *high* less the context), `calibrated.jsonl` (predicted and taken),
`traces.tar` (what the allocator was asked by the jobs that are off by more than 1.5 %, worst first, as long as there is time and room).

--kept: what predict.py --keep wrote without a GPU, a folder or an archive of it (bench/results/sizing-SET-logs.tar.xz): nothing of what was
measured goes into it, so that the first look stays one whenever it is measured. --signatures: its operations, as `calibrated.py --collect`
writes them (bench/sizing/signatures-SET.jsonl.gz). --card: the file that the set's own operations are added to.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
CARD = RESULTS / "sizing-fresh5-card-h200.json.gz"
MISS = 0.015
TRACES = 15 << 20  # bytes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", default="fresh4")
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--signatures", type=Path)
    parser.add_argument("--card", type=Path, default=CARD)
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--at-once", type=int, default=5, help="capped jobs side by side")
    args = parser.parse_args()
    ends = time.monotonic() + args.seconds
    args.folder.mkdir(parents=True, exist_ok=True)
    took, card, caps, capped = (
        args.folder / name for name in ("took.jsonl", "card.json", "caps.json", "capped.jsonl")
    )
    kept = _unpacked(args.kept or RESULTS / f"sizing-{args.set}-logs.tar.xz", args.folder)
    signatures = args.signatures or HERE / f"signatures-{args.set}.jsonl.gz"

    def step(script: str, *arguments: object, wants_time: bool = False) -> None:
        left = ends - time.monotonic()
        if left < 15.0:
            sys.exit("out of time: call it again, what is there is kept")
        more = ["--seconds", f"{left - 10.0:.0f}"] if wants_time else []
        print(f"== {script} with {left:.0f} s left", flush=True)
        command = [sys.executable, "-W", "ignore", str(HERE / script), *map(str, arguments), *more]
        # a job that is under way when the time is up still gets its minute
        status = subprocess.run(command, timeout=left + 75.0, check=False).returncode
        if status:
            sys.exit(f"{script} ended with status {status}")

    step("measure.py", took, "--only", args.set, wants_time=True)
    if not card.exists():
        card.write_bytes(gzip.decompress(args.card.read_bytes()))
    if not (args.folder / "operations.done").exists():
        step("calibrated.py", card, "--more", "--signatures", signatures, wants_time=True)
        if ends - time.monotonic() > 20.0:  # else some were not reached
            (args.folder / "operations.done").touch()
    rows = args.folder / "calibrated.jsonl"
    report = ("report.py", kept, card, "--only", args.set, "--measured", took, "--rows", rows)
    if not caps.exists() or len(json.loads(caps.read_text())) < len(took.read_text().splitlines()):
        step(*report, "--caps", caps)
    step("measure.py", capped, "--only", args.set, "--caps", caps, "--at-once", args.at_once, wants_time=True)
    step(*report, "--capped", capped)
    for name in _missed(rows):
        step("measure.py", args.folder / "traced.jsonl", "--only", name, "--traces", args.folder / "traces")
        _pack(args.folder / "traces", args.folder / "traces.tar")
    print("done", flush=True)


def _missed(rows: Path) -> list[str]:
    """Worst first."""
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    errors = {row["job"]: abs(row["calibrated"] / row["device"] - 1) for row in found}
    return sorted((name for name in errors if errors[name] > MISS), key=lambda name: -errors[name])


def _pack(folder: Path, target: Path) -> None:
    """The oldest first, as many as may be."""
    size = 0
    with tarfile.open(target, "w") as archive:
        for file in sorted(folder.glob("*.gz"), key=lambda file: file.stat().st_mtime):
            size += file.stat().st_size
            if size <= TRACES:
                archive.add(file, file.name)


def _unpacked(kept: Path, folder: Path) -> Path:
    if kept.is_dir():
        return kept
    target = folder / "kept"
    if not target.exists():
        with tarfile.open(kept) as archive:
            archive.extractall(target, filter="data")
    return target


if __name__ == "__main__":
    main()
