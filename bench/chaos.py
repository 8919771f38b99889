"""Chaos by the thousand: random faults around real jobs, and what they cost. Needs root; see tests/chaos.

bench/chaos.py --rounds 1000 --resume bench/results/chaos.jsonl    goes on where it was cut; prints the table
bench/chaos.py --seed 77                                           one round again, its folder kept
bench/chaos.py --seed 77 --rounds 1 --faults keeper-kill           ... with this fault and no other
bench/chaos.py --table bench/results/chaos.jsonl                   the table alone
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "chaos"))

import chaos_driver  # noqa: E402
import chaos_expect as expect  # noqa: E402
import chaos_plan as plan  # noqa: E402
from lab import table  # noqa: E402

COLUMNS = {
    "lost": expect.LOST,
    "innocents": expect.INNOCENT,
    "unreadable": expect.UNREADABLE,
    "wrong verdict or status": expect.WRONG,
    "left behind": expect.LEFT,
    "blind": expect.BLIND,
}


def summary(results: Sequence[dict[str, Any]]) -> None:
    """One row per kind of fault: a round with three faults counts in three rows, and once in the last."""
    rows = []
    for kind in (*plan.KINDS, "all rounds"):
        chosen = [one for one in results if kind == "all rounds" or kind in one.get("kinds", ())]
        if chosen:
            rows.append(_row(kind, chosen))
    heads = ["fault", "rounds", "jobs", *COLUMNS, "other", "rounds without fault of ours"]
    table("Chaos", heads, rows)


def _row(kind: str, chosen: Sequence[dict[str, Any]]) -> list[str]:
    names = [name for one in chosen for name, _, _ in one["violations"]]
    counts = [sum(name in names_of for name in names) for names_of in COLUMNS.values()]
    clean = sum(not one["violations"] for one in chosen)
    jobs = sum(one.get("jobs", 0) for one in chosen)
    return [kind, *map(str, (len(chosen), jobs, *counts, len(names) - sum(counts), clean))]


def line(one: dict[str, Any]) -> str:
    names = Counter(name for name, _, _ in one["violations"])
    said = ", ".join(f"{name} {count}" if count > 1 else name for name, count in names.items()) or "ok"
    if one.get("unavailable"):
        said = f"not run: {one['unavailable']}"
    return f"seed {one['seed']}  {one.get('seconds', 0):5.1f}s  {said}  [{one['plan']} -> {'; '.join(one.get('truths', ()))}]"


def again(one: dict[str, Any]) -> str:
    faults = f" --faults {','.join(one['faults'])}" if one.get("faults") else ""
    return f"    again: bench/chaos.py --seed {one['seed']} --rounds 1{faults}   folder: {one.get('folder')}"


def play(
    seeds: Iterable[int], kinds: Sequence[str], jobs: int, out: Path | None, keep: bool
) -> list[dict[str, Any]]:
    results = []
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(chaos_driver.run_round, seed, kinds, keep) for seed in seeds]
        for future in as_completed(waiting):
            one = future.result()
            results.append(one)
            print(line(one), flush=True)
            if one["violations"]:
                for name, job, text in one["violations"]:
                    print(f"    {name} {job}: {text}")
                print(again(one), flush=True)
            if out is not None:
                with open(out, "a") as file:
                    kept = {key: value for key, value in one.items() if key not in ("folder", "seconds")}
                    file.write(json.dumps(kept) + "\n")
    return results


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--faults", default="", help="only these, separated by commas")
    parser.add_argument("--jobs", type=int, default=2, help="rounds at a time")
    parser.add_argument(
        "--resume", type=Path, help="results go there; rounds that stand there are not run again"
    )
    parser.add_argument("--table", type=Path, help="print the table of these results and end")
    arguments = parser.parse_args()
    if arguments.table:
        summary(read(arguments.table))
        return 0
    before = read(arguments.resume) if arguments.resume else []
    known = {one["seed"] for one in before}
    seeds = [seed for seed in range(arguments.seed, arguments.seed + arguments.rounds) if seed not in known]
    kinds = tuple(kind for kind in arguments.faults.split(",") if kind)
    results = before + play(seeds, kinds, arguments.jobs, arguments.resume, arguments.rounds == 1)
    summary(results)
    return 1 if any(one["violations"] for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
