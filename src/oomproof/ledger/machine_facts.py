"""One look at the whole machine: reads every source once and hands the facts to those who decide."""

from __future__ import annotations

import os
import platform
import sys as system
from collections.abc import Mapping, Sequence
from typing import Literal

from oomproof.ledger.budget import Budget, budget_from
from oomproof.machine import (
    cgroup_limits,
    cgroups,
    daemons,
    disk_space,
    gpu,
    host_identity,
    jobs,
    kernel_settings,
    memory,
    pressure,
    swap,
    twins,
)
from oomproof.machine.jobs import Job
from oomproof.machine.memory import Memory, Unowned
from oomproof.records import dataclass, replace

Kind = Literal["job", "processes", "kernel", "reclaimable", "free", "rest"]


@dataclass(frozen=True, slots=True)
class Row:
    """``job`` is set in the rows that stand for one."""

    name: str
    size: int
    kind: Kind
    job: Job | None = None


def rows(memory: Memory, unowned: Unowned, jobs: Sequence[Job]) -> tuple[Row, ...]:
    """One row per job given, then all the rest of RAM. Their sizes sum to ``memory.total`` exactly."""
    all_rows = [Row(" ".join(job.command), job.use, "job", job) for job in jobs]
    parts: list[tuple[str, int, Kind]] = [
        ("other processes", memory.anon - sum(job.anon for job in jobs), "processes"),
        ("shared memory and tmpfs files", memory.shmem - sum(job.shmem for job in jobs), "processes"),
        ("zram pool (compressed pages)", unowned.zram, "kernel"),
        ("zswap pool (compressed pages)", unowned.zswap, "kernel"),
        ("huge pages set aside", unowned.huge_pages, "kernel"),
        ("taken back by the hypervisor (balloon)", unowned.balloon, "kernel"),
        ("kernel objects (slab)", memory.slab_unreclaimable, "kernel"),
        (
            "page tables and kernel stacks",
            memory.page_tables + memory.kernel_stack + unowned.per_cpu,
            "kernel",
        ),
        ("file cache, given back on demand", memory.file_cache + memory.slab_reclaimable, "reclaimable"),
        ("free", memory.free, "free"),
    ]
    # The figures are read one after the other: a job may have grown since the kernel's sum was taken.
    all_rows += [Row(name, max(0, size), kind) for name, size, kind in parts]
    rest = memory.total - sum(row.size for row in all_rows)
    name = (
        "unaccounted (kernel, drivers, firmware)" if rest >= 0 else "counted twice (memory moved meanwhile)"
    )
    return (*all_rows, Row(name, rest, "rest"))


# Long enough for a driver that has to wake its cards, short enough for a person at a prompt.
_GPU_DEADLINE = 3.0


@dataclass(frozen=True, slots=True)
class Facts:
    here: memory.Memory  # inside the limit that is the machine here; the machine's own where there is none
    memory: memory.Memory
    swaps: tuple[swap.Swap, ...]
    unowned: Unowned
    pressure: pressure.Pressure | None
    overcommit: kernel_settings.Overcommit | None
    limits: cgroup_limits.Limits
    shm: disk_space.DiskSpace | None
    place: host_identity.HostEnvironment
    gpus: gpu.Gpus
    daemons: tuple[daemons.Daemon, ...]
    jobs: tuple[jobs.Job, ...]  # inside that limit
    twins: tuple[twins.Twins, ...]

    @property
    def limited(self) -> bool:
        """Whether a limit over this shell, a container's or another, is the machine here."""
        return self.here.total < self.memory.total

    @property
    def unowned_here(self) -> Unowned:
        """What no process owns is the machine's, not a container's."""
        return Unowned(0, 0, 0, 0, 0) if self.limited else self.unowned


def gather(proc: str = "/proc", sys: str = "/sys", dev: str = "/dev", root: str = "/") -> Facts:
    """Everything, now. The GPU helper works while the rest is read."""
    if system.platform == "darwin":
        return _gather_macos()
    query = gpu.start_query(proc, dev)
    now = memory.read(proc)
    limits = cgroup_limits.read("self", proc, sys)
    limit = limits.machine(now.total)
    here = _inside(limit, now) if limit is not None else now
    everybody = _without_us(jobs.scan(proc))
    processes = _without_us(jobs.scan(proc, limit.path)) if limit is not None else everybody
    heaviest = jobs.heaviest(processes, anon_total=here.anon, shmem_total=here.shmem, proc=proc)
    facts = Facts(
        memory=now,
        swaps=swap.read(proc, sys),
        unowned=memory.read_unowned(proc, sys),
        pressure=pressure.read(proc),
        overcommit=kernel_settings.read_overcommit(proc),
        limits=limits,
        shm=disk_space.read(f"{dev}/shm"),
        place=host_identity.read(proc, root),
        gpus=gpu.Gpus(),
        daemons=daemons.among((process.name, process.pid) for process in everybody.values()),
        jobs=heaviest,
        here=here,
        twins=twins.among(heaviest, proc),
    )
    return replace(facts, gpus=gpu.read(_GPU_DEADLINE, query, sys))


def _inside(limit: cgroup_limits.Level, machine: memory.Memory) -> memory.Memory:
    """A cgroup whose limit is the machine here, in the machine's own terms."""
    held = cgroups.memory_of(limit.path)
    if held is None:
        return machine
    free = max(0, limit.limit - held.anon - held.shmem - held.file - held.kernel)
    return memory.Memory(
        total=limit.limit, free=free, available=min(machine.available, limit.left),
        swap_total=machine.swap_total, swap_free=machine.swap_free, anon=held.anon, shmem=held.shmem,
        file_cache=held.file, slab_reclaimable=0, slab_unreclaimable=held.kernel, page_tables=0, kernel_stack=0,
    )  # fmt: skip


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
        place=host_identity.HostEnvironment(container=False, wsl=False, root_filesystem="apfs"),
        gpus=macos.gpus(platform.machine()),
        daemons=(),
        jobs=heaviest,
        here=now,
        twins=(),
    )


def _without_us(processes: Mapping[int, jobs.Process]) -> dict[int, jobs.Process]:
    """Neither this look nor its GPU helper is a job."""
    us = os.getpid()
    return {pid: process for pid, process in processes.items() if us not in (pid, process.parent)}


def budget_of(facts: Facts, margin: int | None = None, reserved: int = 0) -> Budget:
    """The budget these facts leave."""
    return budget_from(facts.memory, facts.swaps, facts.limits, margin, reserved)
