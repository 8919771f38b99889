"""How many processes the kernel's OOM killer took, as its counters say: the machine's, and each cgroup's."""

from __future__ import annotations

import os
from collections.abc import Iterator

from oomproof.machine import cgroups
from oomproof.records import dataclass

_MOST = 20_000  # folders; a machine with more is a container farm, and a look must end


@dataclass(frozen=True, slots=True)
class CgroupKills:
    path: str  # below the mount
    kills: int
    version: int


def machine_kills(proc: str = "/proc") -> int | None:
    """Since boot, everybody's; None where the kernel does not count (before 4.13)."""
    try:
        with open(f"{proc}/vmstat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    return cgroups.stat_field(text, b"oom_kill") if b"\noom_kill " in text else None


def cgroup_kills(proc: str = "/proc") -> tuple[CgroupKills, ...]:
    """Cgroups that still exist and have lost a process to the OOM killer, most kills first."""
    counted = []
    mounts = cgroups.mounts(proc)
    for controller, version in (("memory", 1), ("", 2)):
        point = mounts.get(controller, ("", ""))[0]
        for directory in _folders(point) if point else ():
            kills = kills_in(directory, version)
            if kills:
                counted.append(CgroupKills(directory[len(point) :] or "/", kills, version))
    return tuple(sorted(counted, key=lambda kill: -kill.kills))


def _folders(point: str) -> Iterator[str]:
    for count, (path, _, _) in enumerate(os.walk(point)):
        if count >= _MOST:
            return
        yield path


def kills_in(directory: str, version: int) -> int:
    # v2 counts kills in every cgroup above as well, except in the file of local events (5.2 on);
    # v1 counts them where they happen
    names = ("memory.oom_control",) if version == 1 else ("memory.events.local", "memory.events")
    for name in names:
        try:
            with open(os.path.join(directory, name), "rb") as file:
                return cgroups.stat_field(file.read(4096), b"oom_kill")
        except OSError:
            continue
    return 0
