"""How much a file system holds and has left."""

from __future__ import annotations

import os

from oomproof.records import dataclass


@dataclass(frozen=True, slots=True)
class DiskSpace:
    total: int
    free: int  # for everybody but root's reserve


def read(path: str = "/") -> DiskSpace | None:
    try:
        facts = os.statvfs(path)
    except OSError:
        return None
    return DiskSpace(facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize)
