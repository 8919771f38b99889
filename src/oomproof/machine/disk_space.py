"""How much a file system holds and has free: a disk, or /dev/shm, where PyTorch's loader workers hand over their batches."""

from __future__ import annotations

import os

from oomproof.records import dataclass


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Bytes. Pages of /dev/shm take RAM only once they are written."""

    total: int
    free: int  # for everybody but root's reserve


def read(path: str = "/") -> DiskSpace | None:
    """None if there is no such folder (macOS has no /dev/shm)."""
    try:
        facts = os.statvfs(path)
    except OSError:
        return None
    return DiskSpace(facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize)
