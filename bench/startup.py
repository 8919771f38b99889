"""How much longer `oomproof run -- true` takes than `true`. Aim: 0.25 s at most."""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import time

from lab import OOMPROOF, Lab, lab, quantile, save, table

COMMANDS = {
    "true": ["true"],
    "oomproof --version": [OOMPROOF, "--version"],
    "oomproof check": [OOMPROOF, "check"],
    "oomproof run -- true": [OOMPROOF, "run", "--", "true"],
}


def once(here: Lab, command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one call, its children's included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    subprocess.run(
        command,
        env=here.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    wall = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    with lab() as here:
        for command in COMMANDS.values():
            once(here, command)  # compiles bytecode, warms the page cache
        for _ in range(repeats):  # in turn, so that a neighbour's load falls on all of them
            for name, command in COMMANDS.items():
                taken[name].append(once(here, command))
    base = quantile([wall for wall, _ in taken["true"]], 0.5)
    rows, results = [], {}
    for name, pairs in taken.items():
        walls, cpus = [wall for wall, _ in pairs], [cpu for _, cpu in pairs]
        median, p90, cpu = quantile(walls, 0.5), quantile(walls, 0.9), quantile(cpus, 0.5)
        more = median - base
        results[name] = {"median_s": median, "p90_s": p90, "cpu_median_s": cpu, "wall_s": walls}
        rows.append([f"`{name}`", f"{median:.3f}", f"{p90:.3f}", f"{more:.3f}", f"{cpu:.3f}"])
    title = f"Start-up, seconds, {repeats} calls each (load {os.getloadavg()[0]:.1f})"
    table(title, ["command", "median", "p90", "more than `true`", "CPU"], rows)
    more = quantile([wall for wall, _ in taken["oomproof run -- true"]], 0.5) - base
    print(f"\naim: at most 0.25 s more than `true`: {more:.3f} s, {'met' if more <= 0.25 else 'MISSED'}")
    save("startup", {"repeats": repeats, "more_than_true_s": more, "commands": results})


if __name__ == "__main__":
    main()
