"""The host's peak of real jobs against `oomproof size -- CMD`: loaders across workers, start methods and prefetch, and CPU trainings.

    python bench/sizing/host.py [--only NAME] [--python PYTHON] [--again]

Each job runs once to its end in a memory cgroup of its own; measured is the highest anon + shmem of the cgroup (every page once,
all processes). Then `oomproof size` predicts it, without that limit. Aim: within 10 %. Rows are kept in bench/results/sizing-host.jsonl."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from lab import MIB, OOMPROOF, RESULTS, inside, small_machine, table

from oomproof.machine import cgroups

LIMIT = 6 << 30
PROGRAMS = Path(__file__).parent / "programs"
ROWS = RESULTS / "sizing-host.jsonl"


def loader(**given: object) -> list[str]:
    words = ["augmented_loader.py"]
    for name, value in given.items():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


JOBS: dict[str, list[str]] = {
    "loader 0 workers": loader(workers=0),
    "loader 2 fork": loader(workers=2),
    "loader 4 fork": loader(workers=4),
    "loader 8 fork": loader(workers=8),
    "loader 16 fork": loader(workers=16),
    "loader 16 fork, prefetch 4": loader(workers=16, prefetch=4),
    "loader 4 fork, prefetch 8": loader(workers=4, prefetch=8),
    "loader 4 fork, 200 MiB of paths": loader(workers=4, kept=200),
    "loader 8 fork, pictures of 224": loader(workers=8, side=224),
    "loader 8 fork, pin_memory": loader(workers=8, pin=True),
    "loader 4 fork, persistent": loader(workers=4, persistent=True),
    "loader 2 spawn": loader(workers=2, method="spawn"),
    "loader 4 spawn": loader(workers=4, method="spawn"),
    "loader 8 spawn": loader(workers=8, method="spawn"),
    "loader 16 spawn": loader(workers=16, method="spawn"),
    "loader 2 forkserver": loader(workers=2, method="forkserver"),
    "loader 4 forkserver": loader(workers=4, method="forkserver"),
    "loader 8 forkserver, prefetch 4": loader(workers=8, method="forkserver", prefetch=4),
    "cpu: plain loop": ["cpu_loop.py"],
    "cpu: transformers Trainer": ["cpu_trainer.py"],
    "cpu: Lightning": ["cpu_lightning.py"],
    "cpu: table of features": ["cpu_features.py"],
    "cpu: bank of vectors": ["cpu_bank.py"],
    # made after the figures in src/ had been chosen
    "later: loader 6 fork, prefetch 3, batch 32, pictures of 160": loader(
        workers=6, prefetch=3, batch=32, side=160
    ),
    "later: loader 3 spawn, prefetch 3": loader(workers=3, method="spawn", prefetch=3, steps=24),
    "later: cpu: transformer encoder": ["cpu_encoder.py"],
    "later: cpu: embeddings": ["cpu_factors.py"],
    # freed activations that malloc keeps beside what it maps; the first was in view when that was modelled
    "layers: cpu: 31 MiB": ["cpu_layers.py"],
    "layers: cpu: 8 MiB": ["cpu_layers.py", "--batch", "500"],
    "layers: cpu: narrow": ["cpu_layers.py", "--hidden", "1024"],
    "layers: cpu: tall": ["cpu_layers.py", "--batch", "8000", "--hidden", "2048"],
    "layers: cpu: wide": ["cpu_layers.py", "--batch", "1500", "--hidden", "5120"],
    # large inputs, of which oneDNN makes copies; the first two were in view when these were modelled
    "pictures: cpu: satellite": ["cpu_pictures.py", "satellite"],
    "pictures: cpu: strided": ["cpu_pictures.py", "strided", "--batch", "32"],
    "pictures: cpu: coarse": ["cpu_pictures.py", "coarse"],
    "pictures: cpu: segments": ["cpu_pictures.py", "segments", "--batch", "24"],
    "pictures: cpu: sounds": ["cpu_pictures.py", "sounds", "--batch", "32"],
    "pictures: cpu: satellite, channels last": ["cpu_pictures.py", "satellite", "--last"],
}


def command(name: str, python: str) -> list[str]:
    program, *words = JOBS[name]
    return [python, "-W", "ignore", str(PROGRAMS / program), *words]


def measure(words: list[str], machine: Path) -> dict[str, float]:
    """MiB at the highest sum, and the seconds it took."""
    started, highest = time.monotonic(), (0, 0)
    child = subprocess.Popen([*inside(machine), *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while child.poll() is None:
        held = cgroups.memory_of(str(machine))
        if held is not None:
            highest = max(highest, (held.anon, held.shmem), key=sum)
        time.sleep(0.01)
    if child.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{child.stderr.read().decode()[-2000:]}")
    return {"measured": sum(highest) // MIB, "anon": highest[0] // MIB, "shmem": highest[1] // MIB,
            "run_seconds": round(time.monotonic() - started, 1)}  # fmt: skip


def predict(words: list[str]) -> dict[str, object]:
    started = time.monotonic()
    ended = subprocess.run(
        [OOMPROOF, "size", "--json", "--ram", "64G", "--", *words], capture_output=True, text=True
    )
    seconds = round(time.monotonic() - started, 1)
    value = json.loads(ended.stdout)
    if value["refused"]:
        return {"refused": value["refused"], "size_seconds": seconds}
    host = value["host"]
    return {
        **{name: host[f"{name}_bytes"] // MIB for name in ("low", "expected", "high")},
        "parts": {name: size // MIB for name, size in host["parts"].items()}, "size_seconds": seconds,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument(
        "--again", choices=("all", "prediction"), help="what to do anew of rows that are there"
    )
    args = parser.parse_args()
    rows = (
        {row["job"]: row for row in map(json.loads, ROWS.read_text().splitlines())} if ROWS.exists() else {}
    )
    with small_machine(LIMIT, "host") as machine:
        if machine is None:
            return
        for name in JOBS:
            if args.only not in name or (name in rows and not args.again):
                continue
            words = command(name, args.python)
            row = rows.get(name, {})
            real = measure(words, machine) if args.again != "prediction" or not row else {
                key: row[key] for key in ("measured", "anon", "shmem", "run_seconds")}  # fmt: skip
            rows[name] = {"job": name, **real, **predict(words)}
            ROWS.write_text("".join(json.dumps(rows[known]) + "\n" for known in JOBS if known in rows))
            print(json.dumps(rows[name]), flush=True)
    header = ["job", "measured", "low", "expected", "high", "error", "seconds"]
    table("The host's peak, MiB", header, [shown(row) for row in rows.values() if args.only in row["job"]])


def shown(row: dict[str, float]) -> list[str]:
    if "expected" not in row:
        return [str(row["job"]), f"{row['measured']:.0f}", "refused", "", "", "", ""]
    error = row["expected"] / row["measured"] - 1
    figures = [f"{row[name]:.0f}" for name in ("measured", "low", "expected", "high")]
    return [str(row["job"]), *figures, f"{error:+.1%}", f"{row['size_seconds']:.0f}"]


if __name__ == "__main__":
    main()
