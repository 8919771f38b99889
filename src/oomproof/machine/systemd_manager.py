"""systemd: whether it runs this machine or is shutting it down, and what it grants to a user's own manager."""

from __future__ import annotations

import os

from oomproof.leaf.proc_files import read_text
from oomproof.machine import cgroups
from oomproof.records import dataclass

LINGER = "/var/lib/systemd/linger"


def has_systemd(run: str = "/run") -> bool:
    return os.path.isdir(f"{run}/systemd/system") and any(
        os.access(os.path.join(folder, "systemd-run"), os.X_OK) for folder in os.get_exec_path()
    )


def lingers(user: str, linger: str = LINGER) -> bool:
    return os.path.exists(f"{linger}/{user}")


def is_shutting_down(systemctl: str = "systemctl", run: str = "/run", timeout: float = 5.0) -> bool:
    """systemd calls itself "stopping" as soon as a shutdown is queued; anybody may ask."""
    if not os.path.isdir(f"{run}/systemd/system"):
        return False
    import subprocess  # only at the end of a run that was told to end

    try:
        asked = subprocess.run(
            [systemctl, "is-system-running"], capture_output=True, timeout=timeout, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.stdout.strip() == b"stopping"


@dataclass(frozen=True, slots=True)
class Delegation:
    """Which cgroup controllers a user's own manager has: without memory, no limit of that user is enforced. None: it does not run."""

    version: int  # of the hierarchy that has the memory controller: 2, 1, or 0 for none
    controllers: tuple[str, ...] | None = None

    @property
    def has_memory(self) -> bool | None:
        return None if self.controllers is None else "memory" in self.controllers


def delegation(uid: int, proc: str = "/proc", sys: str = "/sys") -> Delegation:
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
