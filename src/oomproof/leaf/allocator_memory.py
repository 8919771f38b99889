"""What a card and PyTorch's allocator hold, and what can still be had of it: the allocator's rules as arithmetic, in bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

NEW_NAME, OLD_NAME = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
# Before this version the new name is read for other devices only: on CUDA it is ignored without a word.
_RENAMED = (2, 11)


def settings_name(version: str) -> str:
    """The variable from which that PyTorch's CUDA allocator takes its settings; the old name, which all read, if unknown."""
    try:
        major, minor = (int(part) for part in version.split("+")[0].split(".")[:2])
    except ValueError:
        return OLD_NAME
    return NEW_NAME if (major, minor) >= _RENAMED else OLD_NAME


def off_text(setting: str, version: str) -> str:
    """What is said of `NAME=VALUE` that the user set without effect."""
    read = settings_name(version)
    why = "" if setting.startswith(read + "=") else f": PyTorch {version} reads {read} for CUDA"
    return f"you set {setting}, and it is off{why}"


def asks_expandable(settings: str) -> bool:
    return "expandable_segments:true" in settings.replace(" ", "").lower()


class CudaMemory(NamedTuple):
    """One device as this process sees it. ``reserved`` is the allocator's own, ``allocated`` what tensors use of it."""

    device: int
    total: int
    free: int
    allocated: int
    active: int  # allocated, and freed blocks that another stream may still read
    reserved: int
    splits: int  # free pieces of segments that are partly in use: they cannot be given back
    retries: int  # times the driver refused and the allocator gave its free segments back first
    ooms: int
    backend: str  # native, or cudaMallocAsync
    expandable: bool = False
    allowed: int | None = None  # what set_per_process_memory_fraction leaves, if it was set
    peak: int = 0  # allocated at most, since the start or since the script set it back
    spill: int = 0  # host memory pinned by --spill, which is in none of the figures above
    spilled: int = 0  # of it, what tensors use

    @property
    def unused(self) -> int:
        return max(0, self.reserved - self.allocated)

    @property
    def returnable(self) -> int:
        """What the allocator gives back by itself before it raises: wholly free segments."""
        if self.expandable or self.backend != "native":
            return max(0, self.reserved - self.active)  # pages are unmapped one by one
        return max(0, self.reserved - self.active - self.splits)

    @property
    def outside(self) -> int:
        """Used on the card, but not by this allocator: other processes, and this one's context and libraries."""
        return max(0, self.total - self.free - self.reserved)

    @property
    def within_reach(self) -> int:
        """What this process can still get in large pieces."""
        free = self.free
        if self.allowed is not None:
            free = min(free, max(0, self.allowed - self.reserved))
        return free + self.returnable


def from_stats(
    device: int,
    stats: dict[str, Any],
    free: int,
    total: int,
    backend: str,
    expandable: bool,
    fraction: float = 1.0,
    spill: int = 0,
    spilled: int = 0,
) -> CudaMemory:
    """From torch.cuda.memory_stats_as_nested_dict and torch.cuda.mem_get_info. The allocator counts a pool in host memory as
    the card's: ``spill`` bytes reserved, ``spilled`` allocated, the rest a split piece once a part is in use."""

    def now(name: str, what: str = "current") -> int:
        try:
            return int(stats[name]["all"][what])
        except (KeyError, TypeError, ValueError):
            return 0

    allocated = max(0, now("allocated_bytes") - spilled)
    peak = max(allocated, now("allocated_bytes", "peak"))
    if spill:  # more than it ever reserved on the card was never on it
        peak = min(peak, max(allocated, now("reserved_bytes", "peak") - spill))
    return CudaMemory(
        device,
        int(total),
        int(free),
        allocated,
        max(allocated, now("active_bytes") - spilled),
        max(allocated, now("reserved_bytes") - spill),
        max(0, now("inactive_split_bytes") - (spill - spilled if spilled else 0)),
        int(stats.get("num_alloc_retries") or 0),
        int(stats.get("num_ooms") or 0),
        backend,
        expandable,
        int(total * fraction) - spill if 0 < fraction < 1 else None,
        peak,
        spill,
        spilled,
    )
