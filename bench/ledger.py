"""How long an admission takes with 100 live runs and 5,000 runs of history (aim: 20 ms), and a crowd of 200 that asks at once."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from lab import HERE, MIB, RESULTS, lab, quantile, read_json, save, table

from oomproof.leaf.command_lines import command_key
from oomproof.ledger.forecast import LiveClaim
from oomproof.ledger.ledger_entries import ADMITTED, Entry, Peak
from oomproof.ledger.ledger_store import open_ledger
from oomproof.machine import processes
from oomproof.machine.clock import boottime
from oomproof.recording import run_folders
from oomproof.runner.admission_request import Asked, ask

AIM = 0.020
LIVE, HISTORY = 100, 5000
COMMAND = ["python", "train.py", "--batch", "64"]


def fill(folder: Path) -> tuple[list[subprocess.Popen[bytes]], list[LiveClaim]]:
    """A busy machine: live processes with entries and a word of their own each second, and years of peaks."""
    ledger = open_ledger()
    holders = [subprocess.Popen(["sleep", "600"]) for _ in range(LIVE)]
    now, tellers = boottime(), []
    with ledger.decision():
        for number, holder in enumerate(holders):
            start = processes.start_time(holder.pid)
            ledger.put(
                Entry(
                    run=f"20260101-000000-{number:03d}",
                    uid=os.getuid(),
                    name=f"run{number}",
                    key=f"key{number}",
                    state=ADMITTED,
                    boot=processes.boot_id(),
                    asked=now,
                    admitted=now,
                    front_pid=holder.pid,
                    front_start=start,
                    need=50 * MIB,
                    need_low=50 * MIB,
                    basis="declared",
                    keeper_pid=holder.pid,
                    keeper_start=start,
                    job_pid=holder.pid,
                    job_start=start,
                )
            )
            teller = LiveClaim(f"20260101-000000-{number:03d}", now + number)
            teller.update(49 * MIB, now)
            tellers.append(teller)
    for number in range(HISTORY // 20):
        key = command_key(COMMAND, str(folder)) if number == 0 else f"key{number}"
        for run in range(20):
            peak = Peak(f"old-{number}-{run}", key, float(run), 100 * MIB, None, 60.0, True)
            with ledger.decision():
                ledger._main_only(
                    "INSERT INTO peak (run, key, wall, use, gpu, seconds, whole) VALUES (?,?,?,?,?,?,?)",
                    (peak.run, peak.key, peak.wall, peak.use, peak.gpu, peak.seconds, 1),
                )
    ledger.close()
    return holders, tellers


def once(folder: Path, tellers: list[LiveClaim]) -> tuple[float, float]:
    """Wall and CPU seconds of one admission as `oomproof run` does it: open the ledger, look the need up, decide, write, close."""
    for teller in tellers:
        teller.update(49 * MIB, boottime())
    run = run_folders.new_run()
    begun, cpu = time.perf_counter(), time.process_time()
    ticket = ask(run, COMMAND, None, Asked(), str(folder), lambda _: None, lambda _: None)
    seconds = time.perf_counter() - begun, time.process_time() - cpu
    assert ticket.entry.state == ADMITTED and ticket.entry.need == 100 * MIB
    ticket.drop()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--crowd", type=int, default=200, help="0: leave the crowd out")
    arguments = parser.parse_args()
    with lab() as here:
        os.environ.update(
            {
                name: here.environment[name]
                for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME")
            }
        )
        holders, tellers = fill(here.folder)
        try:
            once(here.folder, tellers)
            taken = [once(here.folder, tellers) for _ in range(arguments.repeats)]
        finally:
            for holder in holders:
                holder.kill()
                holder.wait()
    wall, cpu = [one[0] for one in taken], [one[1] for one in taken]
    median, p99 = quantile(wall, 0.5), quantile(wall, 0.99)
    table(
        f"An admission with {LIVE} live runs and {HISTORY:,} of history, milliseconds, {arguments.repeats} times "
        f"(load {os.getloadavg()[0]:.1f})",
        ["", "median", "p90", "p99", "aim"],
        [
            [name, *(f"{quantile(values, q) * 1000:.1f}" for q in (0.5, 0.9, 0.99)), aim]
            for name, values, aim in (("wall", wall, f"{AIM * 1000:.0f}"), ("CPU", cpu, ""))
        ],
    )
    print(f"\naim: {'met' if median < AIM else 'MISSED'}")
    crowd = read_json(RESULTS / "ledger.json").get("crowd")  # kept when it is left out
    if arguments.crowd:
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--timeout=900", "test_ledger_stress.py"],
            cwd=HERE.parent / "tests" / "incidents",
            env={**os.environ, "LEDGER_CROWD": str(arguments.crowd)},
            check=False,
        )
        crowd = {
            "processes": arguments.crowd,
            "passed": done.returncode == 0,
            "seconds": time.perf_counter() - begun,
        }
        print(
            f"a crowd of {arguments.crowd}, on an ample disk and on a full one: {'as it should' if crowd['passed'] else 'FAILED'}"
        )
    save(
        "ledger",
        {
            "repeats": arguments.repeats,
            "live": LIVE,
            "history": HISTORY,
            "median_s": median,
            "p99_s": p99,
            "wall_s": wall,
            "cpu_s": cpu,
            "crowd": crowd,
        },
    )


if __name__ == "__main__":
    main()
