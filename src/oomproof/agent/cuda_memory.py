"""What the card and PyTorch's allocator hold now, in bytes: one cheap reading, and what could be had of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from ..leaf.allocator_memory import NEW_NAME, OLD_NAME, CudaMemory, asks_expandable, from_stats, settings_name


def read(torch: Any, device: int) -> CudaMemory | None:
    """None where CUDA is not started in this process (it is never started by us) or does not answer."""
    try:
        if not torch.cuda.is_initialized() or capturing(torch):
            return None
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        free, total = torch.cuda.mem_get_info(device)
        pool = SPILLS.get(device)
        return from_stats(
            device,
            stats,
            free,
            total,
            backend_of(torch),
            expandable_segments(torch),
            fraction_of_process(torch, device),
            *((pool.size, pool.live()) if pool is not None else ()),
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


def settings_text(torch: Any) -> str:
    """The allocator's settings, as this PyTorch takes them from the environment: where it reads both names, the new one wins."""
    old = os.environ.get(OLD_NAME) or ""
    return (os.environ.get(NEW_NAME) or old) if settings_name(version_of(torch)) == NEW_NAME else old


def expandable_segments(torch: Any) -> bool:
    return asks_expandable(settings_text(torch))


def ignored_setting(torch: Any, applied: dict[str, Any] | None) -> str:
    """`PYTORCH_ALLOC_CONF=expandable_segments:True` where the user set it and it is off. ``applied``: the snapshot's
    allocator_settings, which know; without them the version tells."""
    for name in (NEW_NAME, OLD_NAME):
        asked = os.environ.get(name) or ""
        if asks_expandable(asked):
            on = (applied or {}).get("expandable_segments")
            if on is False or (on is None and not expandable_segments(torch)):
                return f"{name}=expandable_segments:True"
    return ""


def version_of(torch: Any) -> str:
    return str(getattr(torch, "__version__", ""))


def fraction_of_process(torch: Any, device: int) -> float:
    """1.0 where none was set, or where this PyTorch cannot be asked (before 2.6): ours is then remembered by us."""
    ours = FRACTIONS.get(device)
    if ours is not None:
        return ours
    try:
        return float(torch._C._cuda_getMemoryFraction(device))
    except Exception:  # before PyTorch 2.6
        return 1.0


class Pool(NamedTuple):
    """Host memory that the allocator counts as the card's: ``live()`` bytes of its ``size`` are in use."""

    size: int
    live: Callable[[], int]


FRACTIONS: dict[int, float] = {}  # what gpu_limit has set, by device
SPILLS: dict[int, Pool] = {}  # of --spill, by device


def spill_size(device: int) -> int:
    pool = SPILLS.get(device)
    return pool.size if pool is not None else 0
