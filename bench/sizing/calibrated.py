"""On a card: calibrates it, then measures every operation that the sixty jobs have; the card's file is written as it goes.

python bench/sizing/calibrated.py card.json [--seconds 150] [--signatures FILE] [--more]
python bench/sizing/calibrated.py --collect FOLDER      without a card: signatures from what predict.py --keep FOLDER kept
python bench/sizing/calibrated.py card.json --kept FOLDER [--rows rows.jsonl]      ... the jobs sized for that card, beside what they took
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from jobs import JOBS, half

from oomproof.sizing import calibrated_card, calibration, measured_workspaces, virtual_run
from oomproof.sizing.calibrated_card import CalibratedCard, mib, signature_key

MIB = 1 << 20
_KNOWN = ("convolution", "attention", "norm_backward", "embedding_dense_backward")
SOURCE = Path(__file__).parents[2] / "src"
MEASURED = Path(__file__).parents[1] / "results" / "sizing-jobs-h200.jsonl"
SIGNATURES = Path(__file__).with_name("signatures.jsonl.gz")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("card", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--signatures", type=Path, default=SIGNATURES)
    parser.add_argument(
        "--more", action="store_true", help="only the operations that the card's file has not yet"
    )
    parser.add_argument("--collect", type=Path)
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--rows", type=Path)
    args = parser.parse_args()
    if args.collect:
        collect(args.collect, args.signatures)
        return
    if args.kept:
        compare(args.card, args.kept, args.rows)
        return
    ends = time.monotonic() + args.seconds
    if not args.more:
        verb(args.card, min(60.0, args.seconds / 2))
    with gzip.open(args.signatures, "rt") as file:
        wanted = [json.loads(line) for line in file]
    known = calibrated_card.read(args.card)
    if known is not None:
        wanted = [signature for signature in wanted if signature_key(signature) not in known.signatures]
    operations(args.card, wanted, known, ends - time.monotonic())


def verb(path: Path, seconds: float) -> None:
    """`oomproof calibrate` as a user types it, with a state folder of its own."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as state:
        command = [sys.executable, "-m", "oomproof", "calibrate", "--python", sys.executable, "--export", str(path),
                   "--time-limit", f"{int(seconds) - 10}s"]  # fmt: skip
        environment = {
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "XDG_STATE_HOME": state,
            "OOMPROOF_DEBUG": "1",
        }
        try:
            status = subprocess.run(command, env=environment, timeout=seconds, check=False).returncode
        except subprocess.TimeoutExpired:
            status = -1
    print(f"oomproof calibrate: status {status}, {time.monotonic() - started:.1f} s", flush=True)


def operations(
    path: Path, wanted: list[dict[str, Any]], known: CalibratedCard | None, seconds: float
) -> None:
    started = time.monotonic()

    def each(card: CalibratedCard) -> None:
        calibrated_card.write(path, known.merged(card) if known is not None else card)

    measured = calibration.measure(
        sys.executable,
        wanted,
        seconds=seconds - 5,
        constants=known is None,
        tell=lambda text: print(f"{time.monotonic() - started:6.1f} s {text}", flush=True),
        each=each,
    )
    if measured.card is None:
        print(f"nothing was measured: {measured.refused}", flush=True)
        return
    each(measured.card)
    found, left_out = measured.card.signatures, measured.card.skipped
    print(
        f"{len(found)} of {len(wanted)} measured in {time.monotonic() - started:.1f} s, {measured.late} not reached"
    )
    for reason, count in Counter(why[:100] for why in left_out.values()).most_common(20):
        print(f"  {count} left out: {reason}")
    for key, value in sorted(found.items(), key=lambda item: -item[1]["extra"])[:12]:
        print(f"  {mib(value['extra'])} MiB (first {mib(value.get('first_extra', 0))}) {key[:260]}")
    print(f"{path}: {path.stat().st_size >> 10} KiB", flush=True)


def collect(folder: Path, path: Path) -> None:
    """Convolutions and attention before matrices, largest operands first: if time runs out, the small ones are missing. What
    cuDNN searches for takes a second each, and comes behind the other convolutions; unfamiliar operations, which may end the process
    that tries them, come last."""
    seen: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.glob("*/*.json")):
        if file.stem.isdigit():
            for signature in json.loads(file.read_text()).get("signatures", []):
                seen.setdefault(signature_key(signature), signature)

    def size(signature: dict[str, Any]) -> int:
        shapes = [
            value["shape"] for value in signature["args"] if isinstance(value, dict) and "shape" in value
        ]
        return sum(_product(shape) for shape in shapes)

    def group(signature: dict[str, Any]) -> int:
        if signature["op"].endswith("mm.default"):
            return 2
        known = any(part in signature["op"] for part in _KNOWN)
        return int(signature["flags"].get("benchmark", False)) if known else 3

    ordered = sorted(seen.values(), key=lambda item: (group(item), -size(item), signature_key(item)))
    text = "".join(json.dumps(signature, separators=(",", ":")) + "\n" for signature in ordered)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{len(ordered)} signatures, {path.stat().st_size >> 10} KiB")


def compare(card_file: Path, folder: Path, rows: Path | None) -> None:
    """Errors of the expected figure, of all jobs and of each half."""
    card = calibrated_card.read(card_file)
    assert card is not None, f"{card_file} is no card's file"
    took = {row["job"]: row for row in map(json.loads, MEASURED.read_text().splitlines())}
    errors: dict[str, list[float]] = {}
    lines = []
    for name in JOBS:
        plain = virtual_run.read(str(folder / name)) if (folder / name).is_dir() else None
        if plain is None or not plain.events or name not in took:
            continue
        run = measured_workspaces.applied(plain, card)
        before, after = (
            virtual_run.gpu_estimate(plain)[0],
            virtual_run.gpu_estimate(run, card=card.card(virtual_run.ANY_CARD))[0],
        )
        device = took[name]["device"] * MIB
        row = {
            "job": name, "half": half(name), "device": took[name]["device"], "low": mib(after.low), "expected": mib(after.expected), "high": mib(after.high),
            "uncalibrated": mib(before.expected), "error": round(after.expected / device - 1, 4), "error_uncalibrated": round(before.expected / device - 1, 4),
            "measured": run.result.measured, "unmeasured": run.result.unmeasured,
        }  # fmt: skip
        lines.append(row)
        for group in ("all", half(name)):
            errors.setdefault(group, []).append(abs(after.expected / device - 1))
            errors.setdefault(group + ", not calibrated", []).append(abs(before.expected / device - 1))
        print(
            f"{name:36} took {row['device']:6}  {row['low']:6} {row['expected']:6} {row['high']:6}  {row['error']:+7.1%}"
            f"  not calibrated {row['error_uncalibrated']:+7.1%}  {row['unmeasured']} operations unknown"
        )
    for group, values in errors.items():
        values.sort()
        print(
            f"{group}: {len(values)} jobs, median {values[len(values) // 2]:.1%}, 95th percentile {values[int(len(values) * 0.95)]:.1%}"
        )
    under = [row["job"] for row in lines if row["device"] > row["high"]]
    print(f"above high: {under}; below low: {[row['job'] for row in lines if row['device'] < row['low']]}")
    if rows is not None:
        rows.write_text("".join(json.dumps(row) + "\n" for row in lines))


def _product(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


if __name__ == "__main__":
    main()
