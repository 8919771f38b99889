"""Whether a job can spill, how much, and how large its batches are: what needs no memory and no card to be told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..leaf.proc_files import kib_field, read_bytes
from . import cuda_memory
from .spill_pool import MIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_UNLIMITED = 1 << 60
# the limit, what is used of it, and of that the page cache that nobody used lately, which the kernel drops first
_V2 = ("memory.max", "memory.current", b"inactive_file ")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", b"total_inactive_file ")


_LIMIT_SHARE = 10  # a tenth of a limit stays free too, where the margin is more


def host_headroom(margin: int, proc: str = "/proc", sys: str = "/sys") -> int | None:
    """None where nothing can be read."""
    available = kib_field(read_bytes(f"{proc}/meminfo") or b"", b"MemAvailable:")
    left = [available - margin] if available else []
    left += [_left(folder, names, margin) for folder, names in _limits(proc, sys)]
    return min(left, default=None)


def _limits(proc: str, sys: str) -> Iterator[tuple[str, tuple[str, str, bytes]]]:
    """This process's cgroup and all above it. In a container the path may be one that only the host has: then the root counts."""
    for line in (read_bytes(f"{proc}/self/cgroup") or b"").decode("utf-8", "replace").splitlines():
        number, kinds, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not kinds:
            top, names = f"{sys}/fs/cgroup", _V2
        elif "memory" in kinds.split(","):
            top, names = f"{sys}/fs/cgroup/memory", _V1
        else:
            continue
        parts = path.strip("/").split("/") if path.strip("/") else []
        for count in range(len(parts), -1, -1):
            folder = os.path.join(top, *parts[:count])
            if os.path.exists(f"{folder}/{names[0]}"):
                yield folder, names


def _left(folder: str, names: tuple[str, str, bytes], margin: int) -> int:
    limit, used = (read_bytes(f"{folder}/{name}") or b"" for name in names[:2])
    if not limit.strip().isdigit() or not used.strip().isdigit() or int(limit) >= _UNLIMITED:
        return _UNLIMITED
    stat = read_bytes(f"{folder}/memory.stat") or b""
    at = stat.find(b"\n" + names[2])
    dropped = int(stat[at + 1 + len(names[2]) :].split(b"\n", 1)[0]) if at >= 0 else 0
    return int(limit) - min(margin, int(limit) // _LIMIT_SHARE) - max(0, int(used) - dropped)


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
