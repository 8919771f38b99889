"""How long readers take: a recording at its cap, one with ten thousand phases, a history of 3,000 runs.

Aims: 2 s and 100 MB for `runs show` and `why --html`, 1 s for `runs --all` and for ten thousand phases."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab import GIB, MIB, Lab, lab, save, table

from oomproof.diagnosis.conclusion import conclude
from oomproof.recording.run_folders import Run
from oomproof.recording.sqlite_files import INSERTS, TABLES

BOOT, WALL = "a-boot-that-is-gone", 1_700_000_000.0
Row = tuple[Any, ...]


def fill(path: Path, samples: int, phases: int, hertz: float) -> int:
    """A recording of that many looks: host, job, three processes in two, two cards in four; how many rows it has."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous=OFF")
    connection.executescript(TABLES)
    meta = {"schema": "1", "boot_id": BOOT, "wall_offset": str(WALL - 1000.0)}
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO meta VALUES (?,?)", meta.items())
    seconds = samples / hertz

    def use(t: float) -> int:
        """Growth, a sawtooth over it, one peak."""
        return int((4 + 8 * t / seconds + math.sin(t / 30)) * GIB) + (
            5 * GIB if int(t) == int(seconds / 3) else 0
        )

    def times() -> Iterator[float]:
        return (1000.0 + n / hertz for n in range(samples))

    def hosts() -> Iterator[Row]:
        return (
            (t, 64 * GIB, 50 * GIB - use(t - 1000), GIB, 8 * GIB, 8 * GIB, int(t), int(t)) for t in times()
        )

    def jobs() -> Iterator[Row]:
        return ((t, use(t - 1000), 64 * MIB, GIB, 0, MIB, None, 4, GIB, GIB) for t in times())

    def processes() -> Iterator[Row]:
        for n, t in enumerate(times()):
            if n % 2 == 0:
                for pid, role in ((100, "main"), (101, "worker"), (102, "worker")):
                    yield t, pid, 5, role, "python", use(t - 1000) // 3, MIB, MIB, 0, None

    def cards() -> Iterator[Row]:
        for n, t in enumerate(times()):
            if n % 4 == 0:
                for index in (0, 1):
                    yield t, index, 20 * GIB, 24 * GIB, (10 + n % 7) * GIB

    def marks() -> Iterator[Row]:
        for n in range(phases):
            yield 1000.0 + n * seconds / phases, ("train", "eval")[n % 2], n, 100, None, None

    for name, rows in (("host", hosts()), ("job", jobs()), ("process", processes()), ("gpu", cards())):
        connection.executemany(INSERTS[name], rows)
    connection.executemany(INSERTS["phase"], marks())
    events = ((1000.0 + n * seconds / 2000, "agent:note", f"event {n}", None) for n in range(2000))
    connection.executemany(INSERTS["event"], events)
    connection.execute("COMMIT")
    connection.execute("PRAGMA journal_mode=WAL")
    count = sum(int(connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]) for name in INSERTS)
    connection.close()
    return count


def run_folder(here: Lab, run: str, created: float) -> Path:
    folder = here.folder / "state/oomproof/runs" / run
    attempt = folder / "1"
    attempt.mkdir(parents=True, mode=0o700)
    files: dict[Path, Any] = {
        folder / "run.json": {
            "schema": 1, "id": run, "name": None, "argv": ["python", "train.py", "--lr", "1e-3"], "cwd": "/tmp",
            "env": {"PATH": "/usr/bin"}, "created": created, "boot_id": BOOT, "version": "0.1.0",
            "settings": {"limit": None, "margin": GIB, "floor": GIB, "grace": 30.0, "agent": True},
            "claim": None, "code": {"script": None, "script_sha256": None},
        },
        attempt / "started.json": {
            "boot_id": BOOT, "boottime": 1000.0, "wall": created, "keeper": {"pid": 2, "start": 1},
            "job": {"pid": 3, "start": 1}, "backend": {"name": "cgroup-v2", "limit": None},
            "counters": {"vmstat_oom_kill": 0},
        },
        attempt / "exit.json": {
            "boottime": 1e9, "wall": created + 600, "status": 0, "code": 0, "signal": None,
            "counters": {"vmstat_oom_kill": 0},
        },
    }  # fmt: skip
    for path, value in files.items():
        path.write_text(json.dumps(value, indent=1))
    for name in ("keeper.lock", "guard.lock"):
        (folder / name).touch()
    (attempt / "actions.jsonl").touch()
    (attempt / "output.log").write_text("done\n")
    return attempt


def judge(here: Lab, attempts: list[Path]) -> None:
    """As `run` does at each end."""
    os.environ.update({name: value for name, value in here.environment.items() if name.startswith("XDG_")})
    for attempt in attempts:
        conclude(Run(attempt.parent))


def measured(here: Lab, *words: str) -> tuple[float, float, int]:
    """Seconds, seconds of CPU and the highest memory of one call."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "oomproof.cli.main", *words],
        env=here.environment,
        stdout=subprocess.DEVNULL,
        cwd=here.folder,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return time.perf_counter() - begun, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_250_000, help="looks in the recording at its cap")
    parser.add_argument("--runs", type=int, default=3000)
    arguments = parser.parse_args()
    rows, results = [], {}

    def look(name: str, aim: str, *words: str) -> None:
        seconds, cpu, memory = measured(here, *words)
        results[name] = {"seconds": seconds, "cpu_seconds": cpu, "peak_bytes": memory, "aim": aim}
        rows.append([name, f"{seconds:.2f}", f"{cpu:.2f}", f"{memory / 1e6:.0f}", aim])
        print(*rows[-1], flush=True)

    with lab() as here:
        attempt = run_folder(here, "20231115-000000-cap", WALL)
        count = fill(attempt / "recording.sqlite", arguments.samples, 2000, 10.0)
        size = (attempt / "recording.sqlite").stat().st_size
        attempt = run_folder(here, "20231114-000000-pha", WALL - 86400)
        fill(attempt / "recording.sqlite", 20_000, 10_000, 1.0)
        measured(here, "why", "--short", "pha")  # compiles bytecode
        look("`runs show`, not judged", "2 s, 100 MB", "runs", "show", "cap")
        look("`why`, judged anew", "", "why", "cap")
        look("`runs show`", "2 s, 100 MB", "runs", "show", "cap")
        look("`why --html`", "2 s, 100 MB", "why", "--html", "a.html", "cap")
        look("`runs show`, 10,000 phases", "1 s", "runs", "show", "pha")
        look("`runs compare`", "", "runs", "compare", "pha", "cap")
        look("`runs export`", "", "runs", "export", "cap", "--csv")
    with lab() as here:
        attempts = []
        for number in range(arguments.runs):
            attempts.append(
                run_folder(here, f"20231115-{number // 100:06d}-{number % 100:03d}", WALL + number)
            )
            if number == 0:
                fill(attempts[0] / "recording.sqlite", 60, 3, 1.0)
            else:
                shutil.copyfile(attempts[0] / "recording.sqlite", attempts[-1] / "recording.sqlite")
        judge(here, attempts)
        measured(here, "runs", "show")  # compiles bytecode
        look(f"`runs --all`, {arguments.runs} runs", "1 s", "runs", "--all")
        for attempt in attempts:  # as an earlier version left them
            (attempt / "summary.json").unlink(missing_ok=True)
        for name in ("without their summaries", "again"):
            look(f"`runs --all`, {arguments.runs} runs, {name}", "", "runs", "--all")
        look("`runs`", "", "runs")
        look("`runs --json`", "", "runs", "--json")
    title = (
        f"Readers: a recording of {count:,} rows, {size / MIB:.0f} MiB; {arguments.runs:,} runs "
        f"(load {os.getloadavg()[0]:.1f})"
    )
    table(title, ["", "seconds", "of CPU", "peak MB", "aim"], rows)
    save("readers", {"rows": count, "bytes": size, "runs": arguments.runs, "readers": results})


if __name__ == "__main__":
    main()
