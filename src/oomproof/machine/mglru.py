"""The multi-generational LRU (Linux 6.1 on): whether it is used, and the working set it defends."""

from __future__ import annotations

from oomproof.leaf.proc_files import read_text
from oomproof.machine.kernel_settings import number
from oomproof.records import dataclass


@dataclass(frozen=True, slots=True)
class Mglru:
    enabled: bool
    min_ttl_ms: int | None  # pages used within this time are not evicted: the OOM killer acts instead. 0: off


def read(sys: str = "/sys") -> Mglru | None:
    """None: the kernel has none."""
    enabled = read_text(f"{sys}/kernel/mm/lru_gen/enabled").strip()  # 0x0007: a bit for each part of it
    if not enabled:
        return None
    return Mglru(enabled.lower() not in ("0", "0x0000", "n"), number(f"{sys}/kernel/mm/lru_gen/min_ttl_ms"))
