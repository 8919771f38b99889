"""Real runs of oomproof on real processes, each test with a state folder of its own."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

JOBS = Path(__file__).parent / "jobs"
DEADLINE = 120.0  # against a hang only: machines are slow and busy


def until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> Any:
    """The condition's first true value; fails the test with ``what`` when it never comes."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    pytest.fail(f"waited {seconds:.0f} s for: {what}")


def remove(folder: Path) -> None:
    """The folder is gone from its path at once, although somebody may be writing files into it."""
    aside = folder.with_name(f"{folder.name}-removed")
    folder.rename(aside)

    def is_gone() -> bool:
        shutil.rmtree(aside, ignore_errors=True)
        return not aside.exists()

    until(is_gone, f"{folder} to be removed")


@dataclass
class Running:
    """One `oomproof run` in the background."""

    process: subprocess.Popen[str]
    lab: Lab
    name: str

    @property
    def folder(self) -> Path:
        return until(lambda: self.lab.folder_of(self.name), f"run {self.name} to appear")

    @property
    def attempt(self) -> Path:
        return self.folder / "1"

    def started(self) -> dict[str, Any]:
        return until(lambda: self.lab.read(self.attempt / "started.json"), f"{self.name} to start")

    @property
    def job_pid(self) -> int:
        return int(self.started()["job"]["pid"])

    def entered(self) -> None:
        """Waits until its guard has told the other runs of it."""
        live = Path(self.lab.environment["XDG_RUNTIME_DIR"]) / "oomproof" / "live"
        until(
            lambda: any(path.stat().st_size for path in live.glob(f"*-{self.folder.name}")),
            f"the guard of {self.name} to have looked once",
        )

    def output_has(self, text: str) -> None:
        log = self.attempt / "output.log"
        until(
            lambda: log.exists() and text in log.read_text(errors="replace"),
            f"{text!r} in the output of {self.name}",
        )

    def wait(self, seconds: float = DEADLINE) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"run {self.name} did not end")

    def verdict(self) -> dict[str, Any]:
        return self.lab.verdict(self.name)


@dataclass
class Lab:
    state: Path
    environment: dict[str, str]
    prefix: list[str] = field(default_factory=list)
    started: list[Running] = field(default_factory=list)

    def command(self, *words: str) -> list[str]:
        return [*self.prefix, sys.executable, "-m", "oomproof.cli.main", *map(str, words)]

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Any verb, to its end."""
        options.setdefault("timeout", DEADLINE)
        return subprocess.run(
            self.command(*words), env=self.environment, capture_output=True, text=True, **options
        )

    def start(self, name: str, *words: str, **options: Any) -> Running:
        """`oomproof run --name NAME …` in the background."""
        process = subprocess.Popen(
            self.command("run", "--name", name, *words),
            env=self.environment,
            stdin=subprocess.PIPE if options.pop("stdin_pipe", False) else subprocess.DEVNULL,
            stdout=options.pop("stdout", subprocess.DEVNULL),
            stderr=options.pop("stderr", subprocess.DEVNULL),
            text=True,
            **options,
        )
        running = Running(process, self, name)
        self.started.append(running)
        return running

    def kernel_kill(self, name: str, *words: str, job: list[str], go: Path) -> int:
        """A kill by the kernel and nobody else: the guard is stopped while the job takes too much."""
        running = self.start(name, *words, "--", *job)
        running.output_has("waiting")
        running.process.send_signal(signal.SIGSTOP)
        go.touch()
        until(lambda: self.read(running.attempt / "exit.json"), "the kernel to kill it")
        running.process.send_signal(signal.SIGCONT)
        return running.wait()

    @staticmethod
    def read(path: Path) -> dict[str, Any]:
        try:
            return dict(json.loads(path.read_text()))
        except (OSError, ValueError):
            return {}

    def folder_of(self, name: str) -> Path | None:
        for path in sorted((self.state / "oomproof" / "runs").glob("*/run.json"), reverse=True):
            if self.read(path).get("name") == name:
                return path.parent
        return None

    def verdict(self, name: str) -> dict[str, Any]:
        folder = until(lambda: self.folder_of(name), f"run {name}")
        return until(lambda: self.read(folder / "1" / "verdict.json"), f"the verdict of {name}")

    def job(self, name: str, *words: str) -> list[str]:
        return [sys.executable, str(JOBS / name), *map(str, words)]

    def close(self) -> None:
        """Ends what a failed test left running, by the pids of its own runs."""
        for running in self.started:
            if running.process.poll() is None:
                running.process.send_signal(signal.SIGTERM)
        for running in self.started:
            folder = self.folder_of(running.name)
            started = self.read(folder / "1" / "started.json") if folder else {}
            for who in ("job", "keeper"):
                pid, start = (started.get(who) or {}).get("pid"), (started.get(who) or {}).get("start")
                if pid and alive(pid, start):
                    os.kill(pid, signal.SIGKILL)
            if running.process.poll() is None:
                running.process.kill()
            running.process.wait(DEADLINE)


def alive(pid: int, start: int | None = None) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and (start is None or int(fields[19]) == start)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    state, runtime = tmp_path / "state", tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OOMPROOF_")},
        "XDG_STATE_HOME": str(state),
        "XDG_RUNTIME_DIR": str(runtime),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "PYTHONUNBUFFERED": "1",
    }
    made = Lab(state, environment)
    yield made
    made.close()


if (
    signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):  # started by a shell's `&`: those we start must hear Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
_NUMBERS = itertools.count()  # a cgroup that one test could not remove must not be the next one's


@dataclass
class Cgroup:
    """A memory cgroup of the test's own: the small machine in which the runs must get along."""

    directory: Path

    @property
    def prefix(self) -> list[str]:
        """Words before a command that put it inside."""
        script = f'echo $$ > {self.directory}/cgroup.procs && exec "$@"'
        return ["sh", "-c", script, "sh"]

    def smaller(self, limit: int) -> Cgroup:
        """One inside it, of the version-1 controller, which allows processes beside it; skips elsewhere."""
        inner = Cgroup(self.directory / "inner")
        if not (self.directory / "memory.limit_in_bytes").exists():
            pytest.skip("a cgroup of version 2 with processes can have none below it with a limit")
        inner.directory.mkdir()
        (inner.directory / "memory.limit_in_bytes").write_text(str(limit))
        return inner


SmallMachine = Callable[[int], Cgroup]


@pytest.fixture
def small_machine(request: pytest.FixtureRequest) -> Iterator[Callable[[int], Cgroup]]:
    """Makes cgroups with a limit; skips, with the reason, where none can be made."""
    made: list[Path] = []
    lab: Lab | None = request.getfixturevalue("lab") if "lab" in request.fixturenames else None

    def make(limit: int) -> Cgroup:
        from oomproof.machine import cgroups

        own_v1, own_v2 = cgroups.own_directory("memory"), cgroups.own_directory("")
        for own, file in ((own_v1, "memory.limit_in_bytes"), (own_v2, "memory.max")):
            if own is None:
                continue
            directory = Path(own) / f"test-{os.getpid()}-{next(_NUMBERS)}"
            try:
                directory.mkdir()
                (directory / file).write_text(str(limit))
            except OSError:
                if directory.exists():
                    directory.rmdir()
                continue
            made.append(directory)
            return Cgroup(directory)
        pytest.skip("no memory cgroup can be made here (needs root and the memory controller)")

    yield make
    if lab is not None:  # a job that a failed test left waiting would keep its cgroup for ever
        lab.close()
    for directory in made:
        until(lambda d=directory: not (d / "cgroup.procs").read_text().strip(), "the test's cgroup to empty")
        remove_tree(directory)


def remove_tree(directory: Path) -> None:
    for child in [path for path in directory.iterdir() if path.is_dir()]:
        remove_tree(child)
    until(lambda: _rmdir(directory), f"{directory} to be removed")


def _rmdir(directory: Path) -> bool:
    try:
        directory.rmdir()
    except OSError:
        return False
    return True


@pytest.fixture
def kernel_limit(lab: Lab) -> None:
    """Skips, with the reason, where oomproof can only watch: then there is no kernel kill to prove."""
    from oomproof.machine import cgroups
    from oomproof.runner import limit_backends

    for make in (limit_backends.make_v2, limit_backends.make_v1):
        backend, _ = make(f"probe-{os.getpid()}", 64 << 20)
        if backend is not None:
            for directory in backend.remove:
                os.rmdir(directory)
            return
    pytest.skip(f"no memory cgroup can be made here (own: {cgroups.own_paths()})")


GROW = """
import sys, time
held, rate, total = [], float(sys.argv[1]), int(sys.argv[2])
begun = time.monotonic()
while len(held) < total:
    held.append(bytearray(b"x" * (1 << 20)))
    time.sleep(max(0.0, begun + len(held) / rate - time.monotonic()))
sys.stdin.read()
"""


@pytest.fixture
def unmanaged() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a process that oomproof knows nothing of, inside the small machine; it grows and then stays."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        machine: Cgroup, script: Path, rate: float, total: int, prefix: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        script.write_text(GROW)
        words = [*machine.prefix, *prefix, sys.executable, str(script), str(rate), str(total)]
        started.append(subprocess.Popen(words, stdin=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
        process.kill()
        process.wait()


def paused_files(lab: Lab) -> list[Path]:
    return list(Path(lab.environment["XDG_RUNTIME_DIR"], "oomproof", "paused").glob("[0-9]*"))
