"""The table of docs/size-accuracy.md: what the sixty jobs took, what was predicted of them, and whether they finish under our *high*.

    python bench/sizing/report.py KEPT CARD.json [--capped capped.jsonl] [--caps caps.json] [--rows rows.jsonl]

KEPT: what predict.py --keep wrote. ``--caps`` writes what measure.py --caps wants: for each job of the reporting half the
allocator's share of our *high*, the card's context subtracted.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from jobs import half, wanted

from oomproof.sizing import calibrated_card, measured_workspaces, virtual_run

MIB = 1 << 20
MEASURED = Path(__file__).parents[1] / "results" / "sizing-jobs-h200.jsonl"
# our name → column
ESTIMATES = {
    "calibrated": "calibrated",
    "uncalibrated": "without any GPU",
    "live": "live tensors (as MemTracker counts)",
    "weights4": "4 × weights (accelerate's rule for Adam)",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kept", type=Path)
    parser.add_argument("card", type=Path)
    parser.add_argument("--capped", type=Path)
    parser.add_argument("--caps", type=Path)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--measured", type=Path, default=MEASURED)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    card = calibrated_card.read(args.card)
    assert card is not None, f"{args.card} is no card's file"
    capped = {row["job"]: row for row in _lines(args.capped)} if args.capped else {}
    took = {row["job"]: row for row in _lines(args.measured)}
    rows = [
        found
        for name in wanted(args.only)
        if name in took
        and took[name]["status"] == 0
        and (found := _row(name, args.kept / name, card, took[name], capped.get(name))) is not None
    ]
    if args.rows:
        args.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if args.caps:
        context = card.card(virtual_run.ANY_CARD).context.usual
        reported = [row for row in rows if row["half"] != "tuning"]
        args.caps.write_text(json.dumps({row["job"]: row["high"] * MIB - context for row in reported}))
    _print(rows, bool(capped))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _row(name: str, folder: Path, card: Any, took: dict[str, Any], capped: Any) -> dict[str, Any] | None:
    run = virtual_run.read(str(folder)) if folder.is_dir() else None
    if run is None or not run.events or run.result.refused or virtual_run.by_values(run):
        return None
    plain = virtual_run.gpu_estimate(run)[0]
    found = virtual_run.gpu_estimate(
        measured_workspaces.applied(run, card), card=card.card(virtual_run.ANY_CARD)
    )[0]
    replay = virtual_run.replay(run)
    row = {
        "job": name, "half": half(name), "device": took["device"], "calibrated": found.expected // MIB, "low": found.low // MIB, "high": found.high // MIB,
        "uncalibrated": plain.expected // MIB, "plain_low": plain.low // MIB, "plain_high": plain.high // MIB,
        "live": (replay.allocated - replay.parts["workspaces"]) // MIB, "weights4": 4 * replay.parts["weights"] // MIB,
    }  # fmt: skip
    if capped is not None:
        row["finished"] = capped["status"] == 0
    return row


def _print(rows: list[dict[str, Any]], capped: bool) -> None:
    for part in ("reporting", "tuning", "fresh", "fresh2", "fresh3", "fresh4", "fresh5", "compiled"):
        chosen = [row for row in rows if row["half"] == part]
        if not chosen:
            continue
        print(
            f"\n{part}: {len(chosen)} jobs\n\n| estimate | median error | 95th percentile | worst |\n|---|---|---|---|"
        )
        for name, column in ESTIMATES.items():
            errors = sorted(abs(row[name] / row["device"] - 1) for row in chosen)
            last = errors[min(len(errors) - 1, round(0.95 * len(errors)))]
            print(f"| {column} | {median(errors):.1%} | {last:.1%} | {errors[-1]:.1%} |")
        for name, low, high in (
            ("calibrated", "low", "high"),
            ("without any GPU", "plain_low", "plain_high"),
        ):
            above = [row["job"] for row in chosen if row["device"] > row[high]]
            below = [row["job"] for row in chosen if row["device"] < row[low]]
            print(f"{name}: above high {above}, below low {below}")
        print("\n| job | took | calibrated | error | high | without any GPU | error |" + (" capped at high |" if capped else ""))  # fmt: skip
        print("|---|---|---|---|---|---|---|" + ("---|" if capped else ""))
        for row in chosen:
            errors = [f"{row[name] / row['device'] - 1:+.1%}" for name in ("calibrated", "uncalibrated")]
            finished = {True: " finished |", False: " **died** |", None: " |"}[row.get("finished")]
            print(f"| {row['job']} | {row['device']} | {row['calibrated']} | {errors[0]} | {row['high']} | {row['uncalibrated']} | {errors[1]} |" + (finished if capped else ""))  # fmt: skip


if __name__ == "__main__":
    main()
