"""What `memory.low` for the desktop's slices and MGLRU's `min_ttl_ms` bring to a program that only wants to answer, in the lab's machine.

1 GB of RAM and a slow swap disk, two trainings of 560 MB that touch all of it over and over, both started by hand; a
bystander in the desktop's own slice, 100 MB that are used every four seconds, as a browser is. Its longest stall under each setting, without a guard and with ours
(`oomproof guard --system`), one after the other in a machine that is booted once for each guard. Needs root once (the lab's image).
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from lab import RESULTS, quantile, read_json, save, table
from virtual_lab import IN_GUEST, JOBS, virtual

PATIENCE = 100.0  # seconds for both jobs: then they are ended, and what the bystander has waited for counts
RATE = 20  # MiB a second of the swap disk: pages at random of an SSD
LOW = "160M"
SLICES = "user.slice user-1000.slice user@1000.service"
GENERATIONS = "/sys/kernel/mm/lru_gen"
OFF = f"systemctl set-property --runtime {{}} MemoryLow=0; echo 0 > {GENERATIONS}/min_ttl_ms; echo n > {GENERATIONS}/enabled"
DESKTOP = "cat /sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/session.slice/memory.low"
SHIPPED = "as installed"  # by `oomproof guard install --system`
SETTINGS = {
    "nothing": "",
    "memory.low by hand": "low",
    "MGLRU": f"echo y > {GENERATIONS}/enabled",
    "MGLRU, min_ttl_ms 1000": f"echo y > {GENERATIONS}/enabled; echo 1000 > {GENERATIONS}/min_ttl_ms",
    "both": "low; " + f"echo y > {GENERATIONS}/enabled; echo 1000 > {GENERATIONS}/min_ttl_ms",
    SHIPPED: "",
}
GUARDS = {"none": list(SETTINGS), "oomproof guard --system": ["nothing", SHIPPED]}


def set_up(machine: Any, words: str) -> None:
    for unit in SLICES.split():
        machine.run(OFF.format(unit), check=False)
    if words.startswith("low"):
        for unit in SLICES.split():
            machine.run(f"systemctl set-property --runtime {unit} MemoryLow={LOW}")
        words = words.removeprefix("low").removeprefix("; ")
    if words:
        machine.run(words)


def install(machine: Any, session: Any, guard: str, setting: str) -> None:
    """The guard runs, or only what it installs for the desktop is there, or neither."""
    machine.run("oomproof guard uninstall --system", check=False)
    if guard == "none" and setting != SHIPPED:
        return
    machine.run(f"oomproof guard install --system {'' if setting == SHIPPED else '--no-desktop'}")
    if guard == "none":
        machine.run("systemctl stop oomproof-guard")
    session.run("systemctl --user daemon-reload")  # as the next login would


def once(machine: Any, session: Any, guard: str, setting: str) -> dict[str, Any]:
    words = SETTINGS[setting]
    set_up(machine, words)
    install(machine, session, guard, setting)
    limit = f"-p MemoryLow={LOW}" if words.startswith("low") else ""
    stall = f"/tmp/stall-{time.monotonic_ns()}"
    session.start(
        f"systemd-run --user --slice=session.slice {limit} -- python3 {IN_GUEST}/bystander.py {stall} 100 4"
    )
    machine.wait_until(f"test -s {stall}")
    machine.swapon()
    time.sleep(5)
    begun = time.monotonic()
    training = session.start(f"python3 {IN_GUEST}/train_loop.py 560 20")
    machine.wait_until(f"grep -qs ready {training.output}")
    time.sleep(5)
    second = session.start(f"python3 {IN_GUEST}/train_loop.py 560 20")
    ended = {
        name: ending(machine, handle, begun) for name, handle in (("second", second), ("training", training))
    }
    longest = float(machine.get(stall))
    machine.run(f"pkill -9 -u ada -f jobs/; kill -9 $(cat {stall}.pid)", check=False)
    machine.wait_until("! pgrep -u ada -f jobs/", timeout=60)
    machine.run("oomproof resume --all", check=False)
    machine.swapoff()
    low = int(machine.run(DESKTOP, check=False).out or 0)
    return {
        "memory_low": low,
        "stall": longest,
        "seconds": time.monotonic() - begun,
        "load": os.getloadavg()[0],
        **ended,
    }


def ending(machine: Any, handle: Any, begun: float) -> str:
    while time.monotonic() < begun + PATIENCE:
        try:
            done = machine.wait(handle, timeout=10)
            return "finished" if done.rc == 0 and "intact" in done.out else f"ended ({done.rc})"
        except AssertionError:  # the lab's own error: not yet
            continue
    return "still thrashing"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60.0, help="what is not done by then is left out")
    arguments = parser.parse_args()
    end_by = time.monotonic() + 60 * arguments.minutes
    virtual.ensure_image()
    kept: dict[str, Any] = read_json(RESULTS / "desktop-protection.json").get("rounds", {})
    for guard, settings in GUARDS.items():
        with virtual.Machine(memory_mib=1024, swap_mib=1024, swap_rate=RATE, swap_on=False) as machine:
            machine.put(JOBS, IN_GUEST)
            session = machine.login("ada")
            for setting in [name for _ in range(arguments.repeats) for name in settings]:
                if time.monotonic() > end_by:
                    break
                rounds = kept.setdefault(f"{guard} / {setting}", [])
                if len(rounds) >= arguments.repeats:
                    continue
                rounds.append(once(machine, session, guard, setting))
                print(guard, setting, rounds[-1], flush=True)
                save("desktop-protection", {"rounds": kept})
    rows = [
        [
            *name.split(" / "),
            f"{quantile([one['stall'] for one in rounds], 0.5):.2f}",
            ", ".join(f"{one['stall']:.2f}" for one in rounds),
            ", ".join(f"{one['training']}/{one['second']}" for one in rounds),
        ]
        for name, rounds in kept.items()
        if rounds
    ]
    table(
        "The bystander's longest stall",
        ["guard", "setting", "median s", "all rounds, s", "first/second"],
        rows,
    )


if __name__ == "__main__":
    main()
