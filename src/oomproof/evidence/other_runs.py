"""What other runs tell of a death: the names of jobs beside it, earlier deaths of the same command, a twin that still runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from oomproof.causes import CAUSES
from oomproof.evidence.case_file import OtherJob, Twin
from oomproof.evidence.json_files import integer, number, part, string
from oomproof.leaf.command_lines import python_target, short_name
from oomproof.machine import cgroup_limits, cgroups, processes
from oomproof.recording.run_folders import Run, newest_runs, to_type
from oomproof.recording.secrets import mask_argv
from oomproof.recording.state_files import load
from oomproof.records import replace

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


def died_at(run: dict[str, Any]) -> tuple[int, ...]:
    """Ascending. ``run`` as run.json has it; only what was judged counts."""
    limits = set()
    runs = newest_runs(_LOOKED_AT)
    for other in (run.at(attempt.number) for run in runs for attempt in run.attempts()):
        info = other.info
        same = (info.get("argv"), info.get("cwd")) == (run.get("argv"), run.get("cwd"))
        limit = integer(part(info, "settings").get("limit"))
        if not same or limit is None or other.id == run.get("id"):
            continue
        verdict, _ = load(other.attempt.verdict_file)
        cause = CAUSES.get(string(part(verdict, "verdict").get("cause")) or "")
        if cause is not None and cause.memory:
            limits.add(limit)
    return tuple(sorted(limits))


_LOOKED_AT = 50  # runs, the newest: each costs a file or two
_PROCESSES = ("guard", "keeper", "job")


def with_runs(others: Sequence[OtherJob], boot_id: str | None) -> tuple[OtherJob, ...]:
    """By the run's name and its job's process. ``boot_id``: of the boot in which they were seen."""
    runs = newest_runs(_LOOKED_AT)
    return tuple(_with_run(other, runs, boot_id) if other.managed else other for other in others)


def _with_run(other: OtherJob, runs: Sequence[Run], boot_id: str | None) -> OtherJob:
    for run in runs:
        for attempt in reversed(run.attempts()):
            started, _ = attempt.load_started()
            begun, job = number(started.get("boottime")), integer(part(started, "job").get("pid"))
            if begun is None or begun > other.t or string(started.get("boot_id")) != boot_id:
                continue
            if other.pid in [integer(part(started, process).get("pid")) for process in _PROCESSES]:
                return replace(other, run=to_type(run), name=short_name(run.argv), pid=job or other.pid)
    return other
