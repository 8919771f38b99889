"""What each run holds now, and how fast it grows: from the run's own words once a second, else measured by the reader."""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from oomproof.errors import OomproofError
from oomproof.ledger.admission import Claim
from oomproof.ledger.entries import Entry
from oomproof.ledger.live import RUNS, LiveRun, held_by_all, runtime_folder
from oomproof.machine import processes
from oomproof.machine.cgroups import CgroupV1, CgroupV2

STALE = 5.0  # seconds without a word from the run, after which the reader measures
LOOK_AHEAD = 600.0  # seconds of growth that a run without a known need has reserved
FAR = 10.0  # nobody looks further ahead than this many times as far as was looked back
_LOOK_BACK = 60.0
_SHORTEST = 3.0  # seconds of samples before growth means anything
_OUTLOOK = struct.Struct("=qd")  # growth expected in bytes, boottime


def expected_growth(samples: Iterable[tuple[float, int]], shortest: float = _SHORTEST) -> int:
    """Bytes that the growth of these (time, bytes) samples would bring, as far ahead as they carry."""
    points = list(samples)
    if len(points) < 2:
        return 0
    seconds = points[-1][0] - points[0][0]
    if seconds < shortest:
        return 0
    rate = (points[-1][1] - points[0][1]) / seconds
    return max(0, int(rate * min(LOOK_AHEAD, FAR * seconds)))


class LiveClaim(LiveRun):
    """A run's place among the living that also tells how fast the run grows, for those who want to start beside it."""

    def __init__(
        self,
        run_id: str,
        boottime: float,
        folder: Path | None = None,
        protected: bool = False,
        leader: tuple[int, int | None] = (0, None),
    ) -> None:
        super().__init__(run_id, boottime, folder, protected, leader)
        self._samples: deque[tuple[float, int]] = deque()
        outlooks = (folder or runtime_folder()) / "outlook"
        outlooks.mkdir(mode=0o700, exist_ok=True)
        self._outlook_path = outlooks / run_id
        self._outlook = os.open(self._outlook_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def update(self, use: int, boottime: float, rate: float = 0.0, frozen: int = RUNS) -> None:
        super().update(use, boottime, rate, frozen)
        samples = self._samples
        if not samples or boottime - samples[-1][0] >= 0.9:
            samples.append((boottime, use))
            while boottime - samples[0][0] > _LOOK_BACK:
                samples.popleft()
            os.pwrite(self._outlook, _OUTLOOK.pack(expected_growth(samples), boottime), 0)

    def leave(self) -> None:
        super().leave()
        os.close(self._outlook)
        self._outlook_path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Told:
    """What this user's runs say of themselves."""

    held: dict[str, tuple[int, float]]
    folder: Path | None

    def growth(self, run: str, now: float) -> int:
        if self.folder is None:
            return 0
        try:
            with open(self.folder / "outlook" / run, "rb") as file:
                growth, at = _OUTLOOK.unpack(file.read(_OUTLOOK.size))
        except (OSError, struct.error):
            return 0
        return int(growth) if now - at <= STALE else 0


def listen() -> Told:
    try:
        folder = runtime_folder()
    except (OSError, OomproofError):
        return Told({}, None)
    return Told(held_by_all(folder), folder)


def claims_of(
    entries: Iterable[Entry], now: float, told: Told | None = None, proc: str = "/proc"
) -> list[Claim]:
    """The admitted runs as the arithmetic sees them."""
    told = told if told is not None else listen()
    found = []
    for entry in entries:
        held, at = told.held.get(entry.run, (0, float("-inf")))
        if now - at > STALE:  # its guard is gone, just starting, or another user's
            held = measure(entry, proc)
        need = entry.need
        if need is None and entry.cap is not None:
            growth = min(told.growth(entry.run, now), max(0, entry.cap - held))
        else:
            growth = told.growth(entry.run, now)
        found.append(
            Claim(
                entry.run,
                need,
                held,
                growth,
                gpu_need=entry.gpu_need if entry.gpu is not None else 0,
                gpu=entry.gpu,
            )
        )
    return found


def measure(entry: Entry, proc: str = "/proc") -> int:
    """By the reader itself: the cgroup, else the process tree with its shared pages counted once where that may be read."""
    if entry.cgroup and entry.cgroup_version:
        group = (CgroupV2 if entry.cgroup_version == 2 else CgroupV1)(entry.cgroup)
        try:
            memory = group.memory()
        finally:
            group.close()
        if memory is not None:
            return memory.use
    if entry.job_pid is None:
        return 0
    pids = processes.descendants(entry.keeper_pid, proc) if entry.keeper_pid else []
    pids = pids or [entry.job_pid, *processes.descendants(entry.job_pid, proc)]
    total = 0
    for pid in pids:
        one = processes.memory(pid, proc)
        if one is not None:
            share = processes.pss(pid, proc) if len(pids) > 1 and entry.uid == os.getuid() else None
            total += (share[0] if share and share[0] else one.anon + one.shmem) + one.swap
    return total
