"""Whether many processes slow the guard: thousands of unmanaged processes on the machine, and a job of 200."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lab import (
    GIB,
    MIB,
    Lab,
    cpu_seconds,
    end,
    inside,
    lab,
    memory,
    read_json,
    save,
    small_machine,
    table,
    until,
)

UNMANAGED = 10_000
WORKERS = 200


@contextmanager
def crowd(here: Lab, count: int) -> Iterator[None]:
    """That many sleeping unmanaged processes, in a cgroup of their own; all gone afterwards (they die with their parent)."""
    with small_machine(4 * GIB) as outer:
        prefix = inside(outer) if outer else []
        parent = subprocess.Popen([*prefix, here.compile("crowd.c"), str(count)], stdout=subprocess.PIPE)
        try:
            assert parent.stdout is not None
            line = parent.stdout.readline().decode().strip()
            if line != "ready":
                raise RuntimeError(f"{line} of {count} processes could be made")
            yield
        finally:
            end(parent)


def guard_pid(here: Lab, name: str) -> int:
    attempt = here.attempt(name)
    started = until(lambda: read_json(attempt / "started.json"), f"{name} to start")
    return int(started["guard"]["pid"])


def cost(pid: int, seconds: float) -> tuple[float, float]:
    """(percent of a core, RSS in MiB)"""
    before, begun = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    share = (cpu_seconds(pid) - before) / (time.monotonic() - begun)
    return 100 * share, memory(pid)["rss"] / MIB


def measure(seconds: float) -> None:
    found: dict[str, tuple[float, float]] = {}
    with lab() as here:
        here.start("--", "true").wait()  # compiles bytecode, as an installation does
        length = str(int(3 * seconds + 300))
        alone = here.start("--name", "alone", "--", "sleep", length)
        pid = guard_pid(here, "alone")
        time.sleep(5)
        found["one-process job"] = cost(pid, seconds)
        with crowd(here, UNMANAGED):
            found[f"one-process job, {UNMANAGED:,} strangers"] = cost(pid, seconds)
        end(alone)
        many = here.start("--name", "many", "--", here.compile("crowd.c"), str(WORKERS))
        pid = guard_pid(here, "many")
        time.sleep(5)
        found[f"job of {WORKERS} processes"] = cost(pid, seconds)
        end(many)
    rows = [[name, f"{cpu:.3f}", f"{rss:.1f}"] for name, (cpu, rss) in found.items()]
    table(f"Many processes, {seconds:.0f} s each", ["", "guard CPU, % of a core", "guard RSS, MiB"], rows)
    save(
        "scale",
        {
            "seconds": seconds,
            "guard": {name: {"cpu_percent": cpu, "rss_mib": rss} for name, (cpu, rss) in found.items()},
        },
    )


if __name__ == "__main__":
    measure(60.0)
