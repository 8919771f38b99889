"""Whether a job can spill, how much, and how large its batches are: what needs no memory and no card to be told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import cuda_memory
from .pinned_memory import MIB

TRIED = (2, 11)  # PyTorch: the first whose pools were tried with this


def refusal(torch: Any, environment: Any) -> str:
    """Why this job cannot spill, with the way out; empty: it can."""
    if not hasattr(torch._C, "_cuda_getDeviceCount") or getattr(torch.version, "hip", None):
        return "this PyTorch is built without CUDA; install one with it, or leave --spill out"
    version = cuda_memory.version_of(torch)
    if (
        not hasattr(torch._C, "_cuda_customAllocator")
        or not _can_use_on_oom(torch)
        or _number(version) < TRIED
    ):
        return f"PyTorch {version} cannot do it; 2.11 or newer can"
    if cuda_memory.backend_of(torch) != "native":
        return (
            f"the allocator is {cuda_memory.backend_of(torch)}; it needs PyTorch's own: take backend:cudaMallocAsync out of "
            "PYTORCH_ALLOC_CONF"
        )
    ranks = environment.get("WORLD_SIZE", "")
    if ranks.isdigit() and int(ranks) > 1:
        return f"this job has {ranks} ranks, and it was never tried with NCCL; it is for jobs of one process"
    return ""


def _can_use_on_oom(torch: Any) -> bool:
    import inspect

    try:
        return "use_on_oom" in inspect.signature(torch.cuda.MemPool.__init__).parameters
    except (AttributeError, TypeError, ValueError):
        return False


def _number(version: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    except ValueError:  # "2.12.0a0" has its number in the second part too; what is stranger is no release
        return (0,)


def largest_beside(limit_share: float, total: int) -> int:
    """Bytes of spill beside a limit of this share of the card: PyTorch counts both, and knows no share above one."""
    return total if limit_share >= 1.0 else int(total * (1.0 - limit_share)) - MIB


def samples_in(batch: Any, depth: int = 3) -> int | None:
    """The first dimension of the first tensor in it."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    if not depth or not isinstance(parts, (list, tuple)):
        return None
    within = (samples_in(part, depth - 1) for part in parts)
    return next((samples for samples in within if samples is not None), None)
