"""/dev/shm: where PyTorch's loader workers hand their batches over."""

from __future__ import annotations

import os

from oomproof.records import dataclass


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Bytes of the file system, not of RAM: its pages are taken when they are written."""

    total: int
    free: int


def read(path: str = "/dev/shm") -> SharedMemory | None:
    """None where there is no such folder (macOS)."""
    try:
        facts = os.statvfs(path)
    except OSError:
        return None
    return SharedMemory(facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize)
