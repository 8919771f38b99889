"""What the benchmarks share: a state folder of their own, a small cgroup, exact CPU time, tables, results on disk."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oomproof.machine import cgroups

HERE = Path(__file__).parent
RESULTS = HERE / "results"
OOMPROOF = str(Path(sys.executable).parent / "oomproof")
MIB, GIB = 1 << 20, 1 << 30
LARGEST_CGROUP = 6 * GIB  # never fill the machine itself


@dataclass
class Lab:
    """A folder that is gone afterwards; runs of oomproof in it do not mix with the user's."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        dropped = ("OOMPROOF_", "PYTHONDONTWRITEBYTECODE")  # an installed oomproof has its bytecode
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        return {
            **kept,
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_RUNTIME_DIR": str(self.folder / "runtime"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode"),
        }

    def compile(self, source: str) -> str:
        target = self.folder / source.removesuffix(".c")
        if not target.exists():
            command = ["gcc", "-O2", "-Wall", "-Wextra", "-pthread", "-o", str(target), str(HERE / source)]
            subprocess.run(command, check=True)
        return str(target)

    def start(self, *words: str, prefix: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*prefix, OOMPROOF, "run", *words],
            cwd=self.folder,  # no settings of ours there, as in most projects
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def attempt(self, name: str) -> Path:
        """The folder of the run with that name; waits for it."""

        def find() -> Path | None:
            for path in (self.folder / "state/oomproof/runs").glob("*/run.json"):
                if read_json(path).get("name") == name:
                    return path.parent / "1"
            return None

        found = until(find, f"run {name}")
        assert isinstance(found, Path)
        return found


@contextmanager
def lab() -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="oomproof-bench-") as name:
        folder = Path(name)
        for part in ("state", "runtime", "config"):
            (folder / part).mkdir(mode=0o700)
        yield Lab(folder)


def until(condition: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.01)
    raise TimeoutError(f"waited {seconds:.0f} s for {what}")


def read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


@contextmanager
def small_machine(limit: int, name: str = "bench") -> Iterator[Path | None]:
    """A memory cgroup that plays the machine; None, with the reason printed, where none can be made."""
    assert limit <= LARGEST_CGROUP
    directory: Path | None = None
    for own, file in (
        (cgroups.own_directory("memory"), "memory.limit_in_bytes"),
        (cgroups.own_directory(""), "memory.max"),
    ):
        if own is None:
            continue
        made = Path(own) / f"{name}-{os.getpid()}"
        try:
            made.mkdir()
            (made / file).write_text(str(limit))
        except OSError:
            if made.exists():
                made.rmdir()
            continue
        directory = made
        break
    if directory is None:
        print("skipped: no memory cgroup can be made here (needs root and the memory controller)")
    try:
        yield directory
    finally:
        if directory is not None:
            until(lambda: not (directory / "cgroup.procs").read_text().strip(), "the cgroup to empty")
            for child in [path for path in directory.iterdir() if path.is_dir()]:
                child.rmdir()
            directory.rmdir()


def inside(directory: Path) -> list[str]:
    """Words before a command that put it into the cgroup."""
    return ["sh", "-c", f'echo $$ > {directory}/cgroup.procs && exec "$@"', "sh"]


def kernel_kills(directory: Path) -> int:
    """Of the cgroup and of those below it."""
    found = 0
    for name in ("memory.oom_control", "memory.events"):
        for path in [directory / name, *directory.glob(f"*/{name}")]:
            try:
                fields = dict(line.split() for line in path.read_text().splitlines())
            except (OSError, ValueError):
                continue
            found += int(fields.get("oom_kill", 0))
    return found


def cpu_seconds(pid: int) -> float:
    """The process's CPU clock: nanoseconds, all threads, also those that ended; clock ticks are too coarse."""
    return time.clock_gettime(((~pid) << 3) | 2)


def wake_ups(pid: int) -> int:
    """How often its threads have waited so far, those that live: what a process at rest costs."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    lines = [line for task in tasks for line in (task / "status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def memory(pid: int) -> dict[str, int]:
    """RSS, its anonymous part, PSS, locked, in bytes."""
    wanted = {"VmRSS": "rss", "RssAnon": "anon", "VmLck": "locked", "Pss": "pss"}
    found = dict.fromkeys(wanted.values(), 0)
    for file in ("status", "smaps_rollup"):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in wanted:
                found[wanted[name]] = int(rest.split()[0]) * 1024
    return found


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def end(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    """Only what we started, by its own handle."""
    if process.poll() is None:
        process.send_signal(number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Markdown, so that it can stand in docs/benchmarks.md as printed."""
    print(f"\n{title}\n\n| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    sys.stdout.flush()


def save(name: str, result: dict[str, Any]) -> None:
    with open("/proc/meminfo") as file:
        total = int(file.readline().split()[1]) * 1024
    machine = {
        "cores": os.cpu_count(),
        "ram_bytes": total,
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "load": [round(value, 2) for value in os.getloadavg()],
    }
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"schema": 1, "machine": machine, **result}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n")
