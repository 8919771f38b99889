"""What an attempt's own files say, as the first records of its case: how it ended, its limits, its last samples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

from oomproof.evidence import agent_files
from oomproof.evidence.case_file import (
    Action,
    AgentFacts,
    CaseFile,
    Counters,
    Exit,
    ExitStatus,
    HostSample,
    KeeperEvent,
    Limits,
    Settings,
)
from oomproof.evidence.gpu_oom import host_owners, last_oom
from oomproof.evidence.job_output import read_output
from oomproof.evidence.json_files import integer, number, part, string, strings
from oomproof.evidence.recording_tail import RecordingTail
from oomproof.guard.guard_actions import UNCAUGHT
from oomproof.guard.view import Figures
from oomproof.leaf.command_lines import without_profiler
from oomproof.machine import memory, processes
from oomproof.recording import spill_record
from oomproof.recording.attempt import Attempt
from oomproof.recording.run_folders import Run, other_host
from oomproof.records import replace
from oomproof.runner.run_flags import as_typed

_MOST_OF = 0.98  # of the machine's memory, which ballooning may change a little


def _is_smaller(host: HostSample | None, proc: str) -> bool:
    """Whether the samples had less in view than the machine has."""
    try:
        return host is not None and host.total < _MOST_OF * memory.read(proc).total
    except (OSError, ValueError):
        return False


def from_files(
    attempt: Attempt,
    run: dict[str, Any],
    started: dict[str, Any],
    exited: dict[str, Any],
    tail: RecordingTail,
    proc: str,
) -> CaseFile:
    asked, shm = part(run, "settings"), part(exited, "shm")
    argv = run.get("argv")
    run_boot = string(started.get("boot_id")) or string(run.get("boot_id")) or tail.meta.get("boot_id")
    boot = processes.boot_id(proc) or None
    shm_total, shm_free = integer(shm.get("total")), integer(shm.get("free"))
    sampled = tail.samples.job.shm_total if tail.samples.job is not None else None
    if tail.samples.job is not None and sampled is not None and (shm_total is None or sampled < shm_total):
        # at the exit the job's own mount namespace is gone: what was read then was the machine's /dev/shm
        shm_total, shm_free = sampled, tail.samples.job.shm_free
    shm_low = tail.samples.shm_low
    if tail.shm_told is not None and (shm_total is None or tail.shm_told[0] < shm_total):
        # it ended before anybody had looked from where it stands
        shm_total, shm_free = tail.shm_told
        shm_low = None
    keeper = part(started, "keeper")
    status = _status(exited)
    lives = boot == run_boot and (_alive(keeper, proc) or _alive(part(started, "job"), proc))
    folder = Run(attempt.run_folder)
    waits = not started and folder.waits()
    return CaseFile(
        run=string(run.get("id")) or attempt.run_folder.name,
        name=string(run.get("name")),
        attempt=attempt.number,
        retried=bool(integer(asked.get("retry"))),
        argv=tuple(without_profiler([str(word) for word in argv])) if isinstance(argv, list) else (),
        folder=str(attempt.folder),
        environment=strings(run, "env"),
        exit=Exit(
            status=status,
            started=number(started.get("boottime")),
            started_wall=number(started.get("wall")) or number(run.get("created")),
            # a job that lives has not ended, whoever keeps it
            keeper_alive=lives,
            unguarded=lives and not folder.guard_lives(),
            waits=waits,
            waits_for=tuple(folder.waits_for()) if waits else (),
            adopted=run.get("adopted") is True,
            run_boot_id=run_boot,
            boot_id=boot,
            elsewhere=other_host(run) if run_boot != boot else None,
        ),
        limits=_limits(run, started, exited),
        samples=replace(
            tail.samples,
            in_container=boot == run_boot and _is_smaller(tail.samples.host, proc),
            spill=spill_record.pinned(attempt),
            shm_total=shm_total,
            shm_free=shm_free,
            shm_low=shm_low,
            leader=integer(part(started, "job").get("pid")),
        ),
        agent=_agent(attempt, tail, well=status is not None and status.code == 0 and not attempt.actions()),
        actions=_actions(attempt.actions()),
        keeper_events=_keeper_events(attempt.keeper_events()),
        output=read_output(attempt, parse=status is None or status.code != 0),
    )


def _limits(run: dict[str, Any], started: dict[str, Any], exited: dict[str, Any]) -> Limits:
    asked, backend = part(run, "settings"), part(started, "backend")
    return Limits(
        settings=Settings(
            limit=integer(asked.get("limit")),
            floor=integer(asked.get("floor")),
            margin=integer(asked.get("margin")),
            grace=number(asked.get("grace")),
            stop_file=string(asked.get("stop_file")),
        ),
        flags=as_typed(strings(run, "flags")),
        backend=string(backend.get("name")),
        limit=integer(backend.get("limit")),
        cgroups=_cgroups(backend.get("remove")),
        started_in=string(started.get("memcg")),
        address_space=integer(run.get("address_space")),
        at_start=_counters(part(started, "counters")),
        at_death=_counters(part(exited, "counters")),
    )


def _agent(attempt: Attempt, tail: RecordingTail, well: bool) -> AgentFacts:
    # exact to the step; the recording's is of the last second
    position = agent_files.position(attempt.agent_folder)
    return AgentFacts(
        seen=agent_files.is_seen(attempt.agent_folder),
        phase=position.phase if position is not None else tail.phase,
        step=position.step if position is not None else tail.step,
        step_location=position.place if position is not None else "",
        loading_call=position is not None and position.loading,
        step_time=position.t if position is not None else None,
        openmp=tail.openmp,
        crashes=agent_files.crashes(attempt.agent_folder),
        told=tail.told,
        censuses=() if well else agent_files.censuses(attempt.agent_folder),
        gpu_oom=last_oom(attempt),
        host_owners=host_owners(attempt),
    )


def _status(exited: dict[str, Any]) -> ExitStatus | None:
    code, killed_by = integer(exited.get("code")), integer(exited.get("signal"))
    raw = integer(exited.get("status"))
    if code is None and killed_by is None and raw is not None:
        code, killed_by = (os.WEXITSTATUS(raw), None) if os.WIFEXITED(raw) else (None, os.WTERMSIG(raw))
    if code is None and killed_by is None:
        return None
    leftovers = exited.get("leftovers")
    return ExitStatus(
        code,
        killed_by,
        core=exited.get("core") is True,
        boottime=number(exited.get("boottime")),
        wall=number(exited.get("wall")),
        leftovers=len(leftovers) if isinstance(leftovers, list) else integer(leftovers) or 0,
    )


def _counters(values: dict[str, Any]) -> Counters:
    return Counters(**{name: integer(values.get(name)) for name in Counters.__dataclass_fields__})


def _cgroups(dirs: object) -> tuple[str, ...]:
    """The job's folders as paths below their mount, which is how the kernel's log names them."""
    directories = []
    for directory in dirs if isinstance(dirs, list) else []:
        path = str(directory)
        for mount in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
            if path.startswith(mount + "/"):
                path = path[len(mount) :]
                break
        if path.strip("/") and path not in directories:
            directories.append(path.rstrip("/"))
    return tuple(directories)


def _actions(lines: list[dict[str, Any]]) -> tuple[Action, ...]:
    actions = []
    for line in lines:
        at, what = number(line.get("boottime")), string(line.get("action"))
        if at is not None and what is not None:
            by, why = string(line.get("by")) or "unknown", string(line.get("why")) or ""
            scope, others_growth = string(line.get("scope")) or "", line.get("others_growth") is True
            uncaught = part(line, "facts").get(UNCAUGHT) is True
            wall, reason, figures = number(line.get("wall")), string(line.get("reason")) or "", _figures(line)
            actions.append(Action(at, wall, by, what, why, scope, others_growth, uncaught, reason, figures))
    return tuple(sorted(actions, key=lambda action: action.boottime))


def _figures(line: dict[str, Any]) -> Figures:
    """Without what is no figure, in a damaged file."""
    figures = part(line, "figures")
    return cast(Figures, {name: value for name, value in figures.items() if number(value) is not None})


def _keeper_events(lines: list[dict[str, Any]]) -> tuple[KeeperEvent, ...]:
    events = []
    for line in lines:
        kind = string(line.get("event"))
        if kind is not None:
            events.append(KeeperEvent(number(line.get("boottime")), kind, string(line.get("text")) or ""))
    return tuple(events)


def _alive(process: dict[str, Any], proc: str) -> bool:
    pid, start = integer(process.get("pid")), integer(process.get("start"))
    if pid is None:
        return False
    try:
        fields = Path(proc, str(pid), "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return fields[0] not in "ZX" and (start is None or int(fields[19]) == start)
    except (OSError, IndexError, ValueError):
        return False
