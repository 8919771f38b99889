"""The budget of this moment with as few reads as possible: an admission decides by it, a waiting run asks every second."""

from __future__ import annotations

import sys as system
from collections.abc import Sequence

from oomproof.ledger.budget import Budget, budget
from oomproof.machine import cgroup_limits, memory, swap


def read(margin: int | None = None, proc: str = "/proc", sys: str = "/sys") -> Budget:
    """Nothing reserved yet: who decides adds that."""
    if system.platform == "darwin":
        from oomproof.machine import macos

        now, areas, _ = macos.read()
        return budget_from(now, areas, cgroup_limits.Limits(), margin)
    return budget_from(memory.read(proc), swap.read(proc, sys), cgroup_limits.read("self", proc, sys), margin)


def budget_from(
    now: memory.Memory,
    swaps: Sequence[swap.Swap],
    over_us: cgroup_limits.Limits,
    margin: int | None = None,
    reserved: int = 0,
) -> Budget:
    """The budget these facts leave."""
    swap_total, swap_free = swap.disk(swaps)
    tightest, fullest = over_us.tightest, over_us.fullest
    return budget(
        ram_total=now.total,
        ram_available=now.available,
        swap_total=swap_total,
        swap_free=swap_free,
        zram_total=sum(area.total for area in swaps if area.zram),
        limit=tightest.limit if tightest else None,
        limit_left=fullest.left if fullest else None,
        swap_limit=over_us.swap_limit,
        swap_limit_left=over_us.swap_left,
        limited_by=fullest.path if fullest else None,
        margin=margin,
        reserved=reserved,
    )
