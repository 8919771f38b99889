"""Kernel log lines in, kills and faults out. Pure text; knows the wordings of kernels from 3.x to 6.18."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

_OOM_KILL = re.compile(r"oom-kill:constraint=(?P<constraint>\w+),(?P<rest>.*)")
_PID = re.compile(r",task=(?P<task>.*),pid=(?P<pid>\d+),uid=\d+")
_OOM_MEMCG = re.compile(r"oom_memcg=(?P<path>.*?),task_memcg=")
_TASK_MEMCG = re.compile(r"task_memcg=(?P<path>.*?),task=")
# "Killed process 12 (x) total-vm:…", before 5.0 "Killed process 12, UID 679, (x) total-vm:…"
_KILLED = re.compile(
    r"(?P<what>Memory cgroup out of memory|Out of memory(?: \(oom_kill_allocating_task\))?)?[:.]?\s*"
    r"Killed process (?P<pid>\d+)(?:, UID \d+,)? \((?P<name>.*)\),? total-vm:(?P<vm>\d+)kB"
    r"(?:, anon-rss:(?P<anon>\d+)kB)?(?:, file-rss:(?P<file>\d+)kB)?(?:, shmem-rss:(?P<shmem>\d+)kB)?"
)
# before 5.1 the reason stood in a line of its own, and its pid may be the parent of the one that is killed
_KILL = re.compile(r"(?P<what>Memory cgroup out of memory|Out of memory): Kill process \d+ ")
# before 4.19 the cgroup stands in a line of its own
_TASK_IN = re.compile(r"Task in (?P<task>\S+) killed as a result of limit of (?P<limit>\S+)")
_USAGE = re.compile(r"memory: usage (?P<usage>\d+)kB, limit (?P<limit>\d+)kB")
_SEGFAULT = re.compile(
    r"(?P<name>.{1,16})\[(?P<pid>\d+)\]: segfault at (?P<address>[0-9a-f]+) "
    r".*?error \d+(?: in (?P<library>[^\[\s]+))?"
)
_GPF = re.compile(
    r"traps: (?P<name>.{1,16})\[(?P<pid>\d+)\] general protection(?: fault)?"
    r".*? error:\d+(?: in (?P<library>[^\[\s]+))?"
)
_BELONGS = 1.0  # the lines of one kill follow each other within milliseconds; a slow console stretches it


@dataclass(frozen=True, slots=True)
class KernelKill:
    """One victim of the kernel's OOM killer. ``total_vm`` is address space, never memory used."""

    time: float
    pid: int
    name: str
    constraint: str | None = None  # CONSTRAINT_NONE, _MEMCG, _CPUSET, _MEMORY_POLICY
    oom_memcg: str | None = None  # whose limit was hit
    task_memcg: str | None = None  # where the victim lived
    limit: int | None = None  # of oom_memcg
    total_vm: int | None = None
    anon_rss: int | None = None
    file_rss: int | None = None
    shmem_rss: int | None = None
    text: str = ""

    @property
    def by_limit(self) -> bool:
        return self.constraint == "CONSTRAINT_MEMCG"

    @property
    def by_machine(self) -> bool:
        return self.constraint == "CONSTRAINT_NONE"


@dataclass(frozen=True, slots=True)
class KernelFault:
    time: float
    pid: int
    name: str
    kind: str  # segfault, gpf
    library: str | None
    null: bool  # an address in the first page: a null pointer
    text: str = ""


def _bytes(match: re.Match[str], name: str) -> int | None:
    value = match[name]
    return int(value) * 1024 if value is not None else None


def find_kills(lines: Iterable[tuple[float, str]]) -> tuple[KernelKill, ...]:
    """Every kill in (time, text) lines, oldest first. The ``oom-kill:`` line is rate-limited and may be
    absent; ``Killed process`` is always printed, so a kill is counted there."""
    kills: list[KernelKill] = []
    pending: dict[int, KernelKill] = {}
    limit: tuple[float, int] | None = None
    old_cgroups: tuple[float, str, str] | None = None
    announced: tuple[float, str] | None = None
    for when, text in lines:
        if match := _USAGE.search(text):
            limit = (when, int(match["limit"]) * 1024)
        elif match := _TASK_IN.search(text):
            old_cgroups = (when, match["task"], match["limit"])
        elif match := _KILL.search(text):
            announced = (when, match["what"])
        elif match := _OOM_KILL.search(text):
            who = _PID.search(text)
            if who is None:
                continue
            memcg, task = _OOM_MEMCG.search(text), _TASK_MEMCG.search(text)
            pid = int(who["pid"])
            pending[pid] = KernelKill(
                when,
                pid,
                who["task"],
                constraint=match["constraint"],
                oom_memcg=memcg["path"] if memcg else None,
                task_memcg=task["path"] if task else None,
                text=text,
            )
        elif match := _KILLED.search(text):
            pid = int(match["pid"])
            kill = pending.pop(pid, None) or KernelKill(when, pid, match["name"])
            if kill.constraint is None:
                what = match["what"]
                if what is None and announced is not None and when - announced[0] <= _BELONGS:
                    what = announced[1]
                kill = replace(kill, constraint=_constraint_from(what))
            if kill.by_limit and limit is not None and when - limit[0] <= _BELONGS:
                kill = replace(kill, limit=limit[1])
            if kill.by_limit and old_cgroups is not None and when - old_cgroups[0] <= _BELONGS:
                kill = replace(
                    kill,
                    task_memcg=kill.task_memcg or old_cgroups[1],
                    oom_memcg=kill.oom_memcg or old_cgroups[2],
                )
            kills.append(
                replace(
                    kill,
                    total_vm=_bytes(match, "vm"),
                    anon_rss=_bytes(match, "anon"),
                    file_rss=_bytes(match, "file"),
                    shmem_rss=_bytes(match, "shmem"),
                    text=text,
                )
            )
    # an oom-kill line whose second half was lost (a ring that ended, a file cut short) is a kill all the same
    kills.extend(pending.values())
    return tuple(sorted(kills, key=lambda kill: kill.time))


def _constraint_from(what: str | None) -> str | None:
    if what is None:
        return None
    return "CONSTRAINT_MEMCG" if what.startswith("Memory cgroup") else "CONSTRAINT_NONE"


def find_faults(lines: Iterable[tuple[float, str]]) -> tuple[KernelFault, ...]:
    faults = []
    for when, text in lines:
        if match := _SEGFAULT.search(text):
            null = int(match["address"], 16) < 4096
            faults.append(
                KernelFault(when, int(match["pid"]), match["name"], "segfault", match["library"], null, text)
            )
        elif match := _GPF.search(text):
            faults.append(
                KernelFault(when, int(match["pid"]), match["name"], "gpf", match["library"], False, text)
            )
    return tuple(faults)
