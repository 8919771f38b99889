"""What the card and PyTorch's allocator hold now, in bytes: one cheap reading, and what could be had of it."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

MIB = 1 << 20


class Room(NamedTuple):
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
) -> Room:
    """From torch.cuda.memory_stats_as_nested_dict and torch.cuda.mem_get_info."""

    def now(name: str) -> int:
        try:
            return int(stats[name]["all"]["current"])
        except (KeyError, TypeError, ValueError):
            return 0

    allocated = now("allocated_bytes")
    return Room(
        device,
        int(total),
        int(free),
        allocated,
        max(allocated, now("active_bytes")),
        max(allocated, now("reserved_bytes")),
        now("inactive_split_bytes"),
        int(stats.get("num_alloc_retries") or 0),
        int(stats.get("num_ooms") or 0),
        backend,
        expandable,
        int(total * fraction) if 0 < fraction < 1 else None,
    )


def read(torch: Any, device: int) -> Room | None:
    """None where CUDA is not started in this process (it is never started by us) or does not answer."""
    try:
        if not torch.cuda.is_initialized() or capturing(torch):
            return None
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        free, total = torch.cuda.mem_get_info(device)
        return from_stats(
            device, stats, free, total, backend_of(torch), expandable_segments(), _fraction(torch, device)
        )
    except Exception:  # the driver may be failing just now: no figure is better than a second error
        return None


def capturing(torch: Any) -> bool:
    """While a CUDA graph is captured, a question to the driver may spoil it."""
    ask = getattr(torch.cuda, "is_current_stream_capturing", None)
    return ask is not None and bool(ask())


def devices(torch: Any) -> list[int]:
    """The cards on which this process holds memory."""
    try:
        if not torch.cuda.is_initialized():
            return []
        return [
            index
            for index in range(torch.cuda.device_count())
            if torch.cuda.memory_stats_as_nested_dict(index)["reserved_bytes"]["all"]["current"] > 0
        ]
    except Exception:  # as above
        return []


def backend_of(torch: Any) -> str:
    try:
        return str(torch.cuda.get_allocator_backend())
    except Exception:  # before PyTorch 2.0
        return "native"


def uuid_of(torch: Any, device: int) -> str | None:
    """The card's own id: two processes may give the same card different numbers. PyTorch 2.4 and newer."""
    try:
        return str(torch.cuda.get_device_properties(device).uuid)
    except Exception:  # before PyTorch 2.4
        return None


def settings_text() -> str:
    """The allocator's settings, as the environment gives them (the new name wins, as in PyTorch)."""
    return os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""


def expandable_segments() -> bool:
    return "expandable_segments:true" in settings_text().replace(" ", "").lower()


def _fraction(torch: Any, device: int) -> float:
    """1.0 where none was set, or where this PyTorch cannot be asked (before 2.6): ours is then remembered by us."""
    ours = FRACTIONS.get(device)
    if ours is not None:
        return ours
    try:
        return float(torch._C._cuda_getMemoryFraction(device))
    except Exception:  # before PyTorch 2.6
        return 1.0


FRACTIONS: dict[int, float] = {}  # what gpu_limit has set, by device
