"""One look at the whole machine: reads every source once and hands the facts to those who decide."""

from __future__ import annotations

import os
import platform
import sys as system
from collections.abc import Mapping

from oomproof.ledger.budget import Budget
from oomproof.ledger.current_budget import budget_from
from oomproof.machine import (
    cgroup_limits,
    daemons,
    gpu,
    host_environment,
    jobs,
    memory,
    nvidia,
    overcommit,
    pressure,
    shm,
    swap,
    twins,
    unowned_memory,
)
from oomproof.records import dataclass, replace

# Long enough for a driver that has to wake its cards, short enough for a person at a prompt.
_GPU_DEADLINE = 3.0


@dataclass(frozen=True, slots=True)
class Facts:
    memory: memory.Memory
    swaps: tuple[swap.Swap, ...]
    unowned: unowned_memory.Unowned
    pressure: pressure.Pressure | None
    overcommit: overcommit.Overcommit | None
    limits: cgroup_limits.Limits
    shm: shm.SharedMemory | None
    place: host_environment.HostEnvironment
    gpus: gpu.Gpus
    daemons: tuple[daemons.Daemon, ...]
    jobs: tuple[jobs.Job, ...]
    twins: tuple[twins.Twins, ...]


def gather(proc: str = "/proc", sys: str = "/sys", dev: str = "/dev", root: str = "/") -> Facts:
    """Everything, now. The GPU helper works while the rest is read."""
    if system.platform == "darwin":
        return _gather_macos()
    query = gpu.Query() if nvidia.driver_present(proc, dev) else None
    now = memory.read(proc)
    processes = _without_us(jobs.scan(proc))
    heaviest = jobs.heaviest(processes, anon_total=now.anon, shmem_total=now.shmem, proc=proc)
    facts = Facts(
        memory=now,
        swaps=swap.read(proc, sys),
        unowned=unowned_memory.read(proc, sys),
        pressure=pressure.read(proc),
        overcommit=overcommit.read(proc),
        limits=cgroup_limits.read("self", proc, sys),
        shm=shm.read(f"{dev}/shm"),
        place=host_environment.read(proc, root),
        gpus=gpu.Gpus(),
        daemons=daemons.among(processes.values()),
        jobs=heaviest,
        twins=twins.among(heaviest, proc),
    )
    cards = query.answer(_GPU_DEADLINE) if query else gpu.Gpus()
    amd = gpu.read_amd(sys, first_index=len(cards.gpus))
    return replace(facts, gpus=gpu.Gpus(cards.gpus + amd, cards.problem))


def _gather_macos() -> Facts:
    from oomproof.machine import macos

    now, swaps, pool = macos.read()
    processes = _without_us(macos.scan())
    heaviest = jobs.heaviest(processes, anon_total=now.anon)
    return Facts(
        memory=now,
        swaps=swaps,
        unowned=pool,
        pressure=None,
        overcommit=None,
        limits=cgroup_limits.Limits(),
        shm=None,
        place=host_environment.HostEnvironment(container=False, wsl=False, root_filesystem="apfs"),
        gpus=macos.gpus(platform.machine()),
        daemons=(),
        jobs=heaviest,
        twins=(),
    )


def _without_us(processes: Mapping[int, jobs.Process]) -> dict[int, jobs.Process]:
    """Neither this look nor its GPU helper is a job."""
    us = os.getpid()
    return {pid: process for pid, process in processes.items() if us not in (pid, process.parent)}


def budget_of(facts: Facts, margin: int | None = None, reserved: int = 0) -> Budget:
    """The budget these facts leave."""
    return budget_from(facts.memory, facts.swaps, facts.limits, margin, reserved)
