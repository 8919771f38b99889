"""What `oomproof top` costs with 20 runs and 1,000 processes, beside `top` and `htop` on the same machine at the same time.

The aim is 5 % of a core. Each viewer has a terminal of its own, 120 columns and 40 lines, whose output is read and counted.
Also how long `oomproof status` takes, which a prompt waits for: the aim is 0.15 s."""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import shutil
import signal
import struct
import subprocess
import termios
import threading
import time
from statistics import median

from lab import OOMPROOF, Lab, cpu_seconds, end, lab, memory, save, table, until

RUNS, PROCESSES = 20, 1000
GROW = (
    "import time\nheld = []\n"
    "for step in range(10**6):\n"
    "    held.append(bytearray(b'x') * (1 << 18)) if step < 400 else None\n"
    "    print('step', step, flush=True)\n    time.sleep(1)\n"
)


class Viewer:
    """A program on a terminal of its own; what it draws is read away."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self.drawn = 0
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.process = subprocess.Popen(
            command, stdin=follower, stdout=follower, stderr=follower, env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
        )  # fmt: skip
        os.close(follower)
        threading.Thread(target=self._read, args=(leader,), daemon=True).start()

    def _read(self, leader: int) -> None:
        try:
            while data := os.read(leader, 65536):
                self.drawn += len(data)
        except OSError:
            pass


def sleepers(count: int) -> subprocess.Popen[bytes]:
    """So many processes, in a group of their own."""
    script = f"i=0; while [ $i -lt {count} ]; do sleep 100000 & i=$((i+1)); done; wait"
    return subprocess.Popen(["bash", "-c", script], start_new_session=True)


def started(here: Lab) -> list[subprocess.Popen[bytes]]:
    runs = []
    for number in range(RUNS):
        command = ["python3", "-c", GROW] if number < RUNS // 2 else ["sleep", "100000"]
        runs.append(here.start("--name", f"job{number}", "--", *command))
    for number in range(RUNS):
        attempt = here.attempt(f"job{number}")
        until(lambda attempt=attempt: (attempt / "started.json").exists(), "the runs to start", 120.0)
    return runs


def status_seconds(here: Lab) -> list[float]:
    taken = []
    for _ in range(20):
        begin = time.perf_counter()
        subprocess.run([OOMPROOF, "status"], env=here.environment, check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - begin)
    return taken


def measure(seconds: float, result: str) -> None:
    with lab() as here:
        here.start("--", "true").wait()  # compiles bytecode, as an installation does
        crowd, runs = sleepers(PROCESSES), []
        viewers: list[Viewer] = []
        try:
            runs = started(here)
            viewers = [
                Viewer("oomproof top", [OOMPROOF, "top"], here.environment),
                Viewer("oomproof top --every 5", [OOMPROOF, "top", "--every", "5"], here.environment),
                Viewer("top (every 3 s)", ["top"], dict(os.environ)),
            ]
            if shutil.which("htop"):
                viewers.append(Viewer("htop (every 1.5 s)", ["htop"], dict(os.environ)))
            time.sleep(20)  # starts, and first looks at whole recordings
            before = [(cpu_seconds(viewer.process.pid), viewer.drawn) for viewer in viewers]
            time.sleep(seconds)
            figures = {}
            for viewer, (cpu, drawn) in zip(viewers, before, strict=True):
                figures[viewer.name] = {
                    "cpu_percent": 100 * (cpu_seconds(viewer.process.pid) - cpu) / seconds,
                    "rss": memory(viewer.process.pid)["rss"],
                    "bytes_a_second": (viewer.drawn - drawn) / seconds,
                }
            processes = len([name for name in os.listdir("/proc") if name.isdigit()])
            taken = status_seconds(here)
        finally:
            os.killpg(crowd.pid, signal.SIGTERM)
            for process in [*(viewer.process for viewer in viewers), *runs, crowd]:
                end(process)
    rows = [
        [
            name,
            f"{told['cpu_percent']:.2f}",
            f"{told['rss'] / (1 << 20):.0f}",
            f"{told['bytes_a_second']:.0f}",
        ]
        for name, told in figures.items()
    ]
    title = f"{RUNS} runs, {processes} processes, {seconds:.0f} s, load {os.getloadavg()[0]:.1f}"
    table(title, ["", "CPU, % of a core", "RSS MiB", "bytes a second"], rows)
    print(f"\noomproof status: median {median(taken):.3f} s, worst of {len(taken)} {max(taken):.3f} s")
    told = {"median": median(taken), "worst": max(taken)}
    save(
        result,
        {
            "seconds": seconds,
            "runs": RUNS,
            "processes": processes,
            "viewers": figures,
            "status_seconds": told,
        },
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--result", default="top", help="name of the file in bench/results")
    arguments = parser.parse_args()
    measure(arguments.seconds, arguments.result)
