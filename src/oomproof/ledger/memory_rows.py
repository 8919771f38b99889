"""Where the RAM is: rows that add up to MemTotal, with a row of its own for what no process owns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from oomproof.machine.jobs import Job
from oomproof.machine.memory import Memory, Unowned
from oomproof.records import dataclass

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
