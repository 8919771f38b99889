"""Processes grouped into jobs, the heaviest first, with pages that several processes share counted once.

A job is a process together with everything it started. It begins below the first ancestor that only
*launches* things (a shell, a terminal, init, a desktop, Jupyter), so that a training run, its loader workers
and its ranks are one job while two commands of one shell are two.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from oomproof.leaf.command_lines import is_keeper, is_oomproof
from oomproof.leaf.proc_files import kib_field, read_bytes, read_text
from oomproof.machine import memory
from oomproof.machine.cgroups import all_procs_files, memory_of, read_pids
from oomproof.machine.processes import command_line, start_time
from oomproof.records import dataclass

# fmt: off
LAUNCHERS = frozenset({  # names as the kernel cuts them, at 15 characters
    "systemd", "init", "launchd", "runit", "s6-svscan", "tini", "dumb-init", "docker-init",
    "containerd-shim", "containerd-shim-", "conmon", "cron", "crond", "atd", "slurmstepd", "slurmd",
    "sh", "bash", "dash", "ash", "zsh", "fish", "ksh", "tcsh", "csh", "nu", "pwsh", "xonsh",
    "login", "sshd", "sshd-session", "su", "mosh-server",
    "tmux", "tmux: server", "screen", "SCREEN", "zellij", "gnome-terminal-", "kgx", "ptyxis-agent", "konsole",
    "kitty", "alacritty", "wezterm-gui", "xterm", "terminator", "xfce4-terminal", "tilix", "foot", "ghostty",
    "gnome-shell", "gnome-session-b", "plasmashell", "kwin_wayland", "kwin_x11", "sway", "Hyprland", "i3",
    "code", "code-server", "jupyter-lab", "jupyter-noteboo", "jupyter-server", "jupyterhub",
})
# fmt: on

_OURS = "oomproof"  # a run of ours is a job of its own, whoever started it: a sweep starts many

# The exact share makes the kernel walk the page tables: 4 to 5 ms per GiB (Linux 6.18, 4 KiB pages).
# 16 GiB of walking keep `check` inside its half second; what is heavier is estimated and says so.
_WALK_BYTES = 16 << 30
_WORTH_A_WALK = 32 << 20  # sharing below this does not change the result
_ONE_WALK = 32 << 20  # a read costs 0.15 ms however small the process: as much as walking this
_SMALL = 1 << 20


@dataclass(frozen=True, slots=True)
class Process:
    """One process, from /proc/PID/status. Kernel threads and zombies have no memory and are left out."""

    pid: int
    parent: int
    session: int
    uid: int
    name: str
    anon: int
    shmem: int
    file: int
    swap: int

    @property
    def own(self) -> int:
        return self.anon + self.shmem


@dataclass(frozen=True, slots=True)
class Job:
    """Bytes of RAM the job holds. ``exact`` is False where shared pages had to be estimated."""

    pid: int
    start: int  # clock ticks since boot; the newest job has the largest
    uid: int
    command: tuple[str, ...]  # the first process's arguments, or its name in brackets
    pids: tuple[int, ...]
    anon: int
    shmem: int
    swap: int
    exact: bool
    managed: bool = False  # started by oomproof

    @property
    def use(self) -> int:
        return self.anon + self.shmem


def scan(proc: str = "/proc", inside: str | None = None) -> dict[int, Process]:
    """Every process that has memory: one small read each (about 10 µs, so 3000 take 30 ms).

    ``inside``: the folder of a cgroup whose limit is the machine here; who is outside it takes nothing of it.
    """
    if inside is not None:
        pids = read_pids(*all_procs_files(inside))
    else:
        pids = [int(name) for name in os.listdir(proc) if name.isdigit()]
    found = (_process(pid, proc) for pid in pids)
    return {process.pid: process for process in found if process is not None}


def totals(proc: str = "/proc", inside: str | None = None) -> tuple[int, int]:
    """Anonymous and shared memory of those that ``scan`` finds, by the kernel's own sums."""
    held = (memory_of(inside) if inside is not None else None) or memory.read(proc)
    return held.anon, held.shmem


def heaviest(
    processes: Mapping[int, Process],
    *,
    anon_total: int = 0,
    shmem_total: int = 0,
    at_least: int = 16 << 20,
    walk: int = _WALK_BYTES,
    proc: str = "/proc",
) -> tuple[Job, ...]:
    """Jobs that hold ``at_least`` bytes in RAM or swap, heaviest first.

    ``anon_total`` and ``shmem_total`` are the kernel's own sums, where each page stands once:
    what the processes claim beyond them is shared, and is taken from the jobs that can share.
    ``walk``: so many bytes of page tables may be walked for exact shares; a walk holds up who is walked.
    """
    groups = [members for members in _groups(processes, proc) if _claim(members) >= at_least]
    managed = {}
    for at, members in enumerate(groups):
        is_managed = is_oomproof(command_line(members[0].pid, proc))
        groups[at] = _without_keeper(members, proc) if is_managed else members
        managed[groups[at][0].pid] = is_managed
    groups.sort(key=lambda members: sum(process.own for process in members), reverse=True)
    exact = _exact_shares(groups, walk, proc)
    anon_factor = _shrink(processes, groups, exact, "anon", anon_total)
    shmem_factor = _shrink(processes, groups, exact, "shmem", shmem_total)
    jobs = []
    for members in groups:
        leader = members[0]
        share = exact.get(leader.pid)
        anon, shmem = share or (
            _estimate([process.anon for process in members], anon_factor),
            _estimate([process.shmem for process in members], shmem_factor),
        )
        jobs.append(
            Job(
                pid=leader.pid,
                start=start_time(leader.pid, proc) or 0,
                uid=leader.uid,
                command=tuple(command_line(leader.pid, proc)) or (f"[{leader.name}]",),
                pids=tuple(process.pid for process in members),
                anon=anon,
                shmem=shmem,
                swap=sum(process.swap for process in members),
                exact=share is not None or not _shares(members),
                managed=managed[leader.pid],
            )
        )
    return tuple(sorted(jobs, key=lambda job: (-job.use - job.swap, job.pid)))


def _claim(members: list[Process]) -> int:
    return sum(process.own + process.swap for process in members)


# --- grouping -----------------------------------------------------------------------------------------------


def _groups(processes: Mapping[int, Process], proc: str) -> list[list[Process]]:
    """Members of each job, its first process in front."""
    leaders: dict[int, int] = {}
    for pid in processes:
        chain = []
        while pid not in leaders:
            chain.append(pid)
            above = _parent_in_job(processes[pid], processes)
            if above is None or above in chain:  # a pid used anew while we read can make a loop
                leaders[pid] = pid
            else:
                pid = above
        for below in chain:
            leaders[below] = leaders[pid]
    groups: dict[int, list[Process]] = {}
    for pid, leader in leaders.items():
        groups.setdefault(leader, []).append(processes[pid])
    merged: dict[object, list[Process]] = {}
    for leader, members in sorted(groups.items()):
        members.sort(key=lambda process: (process.pid != leader, process.pid))
        service = service_of(leader, proc) if _claim(members) >= _WORTH_A_WALK else None
        merged.setdefault(service or leader, []).extend(members)  # a service is one job, whoever forked whom
    return list(merged.values())


def _parent_in_job(process: Process, processes: Mapping[int, Process]) -> int | None:
    parent = processes.get(process.parent)
    if parent is None or parent.name in LAUNCHERS or process.name == _OURS:
        return None
    # In a container the job itself may be pid 1, with its workers in its session; strays of others are not.
    if parent.pid == 1 and parent.session != process.session:
        return None
    return parent.pid


def _without_keeper(members: list[Process], proc: str) -> list[Process]:
    """A run's keeper is its job's parent: the job is called by what runs, not by who keeps it."""
    if len(members) > 1 and is_keeper(command_line(members[0].pid, proc)):
        return members[1:]
    return members


def service_of(pid: int, proc: str) -> str | None:
    """The cgroup path of a systemd service; scopes and user managers hold many jobs and name none."""
    text = read_text(f"{proc}/{pid}/cgroup")
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        unit = path.rpartition("/")[2]
        if unit.endswith(".service") and not unit.startswith("user@"):
            return path
    return None


# --- sharing ------------------------------------------------------------------------------------------------


def _shares(members: list[Process]) -> bool:
    """Can pages be counted twice here? One process without shared memory cannot share."""
    sizes = sorted((process.own for process in members), reverse=True)
    return sum(sizes[1:]) >= _WORTH_A_WALK or sum(process.shmem for process in members) >= _WORTH_A_WALK


def _exact_shares(groups: list[list[Process]], walk: int, proc: str) -> dict[int, tuple[int, int]]:
    """leader's pid -> (anon, shmem), for the jobs whose every process may be read, within the walk's cost."""
    left = walk
    shares = {}
    for members in groups:
        cost = sum(max(_ONE_WALK, process.own + process.file) for process in members)
        if cost > left or not _shares(members):
            continue
        left -= cost
        anon = shmem = 0
        for process in members:
            if process.own < _SMALL:
                anon, shmem = anon + process.anon, shmem + process.shmem
                continue
            text = read_bytes(f"{proc}/{process.pid}/smaps_rollup")
            if not text or b"\nPss_Anon:" not in text:  # not ours to read, gone, or a kernel before 5.4
                break
            anon += kib_field(text, b"\nPss_Anon:")
            shmem += kib_field(text, b"\nPss_Shmem:")
        else:
            shares[members[0].pid] = (anon, shmem)
    return shares


def _shrink(
    processes: Mapping[int, Process],
    groups: list[list[Process]],
    exact: Mapping[int, tuple[int, int]],
    kind: str,
    total: int,
) -> float:
    """The part of "everything but the largest process" that is real, over all jobs without an exact share."""
    if not total:
        return 1.0
    certain = doubtful = 0
    counted: set[int] = set()
    for members in groups:
        sizes = [getattr(process, kind) for process in members]
        counted.update(process.pid for process in members)
        share = exact.get(members[0].pid)
        if share:
            certain += share[0] if kind == "anon" else share[1]
        else:
            certain += max(sizes)
            doubtful += sum(sizes) - max(sizes)
    certain += sum(getattr(process, kind) for process in processes.values() if process.pid not in counted)
    return min(1.0, max(0, total - certain) / doubtful) if doubtful else 1.0


def _estimate(sizes: list[int], factor: float) -> int:
    return max(sizes) + int((sum(sizes) - max(sizes)) * factor)


# --- reading ------------------------------------------------------------------------------------------------


def _process(pid: int, proc: str) -> Process | None:
    text = read_bytes(f"{proc}/{pid}/status")
    if not text or b"\nVmRSS:" not in text:
        return None
    try:
        return Process(
            pid=pid,
            parent=int(_word(text, b"\nPPid:")),
            session=int(_word(text, b"\nNSsid:") or 0),
            uid=int(_word(text, b"\nUid:") or 0),
            name=text[6 : text.index(b"\n")].decode("utf-8", "replace"),
            anon=kib_field(text, b"\nRssAnon:"),
            shmem=kib_field(text, b"\nRssShmem:"),
            file=kib_field(text, b"\nRssFile:"),
            swap=kib_field(text, b"\nVmSwap:"),
        )
    except ValueError:
        return None


def _word(text: bytes, name: bytes) -> bytes:
    """The first word after ``name``; empty where the line is missing."""
    words = text.partition(name)[2].partition(b"\n")[0].split(None, 1)
    return words[0] if words else b""
