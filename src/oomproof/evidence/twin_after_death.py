"""The same command, still running, right after a death for memory: the first thing to look for."""

from __future__ import annotations

import os
from collections.abc import Sequence

from oomproof.evidence.case_file import Twin
from oomproof.leaf.command_lines import python_target
from oomproof.machine import cgroup_limits, cgroups, processes
from oomproof.recording.secrets import mask_argv

_LARGE = 128 << 20  # a smaller one was not what was missing


def living_twin(argv: Sequence[str], folder: str | None, proc: str = "/proc") -> Twin | None:
    """The largest process of ours that runs the same script with the same arguments in the same folder, with what its
    whole family holds. The recorded command line is masked, so the living ones are compared masked."""
    wanted = python_target(tuple(argv))
    if wanted is None:
        return None
    pids = {pid for pid in _pids(proc) if _same(pid, wanted, folder, proc)}
    families = []
    for pid in pids:
        own = processes.memory(pid, proc)
        if own is None or own.parent in pids:  # a worker is forked with its parent's command line
            continue
        family = [
            own,
            *(processes.memory(descendant, proc) for descendant in processes.descendants(pid, proc)),
        ]
        held = sum(process.anon + process.swap for process in family if process is not None)
        families.append(Twin(pid, held))
    best = max(families, key=lambda twin: twin.held, default=None)
    return best if best is not None and best.held >= _LARGE else None


def _pids(proc: str) -> list[int]:
    """Who takes of the same memory: under a limit that is the machine here, those inside it."""
    limit = cgroup_limits.machine_here(proc)
    if limit is not None:
        return cgroups.read_pids(*cgroups.all_procs_files(limit.path))
    try:
        return [int(name) for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return []


def _same(pid: int, wanted: tuple[str, tuple[str, ...]], folder: str | None, proc: str) -> bool:
    command = processes.command_line(pid, proc)
    script = python_target(tuple(command))
    if script is None or script[0] != wanted[0] or len(script[1]) != len(wanted[1]):
        return False
    if python_target(tuple(mask_argv(command))) != wanted:
        return False
    if wanted[0].startswith("/") or folder is None:
        return True
    try:
        return os.readlink(f"{proc}/{pid}/cwd") == folder
    except OSError:
        return False
