"""What a power cut costs: seconds of a recording that are not on the disk when the plug is pulled, in the lab's machine.

Jobs record to a disk of the virtual machine: one that sits still, one that grows, one that grows near its limit. At random moments the
machine is stopped and its disk copied, which is what a cut at that moment would leave (what the guest had not yet written is in
its own memory); the copies are repaired as a boot would, and the newest row of each recording is compared with the moment.
One cut of the kind that ends the machine is in `tests/vm/test_run.py`. Needs root once (the lab's image), e2fsprogs."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from lab import RESULTS, quantile, save, table
from virtual_lab import IN_GUEST, JOBS, ROOT, virtual

from oomproof.recording.attempt import Attempt
from oomproof.recording.series import JobRow

SETTLED = 60.0  # seconds: a job that has not grown for so long is recorded as a calm one
TOOLS = f"{os.environ['PATH']}:/usr/sbin:/sbin"
# They grow for as long as the cuts take, and stay below what the guard acts on.
JOBS_RUN = {
    "calm": f"oomproof run --name calm -- python3 {IN_GUEST}/grow.py 100 20",
    "growing": f"oomproof run --name growing --limit 450M -- python3 {IN_GUEST}/grow.py 0.7 250",
    "near its limit": f"oomproof run --name near --limit 300M -- python3 {IN_GUEST}/grow.py 0.1 275 '' 230",
}


def cut(machine: Any, disk: Path, copy: Path) -> float:
    """The moment, by the guest's clock, which is the host's."""
    qemu = machine._qemu.pid
    os.kill(qemu, signal.SIGSTOP)
    try:
        moment = time.time()
        subprocess.run(["cp", "--sparse=always", str(disk), str(copy)], check=True)
    finally:
        os.kill(qemu, signal.SIGCONT)
    return moment


def files_of(copy: Path, folder: Path) -> Path:
    """The disk's files as the next boot finds them."""
    check = shutil.which("e2fsck", path=TOOLS) or "e2fsck"
    subprocess.run([check, "-fy", str(copy)], capture_output=True)  # 1: repaired, which is the point
    folder.mkdir()
    debug = shutil.which("debugfs", path=TOOLS) or "debugfs"
    subprocess.run([debug, "-R", f"rdump / {folder}", str(copy)], check=True, capture_output=True)
    return folder


def newest(folder: Path, name: str) -> float | None:
    """Wall clock of the newest row of the run of that name."""
    for path in folder.glob("*/oomproof/runs/*/run.json"):
        if f'"name": "{name.split()[0]}"' in path.read_text():
            recording = Attempt(path.parent / "1").recording()
            with recording.series() as series:
                rows = series.newest(JobRow, 60.0)
            return rows[-1].t + recording.wall_offset if rows else None
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    lost: dict[str, list[float]] = {name: [] for name in JOBS_RUN}
    with tempfile.TemporaryDirectory(prefix="oomproof-cut-") as made:
        folder = Path(made)
        disk = folder / "state.img"
        share = {"src": ROOT / "src", "jobs": JOBS}
        virtual.ensure_image()
        with virtual.Machine(memory_mib=1024, state_drive=disk, share=share) as machine:
            late = float(machine.run("date +%s.%N").out) - time.time()
            print(
                f"up in {machine.boot_seconds:.0f} s, the guest's clock is {late:+.2f} s beside ours (its answer's way included)"
            )
            for name, command in JOBS_RUN.items():
                machine.start(f"XDG_STATE_HOME=/state/{name.split()[0]} {command}")
                if name == "calm":
                    machine.wait_until("grep -qs ready /state/calm/oomproof/runs/*/1/output.log")
                    time.sleep(SETTLED)
            time.sleep(SETTLED)
            moments = []
            for number in range(arguments.cuts):
                time.sleep(dice.uniform(1.0, 6.0))
                moments.append(cut(machine, disk, folder / f"{number}.img"))
        for number, moment in enumerate(moments):
            there = files_of(folder / f"{number}.img", folder / str(number))
            for name in JOBS_RUN:
                last = newest(there, name)
                assert last is not None, f"cut {number}: {name} has no rows"
                lost[name].append(moment - last)
            shutil.rmtree(there)
            (folder / f"{number}.img").unlink()
            print(number, *(f"{name} {seconds[-1]:.2f} s" for name, seconds in lost.items()), flush=True)
    rows = [
        [
            name,
            f"{quantile(seconds, 0.5):.1f}",
            f"{quantile(seconds, 0.9):.1f}",
            f"{max(seconds):.1f}",
            str(len(seconds)),
        ]
        for name, seconds in lost.items()
    ]
    table(
        f"Lost with the power (load {os.getloadavg()[0]:.1f})",
        ["job", "median s", "p90 s", "worst s", "cuts"],
        rows,
    )
    save("power-cut", {"seed": arguments.seed, "lost_seconds": lost})
    print(RESULTS / "power-cut.json")


if __name__ == "__main__":
    main()
