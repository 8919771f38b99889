"""Which cgroup controllers a user's own systemd manager was given: without memory, no limit of that user is enforced."""

from __future__ import annotations

from oomproof.leaf.proc_files import read_text
from oomproof.machine import cgroups
from oomproof.records import dataclass


@dataclass(frozen=True, slots=True)
class Delegation:
    """``controllers`` is None where the user's manager does not run now."""

    version: int  # of the hierarchy that has the memory controller: 2, 1, or 0 for none
    controllers: tuple[str, ...] | None = None

    @property
    def has_memory(self) -> bool | None:
        return None if self.controllers is None else "memory" in self.controllers


def read(uid: int, proc: str = "/proc", sys: str = "/sys") -> Delegation:
    mounts = cgroups.mounts(proc)
    if "memory" in mounts:
        return Delegation(1)
    if "" not in mounts:
        return Delegation(0)
    point = mounts[""][0]
    point = sys + point.removeprefix("/sys") if point.startswith("/sys/") else point
    manager = f"{point}/user.slice/user-{uid}.slice/user@{uid}.service"
    listed = read_text(f"{manager}/cgroup.controllers").split()
    alive = read_text(f"{manager}/cgroup.events")
    return Delegation(2, tuple(listed) if listed or alive else None)
