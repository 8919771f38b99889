"""On a card: calibrates it, then measures every operation that the sixty jobs have; the card's file is written as it goes.

    python bench/sizing/calibrated.py card.json [--seconds 150] [--signatures FILE]
    python bench/sizing/calibrated.py --collect FOLDER      without a card: signatures from what predict.py --keep FOLDER kept

``predict.py --card card.json`` then sizes the jobs for that card.
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

SOURCE = Path(__file__).parents[2] / "src"
sys.path.insert(0, str(SOURCE))

from oomproof.sizing import calibrated_card, calibration  # noqa: E402
from oomproof.sizing.calibrated_card import CalibratedCard, mib, signature_key  # noqa: E402

SIGNATURES = Path(__file__).with_name("signatures.jsonl.gz")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("card", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--signatures", type=Path, default=SIGNATURES)
    parser.add_argument("--collect", type=Path)
    args = parser.parse_args()
    if args.collect:
        collect(args.collect, args.signatures)
        return
    ends = time.monotonic() + args.seconds
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
    """Largest operands first: if time runs out, the small ones are missing."""
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

    ordered = sorted(seen.values(), key=lambda signature: (-size(signature), signature_key(signature)))
    text = "".join(json.dumps(signature, separators=(",", ":")) + "\n" for signature in ordered)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{len(ordered)} signatures, {path.stat().st_size >> 10} KiB")


def _product(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


if __name__ == "__main__":
    main()
