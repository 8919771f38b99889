"""One attempt's folder in, one case file out: reads what is there, says what is not, decides nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, cast

from oomproof.evidence import agent_files
from oomproof.evidence.case_evidence import describe
from oomproof.evidence.case_file import (
    Action,
    CaseFile,
    Counters,
    ExitStatus,
    HostSample,
    KeeperEvent,
    Missing,
    Settings,
)
from oomproof.evidence.gpu_oom import host_owners, last_oom
from oomproof.evidence.job_output import read_output
from oomproof.evidence.job_processes import JobProcesses
from oomproof.evidence.json_files import integer, number, part, string, strings
from oomproof.evidence.recording_tail import RecordingTail, last_samples
from oomproof.guard.guard_actions import UNCAUGHT
from oomproof.guard.view import Figures
from oomproof.leaf import attempt_names
from oomproof.leaf.action_kinds import REQUEST, WARN
from oomproof.leaf.command_lines import without_profiler
from oomproof.machine import kernel_log, memory, processes, systemd_manager
from oomproof.machine import wtmp as wtmp_file
from oomproof.machine.clock import boot_wall, boottime
from oomproof.recording import spill_record
from oomproof.recording.attempt import Attempt
from oomproof.recording.run_folders import Run, other_host
from oomproof.recording.run_peak import run_peak
from oomproof.recording.state_files import load
from oomproof.records import replace
from oomproof.runner.run_flags import as_typed

_JUST_NOW = 300.0  # the front judges seconds after the end; a later shutdown has nothing to do with it
_MOST_OF = 0.98  # of the machine's memory, which ballooning may change a little
_SHUTDOWN = 600.0  # systemd gives services 90 s each to stop, in a row where they depend on each other

_STILL_WRITTEN = 60.0  # seconds after the end: by a helper process, or by the clock of a file server
_MORE_THAN_ALL = 1.1  # times what the job held: samples of its processes are some seconds apart


def collect(
    attempt: Attempt,
    *,
    proc: str = "/proc",
    kmsg: str = "/dev/kmsg",
    journalctl: str = "journalctl",
    wtmp: str = "/var/log/wtmp",
    systemctl: str = "systemctl",
    suspended: float | None = None,
) -> CaseFile:
    """Never raises for what the folder holds. ``suspended``: what the kernel log's clock lacks."""
    run, _ = load(Run(attempt.run_folder).info_file)
    run |= attempt.own_info()
    started, why_not_started = attempt.load_started()
    exited, why_no_exit = attempt.load_exit()
    tail = last_samples(attempt.recording_file, well=exited.get("code") == 0 and not attempt.actions())
    missing = [
        Missing(source, reason.removeprefix(f"{source}: "), "")
        for source, reason in (
            (attempt_names.STARTED, why_not_started),
            (attempt_names.EXIT, why_no_exit),
            ("recording", tail.reason),
        )
        if reason is not None
    ]
    case = _from_files(attempt, run, started, exited, tail, proc)
    if case.keeper_alive:
        # it has not ended: there is none
        missing = [gap for gap in missing if gap.source != attempt_names.EXIT]
    if case.rebooted:  # nobody lived to write it
        missing = [gap for gap in missing if gap.source != attempt_names.EXIT or "damaged" in gap.reason]
    if case.waits:
        return case  # it was not started yet: there is nothing to read
    if case.output.reason is not None:
        name = attempt.output_file.name
        missing.append(Missing(name, case.output.reason.removeprefix(f"{name}: "), ""))
    if case.censuses and _had_gone(case, case.censuses[-1].pid):  # a script's first program, not what died
        case = replace(case, censuses=())
    if case.status is not None and case.status.code != 0 and case.output.failure is None:
        # reads the script: only for an end without words
        from oomproof.evidence.script_handlers import silent_handlers

        case = replace(case, silent=silent_handlers(attempt, run, started))
    if case.status is not None and (case.status.code != 0 or case.moved.vmstat_oom_kill):
        from oomproof.evidence.script_handlers import script_that_ran
        from oomproof.evidence.texts.beliefs import beliefs_in

        script, source = script_that_ran(run)
        case = _with_source(case, script, source is not None, string(run.get("cwd")) or "")
        case = replace(case, script_beliefs=frozenset(beliefs_in((source or b"").decode("utf-8", "replace"))))
    if any(action.action == REQUEST for action in case.actions):
        from oomproof.evidence.script_handlers import stop_answer

        case = replace(case, stop_answer=stop_answer(attempt, run))
    if case.elsewhere is not None:  # this machine's log and processes are none of its
        missing.append(Missing("the machine", f"it ran on {case.elsewhere}, not visible from here", ""))
        case = replace(case, missing=tuple(missing))
        case = _with_peak(case, attempt)
        return replace(case, evidence=describe(case, _wall_offset(started, tail)))
    if (
        case.status is not None
        and case.status.code != 0
        and not any(told.kind == "saved" for told in case.told)
    ):
        case = replace(case, checkpoint=_checkpoint(attempt, case, string(run.get("cwd")) or ""))
    case, more = _with_kernel(case, proc, kmsg, journalctl, suspended)
    missing += more
    case = _with_peak(case, attempt)
    case, more = _with_reboot(case, wtmp, proc)
    missing += more
    if any(other.managed and other.grew for other in case.others):
        from oomproof.evidence.other_runs import with_runs

        case = replace(case, others=with_runs(case.others, case.run_boot_id))
    if _may_have_twin(case):
        from oomproof.evidence.other_runs import living_twin

        case = replace(case, twin=living_twin(case.argv, string(run.get("cwd")), proc))
    if case.settings.limit is not None and (case.kernel_killed or _guard_acted(case)):
        from oomproof.evidence.other_runs import died_at

        case = replace(case, died_at=died_at(run))
    if _sigterm_just_now(case):
        case = replace(case, going_down=systemd_manager.is_shutting_down(systemctl))
    case = replace(case, missing=tuple(missing))
    return replace(case, evidence=describe(case, _wall_offset(started, tail)))


def _checkpoint(attempt: Attempt, case: CaseFile, cwd: str) -> str:
    from oomproof.evidence.checkpoint_finder import newest_checkpoint

    if not cwd or case.started_wall is None or case.status is None:
        return ""
    died = case.status.wall
    until = died + _STILL_WRITTEN if died is not None else float("inf")
    newest = newest_checkpoint([attempt], case.argv, cwd, case.started_wall, died, until=until).newest
    return newest.path.removeprefix(f"{cwd.rstrip('/')}/") if newest is not None else ""


def _had_gone(case: CaseFile, pid: int) -> bool:
    """Whether the job held less at its end than this process and those that were seen after it."""
    seen, held = case.processes.get(pid), case.job.used if case.job is not None else 0
    later = [process for process in case.processes.values() if seen is not None and process.last > seen.last]
    if seen is None or not later:
        return False
    sizes = [process.used if process.share is None else process.share for process in (seen, *later)]
    return sum(sizes) > _MORE_THAN_ALL * held


def _with_source(case: CaseFile, script: str, is_read: bool, cwd: str) -> CaseFile:
    """What its source tells of batches, loaders and pools. ``is_read``: whether there is a script, and it can be read."""
    from oomproof.evidence.program_source import (
        argument_names_a_batch,
        inline_code,
        is_native,
        names_a_batch,
        names_a_loader,
        process_pool,
        script_sources,
    )

    sampled = any(seen.name.startswith("pt_data_worker") for seen in case.processes.values())
    began = case.phase not in ("load", "unknown") or case.step is not None
    code = inline_code(case.argv)
    if not is_read and code is None:
        # a program of another kind, of which only its arguments could name a batch
        names = (seen.name for seen in case.processes.values())
        native = not script and is_native(case.argv, cwd, names)
        python = case.agent_seen or sampled or began or _is_python(case)
        foreign = (native or not python) and not argument_names_a_batch(case.argv)
        loader = True if sampled else False if foreign else None
        return replace(case, loader=loader, no_batches=foreign, native=native)
    sources = list(script_sources(script, (cwd,))) if is_read else [code or ""]
    if sampled or names_a_loader(sources):
        return replace(case, loader=True)
    case = replace(case, loader=False)
    unseen = not (argument_names_a_batch(case.argv) or names_a_batch(sources))
    if began:
        return replace(case, no_batches=unseen)
    pool, size = process_pool(sources)
    return replace(case, own_batches=case.phase == "load", no_batches=unseen, pool=pool, pool_size=size)


def _is_python(case: CaseFile) -> bool:
    names = [seen.name for seen in case.processes.values()]
    return any(os.path.basename(word).startswith("python") for word in (*names, *case.argv))


def _is_smaller(host: HostSample | None, proc: str) -> bool:
    """Whether the samples had less in view than the machine has."""
    try:
        return host is not None and host.total < _MOST_OF * memory.read(proc).total
    except (OSError, ValueError):
        return False


def _from_files(
    attempt: Attempt,
    run: dict[str, Any],
    started: dict[str, Any],
    exited: dict[str, Any],
    tail: RecordingTail,
    proc: str,
) -> CaseFile:
    asked, backend, shm = part(run, "settings"), part(started, "backend"), part(exited, "shm")
    argv = run.get("argv")
    run_boot = string(started.get("boot_id")) or string(run.get("boot_id")) or tail.meta.get("boot_id")
    boot = processes.boot_id(proc) or None
    shm_total, shm_free = integer(shm.get("total")), integer(shm.get("free"))
    sampled = tail.job.shm_total if tail.job is not None else None
    if tail.job is not None and sampled is not None and (shm_total is None or sampled < shm_total):
        # at the exit the job's own mount namespace is gone: what was read then was the machine's /dev/shm
        shm_total, shm_free = sampled, tail.job.shm_free
    shm_low = tail.shm_low
    if tail.shm_told is not None and (shm_total is None or tail.shm_told[0] < shm_total):
        # it ended before anybody had looked from where it stands
        shm_total, shm_free = tail.shm_told
        shm_low = None
    keeper = part(started, "keeper")
    # exact to the step; the recording's is of the last second
    position = agent_files.position(attempt.agent_folder)
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
        status=status,
        started=number(started.get("boottime")),
        started_wall=number(started.get("wall")) or number(run.get("created")),
        # a job that lives has not ended, whoever keeps it
        keeper_alive=lives,
        unguarded=lives and not folder.guard_lives(),
        waits=waits,
        waits_for=tuple(folder.waits_for()) if waits else (),
        run_boot_id=run_boot,
        boot_id=boot,
        elsewhere=other_host(run) if run_boot != boot else None,
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
        at_start=_counters(part(started, "counters")),
        at_death=_counters(part(exited, "counters")),
        host=tail.host,
        in_container=boot == run_boot and _is_smaller(tail.host, proc),
        job=tail.job,
        adopted=run.get("adopted") is True,
        gpus=tail.gpus,
        gpu_oom=last_oom(attempt),
        host_owners=host_owners(attempt),
        spill=spill_record.pinned(attempt),
        shm_total=shm_total,
        shm_free=shm_free,
        shm_low=shm_low,
        phase=position.phase if position is not None else tail.phase,
        step=position.step if position is not None else tail.step,
        loading_call=position is not None and position.loading,
        step_location=position.place if position is not None else "",
        step_time=position.t if position is not None else None,
        processes=tail.processes,
        leader=integer(part(started, "job").get("pid")),
        openmp=tail.openmp,
        agent_seen=agent_files.is_seen(attempt.agent_folder),
        growth=tail.growth,
        grown=tail.grown,
        others=tail.others,
        address_space=integer(run.get("address_space")),
        environment=strings(run, "env"),
        actions=_actions(attempt.actions()),
        keeper_events=_keeper_events(attempt.keeper_events()),
        output=read_output(attempt, parse=status is None or status.code != 0),
        crashes=agent_files.crashes(attempt.agent_folder),
        told=tail.told,
        censuses=()
        if status is not None and status.code == 0 and not attempt.actions()
        else agent_files.censuses(attempt.agent_folder),
    )


def _with_peak(case: CaseFile, attempt: Attempt) -> CaseFile:
    figures = attempt.recording().figures()
    victims = [(kill.anon_rss or 0) + (kill.shmem_rss or 0) for kill in case.our_kills if kill.sure]
    use, source = run_peak(attempt, figures, victims)
    return replace(case, job_peak=use, peak_source=source, sampled_peak=figures.peaks.use)


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


def _nothing_to_ask(case: CaseFile) -> bool:
    """Ended well, and nothing was OOM-killed anywhere meanwhile: the kernel's log has nothing to add."""
    return case.status is not None and case.status.code == 0 and case.moved.vmstat_oom_kill == 0


def _with_kernel(
    case: CaseFile, proc: str, kmsg: str, journalctl: str, suspended: float | None
) -> tuple[CaseFile, list[Missing]]:
    if case.started is None or _nothing_to_ask(case):
        return case, []
    # after a reboot the ring is another boot's; only a kept journal still has the lines
    boot = case.run_boot_id.replace("-", "") if case.rebooted and case.run_boot_id else None
    log = kernel_log.read(case.started, kmsg=kmsg, journalctl=journalctl, boot=boot, offset=suspended)
    if log.reason is not None:
        return case, [Missing(log.source, log.reason, log.how_to_grant)]
    missing = []
    if log.overwritten:
        missing.append(
            Missing(
                log.source, "its oldest lines were overwritten during the run", "boot with log_buf_len=4M"
            )
        )
    ours = JobProcesses.of(case, proc)
    if not ours.pids_comparable:
        missing.append(
            Missing(
                "pids in the kernel log",
                "in a container the kernel counts pids differently: only the cgroup's name can be matched",
                "run oomproof on the host, or with --pid=host",
            )
        )
    end = case.status.boottime if case.status is not None else None
    until = float("inf") if end is None else end + 5.0 + kernel_log.drift(end)
    from oomproof.evidence.job_processes import read_kernel  # its parsers: not for a run that ended well

    kills, faults = read_kernel((line.time, line.text) for line in log.lines if line.time <= until)
    if case.moved.vmstat_oom_kill == 0:
        # a flat machine-wide counter: what kills the log shows were before this run, clocks being what they are
        kills = ()
    owned = [kill for kill in kills if ours.owns_kill(kill)]
    # the kill of a job that was killed itself would stand there under its own number
    killed = case.status is not None and case.status.signal == signal.SIGKILL
    owned += [
        replace(kill, sure=False)
        for kill in kills
        if kill not in owned and not killed and ours.may_own(kill, case.last_sign)
    ]
    pids = {kill.pid for kill in owned}
    case = replace(
        case,
        kernel_complete=not log.overwritten and (ours.pids_comparable or bool(case.cgroups)),
        our_kills=tuple(sorted(owned, key=lambda kill: kill.time)),
        other_kills=tuple(kill for kill in kills if kill.pid not in pids),
        our_faults=tuple(fault for fault in faults if ours.owns(fault.pid, fault.time)),
    )
    return case, missing


def _failed_just_now(case: CaseFile) -> bool:
    """In this boot and moments ago: what the machine is now, it was then."""
    status = case.status
    if status is None or status.code == 0 or case.rebooted or status.boottime is None:
        return False
    return 0 <= boottime() - status.boottime <= _JUST_NOW


def _guard_acted(case: CaseFile) -> bool:
    return any(action.by == "guard" and action.action != WARN for action in case.actions)


def _may_have_twin(case: CaseFile) -> bool:
    """Ended for memory, by the kernel or by us, or killed by nobody knows whom."""
    acted = _guard_acted(case)
    killed = case.status is not None and case.status.signal == signal.SIGKILL
    return _failed_just_now(case) and (case.kernel_killed or acted or killed)


def _sigterm_just_now(case: CaseFile) -> bool:
    """Ended by what a shutdown sends: worth asking whether one is under way."""
    status = case.status
    if status is None or not _failed_just_now(case):
        return False
    by_signal = (status.signal or (status.code or 0) - 128) in (signal.SIGTERM, signal.SIGKILL, signal.SIGHUP)
    asked = any(event.kind == "sigterm" for event in case.keeper_events)
    return by_signal or asked or any(action.why == "SIGTERM" for action in case.actions)


def _with_reboot(case: CaseFile, path: str, proc: str) -> tuple[CaseFile, list[Missing]]:
    """Only a run of an earlier boot has anything to ask of wtmp; without it, the present boot is the next one."""
    last = case.last_sign_wall
    if not case.rebooted or last is None:
        return case, []
    log = wtmp_file.read(path)
    boot = log.boot_after(last)
    if boot is None:
        this = boot_wall(proc)
        case = replace(case, next_boot_wall=this if this is not None and this > last else None)
    if log.reason is not None:
        return case, [Missing("wtmp", log.reason, "")]
    until = boot if boot is not None else float("inf")
    if case.status is not None:
        until = min(until, last + _SHUTDOWN)  # a later one has nothing to do with this end
    # the record is written seconds after services were told to stop, and clocks are set at boot
    case = replace(case, shutdown_wall=log.shutdown_between(last - 5.0, until))
    return (case if boot is None else replace(case, next_boot_wall=boot, boots_recorded=True)), []


def _wall_offset(started: dict[str, Any], tail: RecordingTail) -> float | None:
    try:
        return float(tail.meta["wall_offset"])
    except (KeyError, ValueError):
        pass
    wall, boottime = number(started.get("wall")), number(started.get("boottime"))
    return wall - boottime if wall is not None and boottime is not None else None
