"""How fast a huge kernel log is searched, beside `grep -c -F` with the same strings, and a long training log.

python bench/why_speed.py                     a log of 1 GiB: grep, our reading, and `oomproof why FILE` as one types it
python bench/why_speed.py --training 100      so many MiB of bars, dictionaries and lines of a logger. Aim: 2.5 s
python bench/why_speed.py --piped 5           5 GiB through `oomproof why -`, made on the fly
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from oomproof.evidence.texts.guard_parser import ANCHORS as GUARD_ANCHORS
from oomproof.evidence.texts.guard_parser import GuardParser
from oomproof.evidence.texts.kernel_parser import ANCHORS, REPORT_END, REPORT_STARTS, KernelParser
from oomproof.evidence.texts.line_reader import Lines
from oomproof.evidence.texts.long_texts import marked_lines

NOISE = (
    "eth0: renamed from veth{0:x}",
    "audit: type=1400 audit({0}.{1}:{2}): apparmor=\"ALLOWED\" operation=\"open\" profile=\"snap\" pid={1} comm=\"chrome\"",
    "docker0: port {1}(veth{0:x}) entered blocking state",
    "usb 1-{2}: new high-speed USB device number {1} using xhci_hcd",
    "EXT4-fs (nvme0n1p{2}): mounted filesystem with ordered data mode. Opts: (null)",
    "nvme nvme0: I/O {1} QID {2} timeout, completion polled",
    "TCP: request_sock_TCP: Possible SYN flooding on port {1}. Sending cookies.",
    "perf: interrupt took too long ({1} > {2}), lowering kernel.perf_event_max_sample_rate",
)  # fmt: skip
REPORT_EVERY = 200_000  # lines: a machine that kills a few times a day


def report(out: list[str], stamp: str, pid: int) -> None:
    out.append(
        f"{stamp} python3 invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0"
    )
    out.append(f"{stamp} CPU: 3 PID: {pid} Comm: python3 Not tainted 6.8.0-45-generic #45")
    out.append(f"{stamp} Tasks state (memory values in pages):")
    out.append(
        f"{stamp} [  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name"
    )
    out += [
        f"{stamp} [{each:7d}]  1000 {each:5d} {each:8d} {each:8d} {each:8d}        0         0    57344        0             0 worker"
        for each in range(pid - 300, pid)
    ]
    out.append(
        f"{stamp} oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/x,task=python3,pid={pid},uid=1000"
    )
    out.append(
        f"{stamp} Out of memory: Killed process {pid} (python3) total-vm:30290680kB, anon-rss:9234320kB, file-rss:4kB, shmem-rss:0kB, UID:1000 pgtables:59264kB oom_score_adj:0"
    )


def generate(path: Path, megabytes: int) -> int:
    """A log of that size; the number of kills in it."""
    chance = random.Random(1)
    kills = written = number = 0
    with open(path, "w") as file:
        while written < megabytes << 20:
            lines: list[str] = []
            for _ in range(20_000):
                number += 1
                stamp = f"Nov 15 {number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d} node7 kernel: [{number * 0.37:12.6f}]"
                if number % REPORT_EVERY == 0:
                    kills += 1
                    report(lines, stamp, 100_000 + kills)
                else:
                    text = chance.choice(NOISE)
                    lines.append(
                        f"{stamp} {text.format(chance.getrandbits(32), chance.getrandbits(15), chance.getrandbits(4))}"
                    )
            text = "\n".join(lines) + "\n"
            file.write(text)
            written += len(text)
    return kills


def parse(lines: Lines) -> int:
    kernel, guards = KernelParser("x"), GuardParser("x")
    for number, line in lines:
        kernel.feed(number, line)
        guards.feed(number, line)
    found = [*kernel.finish(), *guards.finish()]
    return sum(each.cause.startswith("oom-kill") for each in found)


def timed(what: Callable[[], int], times: int = 3) -> tuple[float, int]:
    best, answer = float("inf"), 0
    for _ in range(times):
        begun = time.perf_counter()
        answer = what()
        best = min(best, time.perf_counter() - begun)
    return best, answer


def as_typed(argument: str, feed: Callable[[IO[bytes]], None] | None = None) -> tuple[float, float, int]:
    """Wall seconds, most memory in MiB, and kills told, of `oomproof why` in a process of its own."""
    begun = time.perf_counter()
    command = [str(Path(sys.executable).with_name("oomproof")), "why", argument, "--json"]
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdin=subprocess.PIPE if feed else None, stdout=out)
        if feed and process.stdin:
            feed(process.stdin)
            process.stdin.close()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begun
        if status:
            raise SystemExit(f"oomproof why {argument} ended with status {status}")
        out.seek(0)
        return wall, usage.ru_maxrss / 1024, len(json.load(out)["kills"])


def piped(gibibytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        block = Path(folder, "block")
        generate(block, 128)

        def feed(pipe: IO[bytes]) -> None:  # a big parent would show in the child's own figure for memory
            for _ in range(gibibytes * 8):
                with open(block, "rb") as file:
                    shutil.copyfileobj(file, pipe, 1 << 20)

        size = gibibytes * 8 * block.stat().st_size / 1e6
        wall, memory, kills = as_typed("-", feed)
        print(
            f"{size:.0f} MB through a pipe: {wall:.1f} s, {size / wall:.0f} MB/s, {memory:.0f} MiB, {kills} kills told"
        )


def training(megabytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "train.log")
        with open(log, "w") as file:
            epoch = 0
            while file.tell() < megabytes << 20:
                epoch += 1
                bars = (
                    f"Epoch {epoch}: {at / 10:3.0f}%|{'█' * (at // 100):10}| {at}/1000 [00:59<01:22, 2.46it/s]"
                    for at in range(1001)
                )
                file.write("\r".join(bars) + "\n")
                for at in range(1000):
                    file.write(
                        f"{{'loss': {1 / (at + 1):.4f}, 'grad_norm': {at / 7:.6f}, 'learning_rate': 1.3e-05, 'epoch': {epoch}.{at:03d}}}\n"
                    )
                    file.write(
                        f"2026-11-15 10:{at % 60:02d}:00,123 - INFO - Epoch [{epoch}][{at}/1000] eta: 1:02:03, memory: 10123, loss: 0.{at:03d}\n"
                    )
                file.write("UserWarning: an error of rounding is possible\n")
            file.write(
                'Traceback (most recent call last):\n  File "train.py", line 8, in main\n    loss.backward()\n'
            )
            file.write("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
        size = os.path.getsize(log) / 1e6
        begun = time.perf_counter()
        as_typed(str(log))
        print(
            f"{size:.0f} MB of a training log: {time.perf_counter() - begun:.1f} s, {os.times().children_user:.1f} s of processor time"
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--megabytes", type=int, default=1024)
    options.add_argument("--piped", type=int, metavar="GIB", help="only this: so much through standard input")
    options.add_argument("--training", type=int, metavar="MIB", help="only this: a training log")
    chosen = options.parse_args()
    if chosen.piped:
        piped(chosen.piped)
        return
    if chosen.training:
        training(chosen.training)
        return
    anchors = (*ANCHORS, *GUARD_ANCHORS)
    with tempfile.TemporaryDirectory() as folder:
        log, strings = Path(folder, "kern.log"), Path(folder, "anchors")
        kills = generate(log, chosen.megabytes)
        strings.write_text("\n".join(anchors) + "\n")
        size = os.path.getsize(log) / 1e6

        def grep() -> int:
            done = subprocess.run(
                ["grep", "-c", "-F", "-f", strings, log],
                env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
                capture_output=True,
            )
            return int(done.stdout)

        rows = [("LC_ALL=C grep -c -F -f", *timed(grep))]
        rows.append(
            (
                "oomproof, reading",
                *timed(lambda: parse(marked_lines(str(log), anchors, REPORT_STARTS, REPORT_END))),
            )
        )
        base = rows[0][1]
        print(f"{size:.0f} MB, {kills} kills in it, best of 3")
        for name, seconds, answer in rows:
            print(
                f"{name:28} {seconds:7.2f} s {size / seconds:8.0f} MB/s {seconds / base:6.2f} x grep   found {answer}"
            )
        wall, memory, told = as_typed(str(log))
        print(
            f"{'oomproof why FILE --json':28} {wall:7.2f} s {size / wall:8.0f} MB/s {wall / base:6.2f} x grep   found {told}"
        )
        print(f"most memory held by it: {memory:.0f} MiB")


if __name__ == "__main__":
    main()
