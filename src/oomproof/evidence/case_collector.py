"""One attempt's folder in, one case file out: reads what is there, says what is not, decides nothing."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from oomproof.evidence.attempt_facts import from_files
from oomproof.evidence.case_evidence import describe
from oomproof.evidence.case_file import (
    CaseFile,
    Exit,
    Missing,
    Program,
    Samples,
)
from oomproof.evidence.json_files import number, string
from oomproof.evidence.recording_tail import RecordingTail, last_samples
from oomproof.leaf import attempt_names
from oomproof.leaf.action_kinds import REQUEST, WARN
from oomproof.machine import systemd_manager
from oomproof.machine import wtmp as wtmp_file
from oomproof.machine.clock import boot_wall, boottime
from oomproof.recording.attempt import Attempt
from oomproof.recording.run_folders import Run
from oomproof.recording.run_peak import run_peak
from oomproof.recording.state_files import load
from oomproof.records import replace

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
    case = from_files(attempt, run, started, exited, tail, proc)
    if case.exit.waits:
        return case  # it was not started yet: there is nothing to read
    unread = {
        attempt_names.STARTED: why_not_started,
        attempt_names.EXIT: why_no_exit,
        "recording": tail.reason,
    }
    missing = _missing(case, {**unread, attempt.output_file.name: case.output.reason})
    agent = case.agent
    if agent.censuses and _had_gone(case, agent.censuses[-1].pid):  # a script's first program, not what died
        case = replace(case, agent=replace(agent, censuses=()))
    case = replace(case, program=_program(case, attempt, run, started))
    if any(action.action == REQUEST for action in case.actions):
        from oomproof.evidence.script_handlers import stop_answer

        case = replace(case, stop_answer=stop_answer(attempt, run))
    if case.exit.elsewhere is not None:  # this machine's log and processes are none of its
        reason = f"it ran on {case.exit.elsewhere}, not visible from here"
        missing.append(Missing("the machine", reason, ""))
    else:
        case, more = _with_kernel_log(case, proc, kmsg, journalctl, suspended)
        ending, unread_boots = _ending(case, wtmp, proc, systemctl)
        missing += [*more, *unread_boots]
        case = _with_other_runs(replace(case, exit=ending), attempt, run, proc)
    case = replace(case, samples=_with_peak(case, attempt), missing=tuple(missing))
    return replace(case, evidence=describe(case, _wall_offset(started, tail)))


def _missing(case: CaseFile, unread: Mapping[str, str | None]) -> list[Missing]:
    """What of these sources was not read, and is missed."""
    missing = []
    for source, reason in unread.items():
        # a run that lives has no end, and of a machine that went down nobody lived to write it
        expected = source != attempt_names.EXIT or not (
            case.exit.keeper_alive or (case.rebooted and "damaged" not in (reason or ""))
        )
        if reason is not None and expected:
            missing.append(Missing(source, reason.removeprefix(f"{source}: "), ""))
    return missing


def _program(case: CaseFile, attempt: Attempt, run: dict[str, Any], started: dict[str, Any]) -> Program:
    """Reads the script: only for an end that asks for it."""
    status, program = case.exit.status, case.program
    if status is None or (status.code == 0 and not case.moved.vmstat_oom_kill):
        return program
    from oomproof.evidence.program_source import program_of
    from oomproof.evidence.script_handlers import script_that_ran, silent_handlers
    from oomproof.evidence.texts.beliefs import beliefs_in

    script, source = script_that_ran(run)
    program = program_of(case, script, source is not None, string(run.get("cwd")) or "")
    beliefs = frozenset(beliefs_in((source or b"").decode("utf-8", "replace")))
    without_words = status.code != 0 and case.output.failure is None
    silent = silent_handlers(attempt, run, started) if without_words else ()
    return replace(program, beliefs=beliefs, silent=silent)


def _with_other_runs(case: CaseFile, attempt: Attempt, run: dict[str, Any], proc: str) -> CaseFile:
    """What other runs and other processes tell: of the jobs beside it, its twin, its earlier deaths, its checkpoints."""
    samples, limits, agent = case.samples, case.limits, case.agent
    cwd, status = string(run.get("cwd")), case.exit.status
    if status is not None and status.code != 0 and not any(told.kind == "saved" for told in agent.told):
        agent = replace(agent, checkpoint=_checkpoint(attempt, case, cwd or ""))
    if any(other.managed and other.grew for other in samples.others):
        from oomproof.evidence.other_runs import with_runs

        samples = replace(samples, others=with_runs(samples.others, case.exit.run_boot_id))
    if _may_have_twin(case):
        from oomproof.evidence.other_runs import living_twin

        samples = replace(samples, twin=living_twin(case.argv, cwd, proc))
    if limits.settings.limit is not None and (case.kernel_killed or _guard_acted(case)):
        from oomproof.evidence.other_runs import died_at

        limits = replace(limits, died_at=died_at(run))
    return replace(case, samples=samples, limits=limits, agent=agent)


def _with_kernel_log(
    case: CaseFile, proc: str, kmsg: str, journalctl: str, suspended: float | None
) -> tuple[CaseFile, list[Missing]]:
    if case.exit.started is None or _nothing_to_ask(case):
        return case, []
    from oomproof.evidence.job_processes import kernel_facts  # its parsers: not for a run that ended well

    kernel, missing = kernel_facts(case, case.exit.started, proc, kmsg, journalctl, suspended)
    return replace(case, kernel=kernel), missing


def _nothing_to_ask(case: CaseFile) -> bool:
    """Ended well, and nothing was OOM-killed anywhere meanwhile: the kernel's log has nothing to add."""
    return case.exit.status is not None and case.exit.status.code == 0 and case.moved.vmstat_oom_kill == 0


def _checkpoint(attempt: Attempt, case: CaseFile, cwd: str) -> str:
    from oomproof.evidence.checkpoint_finder import newest_checkpoint

    if not cwd or case.exit.started_wall is None or case.exit.status is None:
        return ""
    died = case.exit.status.wall
    until = died + _STILL_WRITTEN if died is not None else float("inf")
    newest = newest_checkpoint([attempt], case.argv, cwd, case.exit.started_wall, died, until=until).newest
    return newest.path.removeprefix(f"{cwd.rstrip('/')}/") if newest is not None else ""


def _had_gone(case: CaseFile, pid: int) -> bool:
    """Whether the job held less at its end than this process and those that were seen after it."""
    seen, held = case.samples.processes.get(pid), case.samples.job.used if case.samples.job is not None else 0
    later = [
        process
        for process in case.samples.processes.values()
        if seen is not None and process.last > seen.last
    ]
    if seen is None or not later:
        return False
    sizes = [process.used if process.share is None else process.share for process in (seen, *later)]
    return sum(sizes) > _MORE_THAN_ALL * held


def _with_peak(case: CaseFile, attempt: Attempt) -> Samples:
    figures = attempt.recording().figures()
    victims = [(kill.anon_rss or 0) + (kill.shmem_rss or 0) for kill in case.kernel.our_kills if kill.sure]
    use, source = run_peak(attempt, figures, victims)
    return replace(case.samples, job_peak=use, peak_source=source, sampled_peak=figures.peaks.use)


def _failed_just_now(case: CaseFile) -> bool:
    """In this boot and moments ago: what the machine is now, it was then."""
    status = case.exit.status
    if status is None or status.code == 0 or case.rebooted or status.boottime is None:
        return False
    return 0 <= boottime() - status.boottime <= _JUST_NOW


def _guard_acted(case: CaseFile) -> bool:
    return any(action.by == "guard" and action.action != WARN for action in case.actions)


def _may_have_twin(case: CaseFile) -> bool:
    """Ended for memory, by the kernel or by us, or killed by nobody knows whom."""
    acted = _guard_acted(case)
    killed = case.exit.status is not None and case.exit.status.signal == signal.SIGKILL
    return _failed_just_now(case) and (case.kernel_killed or acted or killed)


def _sigterm_just_now(case: CaseFile) -> bool:
    """Ended by what a shutdown sends: worth asking whether one is under way."""
    status = case.exit.status
    if status is None or not _failed_just_now(case):
        return False
    by_signal = (status.signal or (status.code or 0) - 128) in (signal.SIGTERM, signal.SIGKILL, signal.SIGHUP)
    asked = any(event.kind == "sigterm" for event in case.keeper_events)
    return by_signal or asked or any(action.why == "SIGTERM" for action in case.actions)


def _ending(case: CaseFile, wtmp: str, proc: str, systemctl: str) -> tuple[Exit, list[Missing]]:
    """Whether the machine went down, and how. Only a run of an earlier boot has anything to ask of wtmp; without it, the
    present boot is the next one."""
    ending, last = case.exit, case.last_sign_wall
    if _sigterm_just_now(case):
        ending = replace(ending, going_down=systemd_manager.is_shutting_down(systemctl))
    if not case.rebooted or last is None:
        return ending, []
    log = wtmp_file.read(wtmp)
    boot = log.boot_after(last)
    if boot is None:
        this = boot_wall(proc)
        ending = replace(ending, next_boot_wall=this if this is not None and this > last else None)
    if log.reason is not None:
        return ending, [Missing("wtmp", log.reason, "")]
    until = boot if boot is not None else float("inf")
    if ending.status is not None:
        until = min(until, last + _SHUTDOWN)  # a later one has nothing to do with this end
    # the record is written seconds after services were told to stop, and clocks are set at boot
    ending = replace(ending, shutdown_wall=log.shutdown_between(last - 5.0, until))
    return (ending if boot is None else replace(ending, next_boot_wall=boot, boots_recorded=True)), []


def _wall_offset(started: dict[str, Any], tail: RecordingTail) -> float | None:
    try:
        return float(tail.meta["wall_offset"])
    except (KeyError, ValueError):
        pass
    wall, boottime = number(started.get("wall")), number(started.get("boottime"))
    return wall - boottime if wall is not None and boottime is not None else None
