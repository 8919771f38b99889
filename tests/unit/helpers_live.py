"""Snapshots for the live view, and a run folder as a run of now has it: locks held, recording being written."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

from oomproof.live.job_chart import JobDetail
from oomproof.live.live_snapshot import CardState, JobState, LiveSnapshot, MachineState
from oomproof.machine import processes
from oomproof.machine.clock import boottime
from oomproof.machine.gpu import Gpus
from oomproof.recording.phase_spans import Span
from oomproof.recording.run_folders import Run
from oomproof.recording.sqlite_files import INSERTS, TABLES
from oomproof.trend.leaks import Range

MIB, GIB = 1 << 20, 1 << 30
WALL = 1_790_000_000.0


def machine(**changes: Any) -> MachineState:
    given: dict[str, Any] = {
        "total": 32 * GIB, "available": 12 * GIB, "margin": 5 * GIB, "floor": 2 * GIB, "swap_total": 4 * GIB,
        "swap_free": 3 * GIB, "runs": 14 * GIB, "reserved": 4 * GIB, "some_avg10": 0.0, "full_avg10": 0.0,
    }  # fmt: skip
    return MachineState(**{**given, **changes})


def jobs() -> tuple[JobState, ...]:
    """One that grows on the card, one that is paused, one that waits, one unmanaged, one of another user."""
    return (
        JobState(
            "r-big", "big", "running", "python train.py --batch 64", pid=812, processes=9, seconds=4000.0, phase="train",
            step=1200, use=12 * GIB, gpu_allocated=9 * GIB, gpu_reserved=11 * GIB, gpu_used=12 * GIB, limit=20 * GIB,
            cap=20 * GIB, limit_by="the kernel (cgroup v2)", rate=4 * MIB / 60 * 10, full_in=Range(2500.0, 3000.0, 3900.0),
            peak=13 * GIB, peak_before=10 * GIB, reserved=4 * GIB, message="warn: memory grows by 40 MiB/min", message_age=130.0,
        ),
        JobState(
            "r-eval", "evaluation", "paused", "python eval.py", pid=900, use=2 * GIB, paused_by="guard",
            paused_until=WALL + 600, reasons=("full in 9 s",),
        ),
        JobState(
            "r-next", "next", "waiting", "python next.py", need=20 * GIB,
            reasons=("needs 20.0 GiB; 12.0 GiB available: short by 13.0 GiB", "in the way: big holds 12.0 GiB"),
        ),
        JobState("77-5", "chromium", "unmanaged", "chromium", mine=False, pid=77, use=3 * GIB, exact=False),
        JobState("r-other", "theirs", "running", uid=4000, mine=False, use=None),
    )  # fmt: skip


def snapshot(**changes: Any) -> LiveSnapshot:
    cards = (CardState(0, "NVIDIA H200", 24 * GIB, 15 * GIB, 12 * GIB, GIB),)
    return LiveSnapshot(**{"wall": WALL, "machine": machine(), "cards": cards, "jobs": jobs(), **changes})


def detail(run_id: str = "r-big") -> JobDetail:
    """Ten minutes: it loads, trains and evaluates, and grows to 12 GiB; the card is half full."""
    host = tuple((1000.0 + n, 4 * GIB + n * GIB // 75) for n in range(0, 600, 5))
    card = tuple((1000.0 + n, 10 * GIB if n > 100 else 0) for n in range(0, 600, 5))
    phases = (
        Span(1000, 1100, "load"),
        Span(1100, 1400, "train"),
        Span(1400, 1420, "eval"),
        Span(1420, 1600, "train"),
    )
    log = ("epoch 1 loss 0.51", "epoch 2 loss 0.48", "saving checkpoint-1200")
    return JobDetail(run_id, 1000.0, 1600.0, host, card, 24 * GIB, phases, log)


class NoCards:
    def read(self) -> Gpus:
        return Gpus()

    def close(self) -> None:
        pass


class LiveFolder:
    """A run of now, without its processes: this one holds its locks."""

    def __init__(self, state: Path, run_id: str = "20260921-221500-abc", **info: Any) -> None:
        self.folder = state / "oomproof" / "runs" / run_id
        self.attempt = self.folder / "1"
        self.attempt.mkdir(parents=True)
        self.now = boottime()
        run = {
            "schema": 1, "id": run_id, "name": "mine", "argv": ["python", "train.py"], "created": WALL,
            "boot_id": processes.boot_id(), "settings": {"limit": 8 * GIB, "protect": True}, **info,
        }  # fmt: skip
        started = {
            "boot_id": processes.boot_id(), "boottime": self.now - 300, "job": {"pid": os.getpid(), "start": None},
            "keeper": {"pid": os.getppid(), "start": None}, "backend": {"name": "cgroup v2", "memory": "/x", "limit": 8 * GIB},
        }  # fmt: skip
        self.write(self.folder / "run.json", run)
        self.write(self.attempt / "started.json", started)
        self.locks = [self.lock("keeper.lock"), self.lock("guard.lock")]
        self.connection = sqlite3.connect(self.attempt / "recording.sqlite", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.executescript(TABLES)
        self.connection.execute("INSERT INTO meta VALUES ('schema', '1')")

    @property
    def run(self) -> Run:
        return Run(self.folder)

    @staticmethod
    def write(path: Path, value: object) -> None:
        path.write_text(json.dumps(value))

    def lock(self, name: str) -> int:
        fd = os.open(self.folder / name, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return fd

    def row(self, table: str, *values: object) -> None:
        self.connection.execute(INSERTS[table], values)

    def samples(self, sizes: list[int], every: float = 1.0) -> None:
        """The newest is of now."""
        begin = self.now - (len(sizes) - 1) * every
        for number, size in enumerate(sizes):
            t = begin + number * every
            self.row("job", t, size, 0, 0, 0, 0, 8 * GIB - size, 3, None, None)
            self.row("host", t, 32 * GIB, 20 * GIB, GIB, 0, 0, 0, 0)

    def close(self) -> None:
        self.connection.close()
        for fd in self.locks:
            os.close(fd)
