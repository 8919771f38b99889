"""A day of the machine's guard in compressed time: does its memory grow, and how often does it speak?

The guard is the real one (MachineGuard: view, growth, policy, pauses, what is told; live runs and leases in real files). The
machine is simulated: a clock, RAM and disk swap, and jobs by seed that come, grow, end and are paused. Services restart and grow
for a moment, swap breathes, runs of oomproof come and go and are paused by their own guards. Nothing real is stopped.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lab import GIB, MIB, save, table

from oomproof.alerts.alert import Alert
from oomproof.alerts.alert_sender import AlertLimiter
from oomproof.guard import machine_guard, unmanaged_guard, unmanaged_pause
from oomproof.guard.best_effort import BestEffort
from oomproof.guard.machine_guard import MachineGuard
from oomproof.guard.unmanaged_growth import Culprit, UnmanagedGrowth
from oomproof.guard.unmanaged_guard import Choice, UnmanagedGuard
from oomproof.guard.unmanaged_pause import UnmanagedPauses
from oomproof.guard.view import JobKey, Settings, UnmanagedView
from oomproof.leaf.proc_files import read_text
from oomproof.ledger.live_runs import BY_GUARD, RUNS, LiveRun
from oomproof.machine import job_ties
from oomproof.machine.jobs import Job

START = 1000.0
RAM, SWAP, BASE = 32 * GIB, 8 * GIB, 5 * GIB
# a pause lasts two minutes at most instead of an hour: more of them in a day
SETTINGS = Settings(margin=5 * GIB, floor=RAM * 4 // 100, grace=30.0, unmanaged_pause_max=120.0)
_FIRST_PID = 50_000_000  # no process of this machine has such a number
_TICKS = os.sysconf("SC_CLK_TCK")
_LONGEST_STEP = 2.0
_TIED = "it listens on a TCP port"


@dataclass
class SimulatedJob:
    key: JobKey
    name: str
    wants: int
    rate: float  # bytes per second
    stays: float  # seconds at its full size
    service: bool = False
    held: float = 0.0
    swap: float = 0.0
    paused: bool = False
    restarts_at: float = float("inf")


@dataclass
class SimulatedMachine:
    """Also the guard's HostView."""

    seed: int
    t: float = START
    jobs: dict[JobKey, SimulatedJob] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    noise: float = 0.0
    swap_noise: float = 0.0
    mem_total = ram = RAM
    swap_total = SWAP
    limit_folder = None
    psi = (0, 0)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._next_pid = _FIRST_PID
        self._next_job = self.t + 60.0
        self._runs: dict[LiveRun, tuple[float, int]] = {}
        self._next_runs = self.t
        for number in range(4):
            self._add(f"service{number}", 400 * MIB, 200.0 * MIB, float("inf"), service=True)

    # --- what the guard asks -----------------------------------------------------------------------------------

    def headroom(self) -> tuple[int, int]:
        return int(max(0.0, self.available)), int(max(0.0, self.swap_free))

    def stall(self, t: float) -> float:
        """Now and then, where RAM is short and swap is in use."""
        return 0.2 if self.available < SETTINGS.floor and int(t) % 20 < 3 else 0.0

    @property
    def available(self) -> float:
        return RAM - BASE - self.noise - sum(job.held - job.swap for job in self.jobs.values())

    @property
    def swap_free(self) -> float:
        return SWAP - self.swap_noise - sum(job.swap for job in self.jobs.values())

    def processes(self) -> list[Job]:
        """As machine.jobs.heaviest gives them."""
        found = [
            Job(*job.key, os.getuid(), ("python", job.name), (job.key[0],), int(job.held - job.swap), 0, int(job.swap), False)
            for job in self.jobs.values()
        ]  # fmt: skip
        return sorted(found, key=lambda job: -job.use)

    def tie(self, job: Job) -> str:
        known = self.jobs.get((job.pid, job.start))
        return _TIED if known is None or known.service else ""

    # --- time --------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        self.t += seconds
        self._breathe(seconds)
        for job in list(self.jobs.values()):
            self._live(job, seconds)
        while self.available < 0:
            self._reclaim()
        if self.t >= self._next_job:
            self._next_job = self.t + self._random.expovariate(1 / 600.0)
            size = self._random.choice((1, 2, 4, 8, 12, 16)) * GIB
            rate = self._random.choice((20, 100, 300, 1000)) * MIB
            self._add(f"load{self.counts['jobs']}.py", size, rate, self._random.uniform(5, 900))
        if self.t >= self._next_runs:
            self._next_runs = self.t + 5.0
            self._move_runs()

    def _breathe(self, seconds: float) -> None:
        step = self._random.gauss(0, 30 * MIB) * min(1.0, seconds)
        self.noise = min(max(0.0, self.noise + step), 1.5 * GIB)
        step = self._random.gauss(0, 20 * MIB) * min(1.0, seconds)
        self.swap_noise = min(max(0.0, self.swap_noise + step), 2 * GIB)

    def _live(self, job: SimulatedJob, seconds: float) -> None:
        if job.service and self.t >= job.restarts_at:
            job.held, job.restarts_at = 50.0 * MIB, self.t + self._random.uniform(300, 2400)
            self.counts["restarts"] += 1
        if job.paused:
            if self.available < SETTINGS.margin:  # what is not used goes to disk
                moved = min(100 * MIB * seconds, job.held - job.swap, max(0.0, self.swap_free))
                job.swap += max(0.0, moved)
            return
        job.held = min(job.wants, job.held + job.rate * seconds)
        job.swap = max(0.0, job.swap - 200 * MIB * seconds)
        if job.held >= job.wants:
            job.stays -= seconds
        if job.stays <= 0:
            del self.jobs[job.key]
            self.counts["finished"] += 1

    def _reclaim(self) -> None:
        """No RAM is left: to swap, else the kernel kills the largest."""
        largest = max((job for job in self.jobs.values()), key=lambda job: job.held - job.swap)
        moved = min(-self.available + MIB, largest.held - largest.swap, self.swap_free)
        if moved > 1:
            largest.swap += moved
            return
        del self.jobs[largest.key]
        self.counts["killed by the kernel"] += 1

    def _add(self, name: str, size: int, rate: float, stays: float, service: bool = False) -> None:
        self._next_pid += 1
        job = SimulatedJob((self._next_pid, int(self.t * _TICKS)), name, size, rate, stays, service)
        if service:
            job.restarts_at = self.t + self._random.uniform(300, 2400)
        self.jobs[job.key] = job
        self.counts["jobs"] += 1

    def _move_runs(self) -> None:
        """Runs of oomproof, in real files: half a dozen, each for some minutes, one in three paused by its guard now and then."""
        for run, (ends, held) in list(self._runs.items()):
            if self.t >= ends:
                run.leave()
                del self._runs[run]
                continue
            paused = self.available < SETTINGS.margin and self._random.random() < 0.3
            run.update(held, self.t, 0.0, BY_GUARD if paused else RUNS)
        if len(self._runs) < 6 and self._random.random() < 0.02:
            self.counts["runs"] += 1
            run = LiveRun(f"run{self.counts['runs']}", self.t)
            self._runs[run] = (self.t + self._random.uniform(60, 1800), self._random.randrange(4) * GIB)

    def close(self) -> None:
        for run in self._runs:
            run.leave()


class SimulatedPauses(UnmanagedPauses):
    """The real bookkeeping and files; who is paused is simulated."""

    machine: SimulatedMachine

    def prepare(self) -> None:
        pass

    def is_ready(self) -> bool:
        return True

    def pause(self, culprit: Culprit, seconds: float) -> str:
        job = self.machine.jobs.get(culprit.key)
        if job is None:
            return "it has ended"
        job.paused = True
        file = unmanaged_pause.paused_jobs.file_of(*culprit.key, self._folder)
        self._pauses[culprit.key] = unmanaged_pause._Pause(
            culprit, [culprit.key], [], self.machine.t + seconds, file
        )
        return ""

    def _view(self, key: JobKey, pause: Any) -> UnmanagedView:
        job = self.machine.jobs.get(key)
        by = "guard" if job is not None and job.paused else ""
        swap = int(job.swap) if job is not None else 0
        return UnmanagedView(key, pause.culprit.name, pause.culprit.held, swap=swap, paused=by)

    def _wake(self, key: JobKey, pause: Any) -> None:
        if (job := self.machine.jobs.get(key)) is not None:
            job.paused = False
        pause.file.unlink(missing_ok=True)


@dataclass
class Hour:
    """What was so at the end of it, and said in it."""

    hour: float
    traced_kib: float  # by tracemalloc, in the package's own files
    rss_mib: float
    steps: int
    lines: int
    alerts: int
    messages: int
    remembered: int  # jobs in the guard's memory


@dataclass
class Soak:
    hours: list[Hour]
    counts: dict[str, int]
    kinds: dict[str, int]
    threads: int
    descriptors: tuple[int, int]
    seconds: float

    @property
    def growth_kib(self) -> float:
        """Of the traced memory, from the second quarter to the last: a guard that forgets nothing grows all the time."""
        traced = [hour.traced_kib for hour in self.hours]
        part = max(1, len(traced) // 4)
        return min(traced[-part:]) - max(traced[part : 2 * part] or traced[:part])

    @property
    def most_lines(self) -> int:
        return max(hour.lines for hour in self.hours)


def soak(hours: float, seed: int = 1, parts: float = 1.0, most_seconds: float = 3600.0) -> Soak:
    """``parts``: hours between two rows. ``most_seconds``: of this machine's; what was seen until then is the result."""
    kinds, lines, alerts, messages = Counter[str](), Counter[int](), Counter[int](), Counter[int]()
    limiter = AlertLimiter()
    begun = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oomproof-soak-")))
        stack.enter_context(
            patch.dict(os.environ, {"XDG_RUNTIME_DIR": str(folder), "XDG_STATE_HOME": str(folder)})
        )
        machine = SimulatedMachine(seed)
        SimulatedPauses.machine = machine
        for module in (machine_guard, unmanaged_guard, unmanaged_pause):
            stack.enter_context(patch.object(module, "boottime", lambda: machine.t))
        stack.enter_context(patch.object(unmanaged_pause, "UnmanagedPauses", SimulatedPauses))
        stack.enter_context(patch.object(job_ties, "tie_of", lambda job, ours, leaders: machine.tie(job)))
        stack.enter_context(patch.object(UnmanagedGrowth, "_others", lambda self, *_: machine.processes()))
        # in the order of the simulated clock, not of this machine's threads
        stack.enter_context(patch.object(UnmanagedGrowth, "look", UnmanagedGrowth._look))
        stack.enter_context(
            patch.object(
                UnmanagedGuard,
                "tell_later",
                lambda self, kind, text, key, why="": self._tell_now(kind, text, key, why),
            )
        )

        def part() -> int:
            return int((machine.t - START) / 3600 / parts)

        def tell(kind: str, text: str, key: JobKey) -> None:
            kinds[kind] += 1
            lines[part()] += 1
            if kind == "warn" or kind.endswith("-unmanaged"):  # as the verb does
                alerts[part()] += 1
                alert = {"kind": kind, "job": Alert(kind, "this machine", text).job}
                messages[part()] += limiter.take(alert, machine.t) is not None

        folder_of_runs = unmanaged_guard.runtime_folder()
        best_effort = BestEffort(lambda text: kinds.update([f"trouble: {text}"]))
        guard = MachineGuard(machine, SETTINGS, Choice(), tell, best_effort, lambda: folder_of_runs)  # type: ignore[arg-type]
        rows: list[Hour] = []
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        fds = len(os.listdir("/proc/self/fd"))
        steps, next_row = 0, START + 3600 * parts
        while machine.t < START + hours * 3600 and time.monotonic() - begun < most_seconds:
            seconds = guard.step(machine.t)
            messages[part()] += len(limiter.due(machine.t))
            machine.advance(min(_LONGEST_STEP, seconds))
            steps += 1
            if machine.t >= next_row:
                at = len(rows)
                rows.append(
                    Hour(
                        (at + 1) * parts,
                        _traced(),
                        _rss(),
                        steps,
                        lines[at],
                        alerts[at],
                        messages[at],
                        len(guard._unmanaged.state),
                    )
                )
                steps, next_row = 0, next_row + 3600 * parts
                print(rows[-1], f"{time.process_time():.0f} s CPU", file=sys.stderr)
        guard.close()
        machine.close()
        left = len(os.listdir("/proc/self/fd"))
        below = folder_of_runs / "paused"
        kept = os.listdir(below) if below.exists() else []
        machine.counts["pause files left"] = len(kept)
    return Soak(
        rows,
        dict(machine.counts),
        dict(kinds),
        threading.active_count(),
        (fds, left),
        time.monotonic() - begun,
    )


def _traced() -> float:
    gc.collect()
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/oomproof/*")])
    return sum(statistic.size for statistic in snapshot.statistics("filename")) / 1024


def _rss() -> float:
    line = next(line for line in read_text("/proc/self/status").splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-seconds", type=float, default=3600.0, help="of this machine's time")
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    result = soak(arguments.hours, arguments.seed, most_seconds=arguments.most_seconds)
    header = ["hour", "own KiB", "RSS MiB", "steps", "lines", "alerts", "messages", "jobs remembered"]
    table(
        f"{len(result.hours)} hours of the machine's guard, in {result.seconds:.0f} s", header,
        [[f"{hour.hour:g}", f"{hour.traced_kib:.0f}", f"{hour.rss_mib:.1f}", str(hour.steps), str(hour.lines), str(hour.alerts),
          str(hour.messages), str(hour.remembered)] for hour in result.hours],
    )  # fmt: skip
    print(
        f"growth of its own memory: {result.growth_kib:+.0f} KiB; most lines in an hour: {result.most_lines}"
    )
    print(f"{result.counts}\n{result.kinds}\nthreads {result.threads}, descriptors {result.descriptors}")
    if not arguments.no_save:
        rows = [{name: round(value, 2) for name, value in vars(hour).items()} for hour in result.hours]
        save(
            "soak",
            {
                "seed": arguments.seed, "hours": rows, "simulated": result.counts, "told": result.kinds,
                "growth_kib": round(result.growth_kib, 1), "descriptors": result.descriptors,
            },
        )  # fmt: skip


if __name__ == "__main__":
    main()
