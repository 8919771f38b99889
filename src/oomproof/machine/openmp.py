"""OpenMP runtimes in a process's maps. Two different ones in one process are a known reason for crashes."""

from __future__ import annotations

import re

# libgomp-a34b3233.so.1.0.0 is how wheels carry their own copy
_RUNTIME = re.compile(rb"/(?:[^/\n]*/)*lib(gomp|iomp5|omp)(?:-[0-9a-f]+)?\.so[.0-9]*(?=\n| \(deleted\)|\Z)")
_MOST = 32 << 20  # a process with a million mappings is not read to its end


def runtimes(pid: int, proc: str = "/proc") -> dict[str, str]:
    """Runtime (gomp, iomp5, omp) → one file it was loaded from. Empty for a process that has gone or is not ours."""
    try:
        with open(f"{proc}/{pid}/maps", "rb") as file:
            maps = file.read(_MOST)
    except OSError:
        return {}
    by_name: dict[str, str] = {}
    for match in _RUNTIME.finditer(maps):
        by_name.setdefault(match[1].decode(), match[0].decode("utf-8", "replace"))
    return by_name
