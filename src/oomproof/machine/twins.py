"""The same job running twice: one script with the same arguments, or one output folder, in two jobs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from oomproof.leaf.command_lines import (
    is_oomproof,
    output_folder,
    python_target,
    real,
    script_arguments,
    script_of,
)
from oomproof.leaf.proc_files import environment as environment_of
from oomproof.leaf.proc_files import name_of
from oomproof.machine.jobs import LAUNCHERS, Job
from oomproof.machine.processes import command_line, stat_fields
from oomproof.records import dataclass

# Editors start one small language server per window with the same arguments; a job worth a warning is larger.
_LARGE = 128 << 20
# What tells copies started on purpose apart: ranks and jobs pinned to different cards.
_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_IDENTITY = (
    *_RANKS,
    "CUDA_VISIBLE_DEVICES",
    "WORLD_SIZE",
    "SLURM_ARRAY_TASK_ID",
    "WANDB_RUN_ID",  # trials of one sweep
)


@dataclass(frozen=True, slots=True)
class Twins:
    """``output`` is set where they write to one folder."""

    command: tuple[str, ...]
    jobs: tuple[Job, ...]
    output: str | None = None


def among(jobs: Iterable[Job], proc: str = "/proc", at_least: int = _LARGE) -> tuple[Twins, ...]:
    """Jobs that run the same script with the same arguments, or into the same output folder. Ranks and workers of one
    job never match: they are processes of that job, not jobs."""
    same: dict[object, list[tuple[tuple[str, ...], Job]]] = {}
    for job in jobs:
        if job.use + job.swap < at_least:
            continue
        for pid in job.pids:
            command = tuple(command_line(pid, proc))
            key = _key(command, pid, proc)
            if not key:
                continue
            same.setdefault(key, []).append((command, job))
            where = _output(command, pid, proc)
            if where:
                same.setdefault(("output", *where), []).append((command, job))
            break
    groups: dict[tuple[int, ...], Twins] = {}
    for key, members in same.items():
        if len(members) > 1:
            output = str(key[2]) if isinstance(key, tuple) and key[0] == "output" else None
            pids = tuple(job.pid for _, job in members)
            before = groups.get(pids)
            groups[pids] = Twins(
                members[0][0], tuple(job for _, job in members), output or (before.output if before else None)
            )
    return tuple(groups.values())


def _output(command: tuple[str, ...], pid: int, proc: str) -> tuple[str, str] | None:
    """(script, where it writes)."""
    script_name = python_target(command)
    if not script_name or _rank(_environment(pid, proc)):
        return None
    where = output_folder(script_name[1], _folder(pid, proc))
    return (os.path.basename(script_name[0]), where) if where else None


# --- before a start -----------------------------------------------------------------------------------------------

Likeness = Literal["output", "arguments", "script"]


@dataclass(frozen=True, slots=True)
class Twin:
    """A process that runs what is about to be started: into the same output folder, with the same arguments on the
    same GPU, or only the same script."""

    pid: int
    likeness: Likeness
    command: tuple[str, ...]
    output: str | None = None


def of(
    argv: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    parent: int,
    proc: str = "/proc",
) -> list[Twin]:
    """Running twins of a command, the closest first. ``parent`` is who asks: trials of one sweep are no twins."""
    mine = script_of(argv, folder)
    if mine is None:
        return []
    running = _same_script(mine, proc)
    # `timeout 8h oomproof run -- python train.py` names the script as well
    wrappers = {parent, *_ancestors(parent, proc)}
    twins = []
    for pid, command in running.items():
        above = _ancestors(pid, proc)
        if pid == os.getpid() or pid in wrappers or running.keys() & set(above):
            continue  # a loader worker, a rank below its torchrun
        theirs = _environment(pid, proc)
        if _rank(theirs) != _rank(environment) or _trials(above, command, parent, proc):
            continue
        there = _folder(pid, proc)
        output = output_folder(script_arguments(argv, mine, folder), folder)
        if output is not None and output == output_folder(script_arguments(command, mine, there), there):
            twins.append(Twin(pid, "output", command, output))
        elif _identical(argv, folder, environment, command, there, theirs, mine):
            twins.append(Twin(pid, "arguments", command))
        else:
            twins.append(Twin(pid, "script", command))
    return sorted(twins, key=lambda twin: (("output", "arguments", "script").index(twin.likeness), twin.pid))


def identity(argv: Sequence[str], folder: str, environment: Mapping[str, str], gpu: bool) -> str:
    """The same text for two commands that may not run at once: one output folder, or the same words on one GPU."""
    mine = script_of(argv, folder)
    if mine is None or _rank(environment) is not None:
        return ""
    words = script_arguments(argv, mine, folder)
    output = output_folder(words, folder)
    if output is not None:
        return f"{mine} writes {output}"
    if not gpu:
        return ""
    return "\x1f".join([mine, folder, *(environment.get(name, "") for name in _IDENTITY), *words])


def _same_script(mine: str, proc: str) -> dict[int, tuple[str, ...]]:
    """Pid → command line of the processes that run that file."""
    name = os.path.basename(mine)
    candidates = {}
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        command = tuple(command_line(int(entry), proc))
        if not any(word.endswith(name) for word in command) or is_oomproof(command):
            continue
        if script_of(command, _folder(int(entry), proc)) == mine:
            candidates[int(entry)] = command
    return candidates


def _ancestors(pid: int, proc: str) -> list[int]:
    pids: list[int] = []
    while pid > 1:
        fields = stat_fields(pid, proc)
        if not fields or len(fields) < 2:
            break
        pid = int(fields[1])
        if pid in pids:
            break
        pids.append(pid)
    return pids


def _trials(above: Sequence[int], command: Sequence[str], parent: int, proc: str) -> bool:
    """Both started by one program that is no shell: a sweep, a test run, a scheduler. It knows what it does."""
    for pid in above:
        if is_oomproof(command_line(pid, proc)):
            continue  # the run around it: who started that?
        return pid == parent and name_of(pid, proc) not in LAUNCHERS
    return False


def _identical(
    argv: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    command: Sequence[str],
    there: str,
    theirs: Mapping[str, str],
    script: str,
) -> bool:
    if real(folder) != there:
        return False  # the same words mean other files there
    if any(environment.get(name) != theirs.get(name) for name in _IDENTITY):
        return False
    return list(script_arguments(argv, script, folder)) == list(script_arguments(command, script, there))


def _rank(environment: Mapping[str, str]) -> str | None:
    return next((environment[name] for name in _RANKS if name in environment), None)


def _environment(pid: int, proc: str) -> dict[str, str]:
    return {name: value for name, value in environment_of(pid, proc).items() if name in _IDENTITY}


def _folder(pid: int, proc: str) -> str:
    try:
        return os.readlink(f"{proc}/{pid}/cwd")
    except OSError:
        return ""


def _key(command: tuple[str, ...], pid: int, proc: str) -> object:
    script_name = python_target(command)
    if not script_name:
        return None
    name, arguments = script_name
    if os.path.basename(name) in ("oomproof", "keeper.py", "start_by_path.py") or name.startswith(
        "-m oomproof"
    ):
        return None  # the guard around a job: what it runs comes next
    where = "" if name.startswith("/") else _folder(pid, proc)
    return where, name, arguments, tuple(sorted(_environment(pid, proc).items()))
