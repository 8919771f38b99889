"""What a job of many processes costs the guard, with a cgroup and without: the aim is 2 % of a core for 500."""

from __future__ import annotations

import argparse
import subprocess
import time

from lab import Lab, end, lab, save, table
from scale import cost, guard_pid

PROCESSES = 500
HIDE = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs /sys/fs/cgroup && exec "$@"', "sh"]


def one(here: Lab, name: str, prefix: list[str], options: list[str], seconds: float) -> float:
    """Percent of a core, once the job is up and the start is over."""
    run = here.start("--name", name, *options, "--", here.compile("crowd.c"), str(PROCESSES), prefix=prefix)
    try:
        pid = guard_pid(here, name)
        time.sleep(10)
        return cost(pid, seconds)[0]
    finally:
        end(run)


def measure(seconds: float, result: str) -> None:
    found: dict[str, float] = {}
    with lab() as here:
        here.start("--", "true").wait()  # compiles bytecode, as an installation does
        places = [("with a cgroup", [])]
        if subprocess.run([*HIDE, "true"], capture_output=True).returncode == 0:
            places.append(("without cgroups", HIDE))
        else:
            print("skipped: the cgroups cannot be hidden here (needs root)")
        for where, prefix in places:
            for limit in ("none", "1G"):
                options = [] if limit == "none" else ["--limit", limit]
                name = f"{where}, limit {limit}"
                found[name] = one(here, name.replace(" ", "-").replace(",", ""), prefix, options, seconds)
    rows = [[name, f"{cpu:.2f}"] for name, cpu in found.items()]
    table(f"A job of {PROCESSES} processes, {seconds:.0f} s each", ["", "guard CPU, % of a core"], rows)
    save(result, {"seconds": seconds, "processes": PROCESSES, "guard_cpu_percent": found})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--result", default="many-processes", help="name of the file in bench/results")
    arguments = parser.parse_args()
    measure(arguments.seconds, arguments.result)
