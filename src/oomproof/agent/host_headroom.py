"""What the host can still give this process: beside the machine's margin, and inside every memory limit over it. Bytes."""

from __future__ import annotations

import os

from ..leaf.proc_files import kib_field, read_bytes

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
