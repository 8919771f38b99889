"""The same job running twice: one script with the same arguments in two jobs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from oomproof.machine.jobs import Job
from oomproof.machine.processes import command_line

# Editors start one small language server per window with the same arguments; a job worth a warning is larger.
_LARGE = 128 << 20
# What tells copies started on purpose apart: ranks and jobs pinned to different cards.
_IDENTITY = (
    "RANK",
    "LOCAL_RANK",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "CUDA_VISIBLE_DEVICES",
    "WORLD_SIZE",
)


@dataclass(frozen=True, slots=True)
class Twins:
    command: tuple[str, ...]
    jobs: tuple[Job, ...]


def among(jobs: Iterable[Job], proc: str = "/proc", at_least: int = _LARGE) -> tuple[Twins, ...]:
    """Jobs that run the same script with the same arguments. Ranks and workers of one job never match:
    they are processes of that job, not jobs."""
    same: dict[object, list[tuple[tuple[str, ...], Job]]] = {}
    for job in jobs:
        if job.use + job.swap < at_least:
            continue
        for pid in job.pids:
            command = tuple(command_line(pid, proc))
            key = _key(command, pid, proc)
            if key:
                same.setdefault(key, []).append((command, job))
                break
    return tuple(
        Twins(found[0][0], tuple(job for _, job in found)) for found in same.values() if len(found) > 1
    )


def script(command: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
    """(script, its arguments) of a Python command line; a module is given as ``-m NAME``."""
    if not command or not os.path.basename(command[0]).startswith(("python", "pypy")):
        return None
    words = list(command[1:])
    while words:
        word = words.pop(0)
        if word == "-m" and words:
            return f"-m {words[0]}", tuple(words[1:])
        if word == "-c":
            return None
        if word in ("-W", "-X") and words:
            words.pop(0)
        elif not word.startswith("-"):
            return word, tuple(words)
    return None


def _key(command: tuple[str, ...], pid: int, proc: str) -> object:
    found = script(command)
    if not found:
        return None
    name, arguments = found
    if os.path.basename(name) in ("oomproof", "keeper.py") or name.startswith("-m oomproof"):
        return None  # the guard around a job: what it runs comes next
    try:
        folder = os.readlink(f"{proc}/{pid}/cwd")
    except OSError:
        folder = ""
    where = "" if name.startswith("/") else folder
    return where, name, arguments, _identity(pid, proc)


def _identity(pid: int, proc: str) -> tuple[str, ...]:
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:
            variables = file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return ()
    return tuple(sorted(line for line in variables if line.partition("=")[0] in _IDENTITY))
