"""What a real DataLoader's workers take against sizing/loader_memory.py: across workers, start methods, prefetch and batches.

Each case runs in a memory cgroup of its own; measured is its anon + shmem (every page once), at most, above what the main process
held before the loop. Aim: within 10 %."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from pathlib import Path

from lab import MIB, inside, lab, save, small_machine, table

from oomproof.machine import cgroups
from oomproof.sizing.host_figures import loader_memory
from oomproof.sizing.virtual_gpu.child_results import Loader

LIMIT = 3 << 30
JOB = """
import json, sys, time, warnings
import torch
warnings.filterwarnings("ignore")
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self, numbers): self.numbers = numbers
    def __len__(self): return 1 << 20
    def __getitem__(self, index): return torch.full((self.numbers,), float(index))

if __name__ == "__main__":
    workers, prefetch, method, batch, numbers, steps = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    loader = DataLoader(Rows(numbers), batch_size=batch, num_workers=workers, prefetch_factor=prefetch or None,
                        multiprocessing_context=method or None)
    print("ready", flush=True)
    sys.stdin.readline()
    for step, rows in enumerate(loader):
        time.sleep(1.0 if step == 0 else 0.1)   # a consumer that is slower than its workers: the queue fills
        if step == steps: break
    print("done", flush=True)
    sys.stdin.readline()
"""


def measure(case: tuple[int, int, str, int, int], machine: Path, script: Path) -> tuple[int, int]:
    """(anon above what was there before, shmem), at their common highest."""
    words = [
        *inside(machine),
        sys.executable,
        str(script),
        json.dumps([*case, case[0] * max(1, case[1]) + 8]),
    ]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin and child.stdout
        child.stdout.readline()
        before = cgroups.memory_of(str(machine))
        assert before is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        highest = (0, 0)
        while not select.select([child.stdout], [], [], 0.01)[0]:
            held = cgroups.memory_of(str(machine))
            if held is not None:
                highest = max(highest, (held.anon - before.anon, held.shmem - before.shmem), key=sum)
        if child.stdout.readline() != b"done\n":
            raise SystemExit(f"{case} failed")
        child.stdin.close()
    return highest


def cases() -> list[tuple[int, int, str, int, int]]:
    """workers, prefetch, start method, batch, numbers in a row"""
    large, small = 64 * 1024, 4 * 1024
    return [
        (0, 0, "", 64, large),
        (0, 0, "", 256, large),
        (0, 0, "", 512, small),
        (1, 2, "fork", 64, large),
        (2, 2, "fork", 64, large),
        (4, 2, "fork", 64, large),
        (8, 2, "fork", 64, large),
        (16, 2, "fork", 64, large),
        (4, 8, "fork", 64, large),
        (4, 2, "fork", 256, large),
        (4, 2, "fork", 64, small),
        (8, 4, "fork", 64, small),
        (2, 2, "spawn", 64, large),
        (4, 4, "spawn", 64, large),
        (4, 2, "spawn", 64, small),
        (2, 2, "forkserver", 64, large),
        (4, 4, "forkserver", 64, large),
        # made after the figures in src/ had been chosen
        (3, 3, "fork", 96, large),
        (6, 1, "fork", 40, large),
        (12, 4, "fork", 128, 1024),
        (3, 1, "spawn", 32, large),
        (5, 3, "forkserver", 96, small),
    ]


def main() -> None:
    header = ["workers", "prefetch", "start", "batch", "predicted", "measured", "own", "shared", "ratio"]
    rows, results = [], []
    with lab() as here, small_machine(LIMIT, "loader") as machine:
        if machine is None:
            return
        script = here.folder / "job.py"
        script.write_text(JOB)
        for case in cases():
            workers, prefetch, method, batch, numbers = case
            anon, shmem = measure(case, machine, script)
            size = batch * numbers * 4
            predicted = loader_memory(Loader(workers, prefetch, size, method or "fork")).total
            ratio = predicted / (anon + shmem)
            results.append(
                {"case": case, "predicted": predicted, "anon": anon, "shmem": shmem, "ratio": ratio}
            )
            figures = [size, predicted, anon + shmem, anon, shmem]
            rows.append(
                [
                    str(workers),
                    str(prefetch),
                    method,
                    *(f"{figure / MIB:.0f}" for figure in figures),
                    f"{ratio:.2f}",
                ]
            )
            print(*rows[-1], flush=True)
    table("A DataLoader's workers, MiB", header, rows)
    save("loader-memory", {"cases": results})


if __name__ == "__main__":
    main()
