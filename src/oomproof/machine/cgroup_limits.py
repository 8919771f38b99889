"""Memory limits over a process: every cgroup from its own up to the root that can be seen, v1 and v2."""

from __future__ import annotations

from collections.abc import Iterator

from oomproof.machine import cgroups, memory
from oomproof.records import dataclass

# cgroup v1 writes "no limit" as the largest page-aligned long; nobody sets an exbibyte on purpose.
_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class Level:
    """One cgroup that limits memory or swap. ``used`` memory is without the file cache, which the kernel drops first;
    used swap is what that very cgroup has swapped out."""

    path: str
    file: str  # memory.max, memory.high, memory.limit_in_bytes, ...
    limit: int
    used: int

    @property
    def left(self) -> int:
        return max(0, self.limit - self.used)


@dataclass(frozen=True, slots=True)
class Limits:
    """All limits that apply, nearest first; a limit higher up may leave less than a smaller one below it."""

    levels: tuple[Level, ...] = ()
    swap_levels: tuple[Level, ...] = ()

    @property
    def swap_limit(self) -> int | None:
        return min((level.limit for level in self.swap_levels), default=None)

    @property
    def swap_left(self) -> int | None:
        return min((level.left for level in self.swap_levels), default=None)

    @property
    def tightest(self) -> Level | None:
        return min(self.levels, key=lambda level: level.limit, default=None)

    def machine(self, ram: int) -> Level | None:
        """The limit that is the machine for whoever is inside: of those below its RAM, the one that leaves least."""
        below = (level for level in self.levels if level.limit < ram)
        return min(below, key=lambda level: level.left, default=None)

    @property
    def fullest(self) -> Level | None:
        return min(self.levels, key=lambda level: level.left, default=None)


def read(pid: int | str = "self", proc: str = "/proc", sys: str = "/sys") -> Limits:
    """The limits over ``pid``; empty where there are none or the process has gone."""
    levels: list[Level] = []
    swap: list[Level] = []
    for folder, version in _folders(pid, proc, sys):
        (_read_v2 if version == 2 else _read_v1)(folder, levels, swap)
    return Limits(tuple(levels), tuple(swap))


def machine_here(proc: str = "/proc", sys: str = "/sys") -> Level | None:
    """The limit that is the machine for us: a container's, a slice's, a batch system's; None where there is none."""
    try:
        return read("self", proc, sys).machine(memory.read(proc).total)
    except OSError:  # nothing of that kind on this system
        return None


def _read_v2(folder: str, levels: list[Level], swap: list[Level]) -> None:
    current = _number(f"{folder}/memory.current")
    if current is None:  # the root cgroup, or the controller is not enabled here
        return
    stat = _stat(f"{folder}/memory.stat")
    used = max(0, current - stat.get("active_file", 0) - stat.get("inactive_file", 0))
    swapped = _number(f"{folder}/memory.swap.current") or 0
    for file, where, held in (
        ("memory.max", levels, used),
        ("memory.high", levels, used),
        ("memory.swap.max", swap, swapped),
    ):
        limit = _number(f"{folder}/{file}")
        if limit is not None:
            where.append(Level(folder, file, limit, held))


def _read_v1(folder: str, levels: list[Level], swap: list[Level]) -> None:
    usage = _number(f"{folder}/memory.usage_in_bytes")
    if usage is None:
        return
    stat = _stat(f"{folder}/memory.stat")
    used = max(0, usage - stat.get("total_active_file", 0) - stat.get("total_inactive_file", 0))
    limit = _number(f"{folder}/memory.limit_in_bytes")
    # A container does not see the cgroups above its own, but their smallest limit stands in its statistics.
    above = stat.get("hierarchical_memory_limit", _UNLIMITED)
    if limit is not None:
        levels.append(Level(folder, "memory.limit_in_bytes", limit, used))
        file = "memory.memsw.limit_in_bytes"  # memory and swap together
        both = _number(f"{folder}/{file}")
        if both is not None:
            swap.append(Level(folder, file, max(0, both - limit), stat.get("total_swap", 0)))
    if above < (_UNLIMITED if limit is None else limit):
        levels.append(Level(folder, "hierarchical_memory_limit", above, used))


def _folders(pid: int | str, proc: str, sys: str) -> Iterator[tuple[str, int]]:
    """(folder, cgroup version) from the process's own memory cgroup up to the mount point."""
    paths, points = cgroups.own_paths(pid, proc), cgroups.mounts(proc)
    for controller, version in (("memory", 1), ("", 2)):
        if controller not in paths or controller not in points:
            continue
        point, root = points[controller]
        point = sys + point.removeprefix("/sys") if point.startswith("/sys/") else point
        inside = cgroups.inside(paths[controller], root)
        while True:
            yield point + inside, version
            if not inside:
                break
            inside = inside.rpartition("/")[0]


def _number(path: str) -> int | None:
    """None for "max", for a number that means no limit, and for a file that is not there."""
    try:
        with open(path, "rb") as file:
            value = int(file.read(64))
    except (OSError, ValueError):
        return None
    return value if value < _UNLIMITED else None


def _stat(path: str) -> dict[str, int]:
    pairs = (line.split() for line in cgroups.lines_of(path))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
