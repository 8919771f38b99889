"""What each run holds now, and how fast it grows: from the run's own words once a second, else measured by the reader."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

from oomproof.errors import OomproofError
from oomproof.ledger.admission import Claim
from oomproof.ledger.forecast import RECORD
from oomproof.ledger.ledger_entries import Entry
from oomproof.ledger.live_runs import held_by_all
from oomproof.machine import processes
from oomproof.machine.cgroups import CgroupV1, CgroupV2
from oomproof.recording.runtime_folder import runtime_folder
from oomproof.recording.state_files import read_json
from oomproof.records import dataclass

STALE = 5.0  # seconds without a word from the run, after which the reader measures


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """What this user's runs say of themselves."""

    held: dict[str, tuple[int, float]]
    folder: Path | None

    def growth(self, run: str, now: float) -> int:
        if self.folder is None:
            return 0
        try:
            with open(f"{self.folder}/forecast/{run}", "rb") as file:
                growth, at = RECORD.unpack(file.read(RECORD.size))
        except (OSError, struct.error):
            return 0
        return int(growth) if now - at <= STALE else 0


def listen() -> LiveFigures:
    try:
        folder = runtime_folder()
    except (OSError, OomproofError):
        return LiveFigures({}, None)
    return LiveFigures(held_by_all(folder), folder)


def claims_of(
    entries: Iterable[Entry], now: float, told: LiveFigures | None = None, proc: str = "/proc"
) -> list[Claim]:
    """The admitted runs as the arithmetic sees them."""
    told = told if told is not None else listen()
    claims = []
    for entry in entries:
        held, at = told.held.get(entry.run, (0, float("-inf")))
        if now - at > STALE:  # its guard is gone, just starting, or another user's
            held = measure(entry, proc)
        need, growth, parked = entry.need, 0, _parked(entry)
        if (need is None or held >= need) and not parked:
            growth = told.growth(entry.run, now)
            if entry.cap is not None:
                growth = min(growth, max(0, entry.cap - held))
        claims.append(
            Claim(
                entry.run,
                need,
                held,
                growth,
                gpu_need=entry.gpu_need if entry.gpu is not None else 0,
                gpu=entry.gpu,
                parked=parked,
            )
        )
    return claims


def _parked(entry: Entry) -> int:
    """What its cards held before they were given back: it lies in the run's host memory now."""
    attempt = entry.attempt
    cards = read_json(attempt.gpu_paused_file).get("cards") if attempt else None
    return sum(size for size in cards.values() if isinstance(size, int)) if isinstance(cards, dict) else 0


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
        process = processes.memory(pid, proc)
        if process is not None:
            share = processes.pss(pid, proc) if len(pids) > 1 and entry.uid == os.getuid() else None
            total += (share[0] if share and share[0] else process.anon + process.shmem) + process.swap
    return total
