"""The kernel's log of a run: which of its victims and faults were processes of this job."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping

from oomproof.causes import cause_of
from oomproof.evidence.case_file import CaseFile, KernelFault, KernelKill, KernelLog, Missing, ProcessSeen
from oomproof.evidence.texts.finding import Finding
from oomproof.machine import kernel_log
from oomproof.machine.kernel_log import drift
from oomproof.records import dataclass, replace

_SURE = 0.9  # below, no line said why it was killed, only that it was


def read_kernel(
    lines: Iterable[tuple[float, str]],
) -> tuple[tuple[KernelKill, ...], tuple[KernelFault, ...]]:
    """(time, text) lines, oldest first."""
    from oomproof.evidence.texts.kernel_parser import KernelParser

    parser = KernelParser("kernel log")
    for number, (when, text) in enumerate(lines, 1):
        # with its time in front, as dmesg prints it: no line is then taken for the rest of another
        parser.feed(number, f"[{when:12.6f}] {text}")
    findings = parser.finish()
    kills = [
        _kill(finding) for finding in findings if cause_of(finding.cause).kernel_kill and _names(finding)
    ]
    faults = [_fault(finding) for finding in findings if _is_fault(finding)]
    return (
        tuple(sorted(kills, key=lambda kill: kill.time)),
        tuple(sorted(faults, key=lambda fault: fault.time)),
    )


def _names(finding: Finding) -> bool:
    return finding.victim is not None and finding.victim.pid is not None and finding.seconds is not None


def _is_fault(finding: Finding) -> bool:
    return not (cause_of(finding.cause).kernel_kill or cause_of(finding.cause).good) and _names(finding)


def _kill(finding: Finding) -> KernelKill:
    victim, when = finding.victim, finding.seconds
    assert victim is not None and victim.pid is not None and when is not None
    told = finding.kernel.constraint or (
        cause_of(finding.cause).constraint if finding.strength >= _SURE else None
    )
    return KernelKill(
        when,
        victim.pid,
        victim.name or "",
        # the words "Memory cgroup out of memory" outweigh the constraint, which 5.0 printed wrongly
        "CONSTRAINT_MEMCG" if finding.cause == "oom-kill-memcg" else told,
        oom_memcg=finding.cgroup if finding.cause == "oom-kill-memcg" else None,
        task_memcg=finding.kernel.task_memcg,
        limit=finding.limit,
        total_vm=victim.total_vm,
        anon_rss=victim.anon_rss,
        file_rss=victim.file_rss,
        shmem_rss=victim.shmem_rss,
        text=finding.text,
        job=finding.kernel.job_of(victim.pid),
    )


def _fault(finding: Finding) -> KernelFault:
    victim, when = finding.victim, finding.seconds
    assert victim is not None and victim.pid is not None and when is not None
    return KernelFault(
        when,
        victim.pid,
        victim.name or "",
        finding.cause,
        finding.kernel.library,
        finding.kernel.null,
        finding.text,
        finding.says,
        finding.strength,
    )


# include/linux/proc_ns.h, PROC_PID_INIT_INO: the inode of the first pid namespace on every kernel
_INIT_PID_NAMESPACE = "pid:[4026531836]"
_AFTER = 30.0  # a process may outlive its last sample by as long as the guard was starved
_STARTING = 0.05  # started.json is written just after the start; clocks agree to a millisecond
_NUMBERED_NEAR = 64  # pids that a machine hands out between two processes of one pool
_STARTED_TOGETHER = 60.0  # seconds: processes of one pool are started in one go
_NEAR_THE_END = 120.0  # seconds: a pool without its worker fails, or is ended by hand, soon
_BEFORE = 2.0  # and have been born a sample earlier than first seen


def same_or_below(path: str | None, cgroups: tuple[str, ...]) -> bool:
    """Whether the kernel's ``path`` is one of ours or inside it; in a container ours is only its end."""
    if path is None:
        return False
    return any((path + "/").find(ours + "/") >= 0 for ours in cgroups)


@dataclass(frozen=True, slots=True)
class JobProcesses:
    leader: int | None
    started: float
    processes: Mapping[int, ProcessSeen]
    cgroups: tuple[str, ...]
    own_counter_flat: bool  # the job's cgroup counts kills, and counted none
    pids_comparable: bool  # the kernel prints pids of the first namespace; in a container ours are others
    started_in: str | None = None  # the memory cgroup, where the job has none of its own

    @classmethod
    def of(cls, case: CaseFile, proc: str) -> JobProcesses:
        try:
            comparable = os.readlink(f"{proc}/self/ns/pid") == _INIT_PID_NAMESPACE
        except OSError:
            comparable = True  # no namespaces in this kernel
        flat = case.moved.memcg_oom_kill == 0
        return cls(
            case.samples.leader,
            case.exit.started or 0.0,
            case.samples.processes,
            case.limits.cgroups,
            flat,
            comparable,
            case.limits.started_in,
        )

    def owns(self, pid: int, when: float) -> bool:
        """By pid and time: numbers are used again."""
        if not self.pids_comparable:
            return False
        slack = drift(when)
        seen = self.processes.get(pid)
        if seen is not None and seen.first - _BEFORE - slack <= when <= seen.last + _AFTER + slack:
            return True
        return pid == self.leader and when >= self.started - _BEFORE - slack

    def may_own(self, kill: KernelKill, end: float | None) -> bool:
        """A worker of a pool may live and die between two samples: called like the job's own, numbered among them, and
        killed soon after one of those began or shortly before the end, and in the cgroup that the job was started in, or below.
        Where it has one of its own, that decides."""
        if self.cgroups or not self.pids_comparable or kill.time < self.started - _STARTING:
            return False
        place = f"{(self.started_in or '').rstrip('/')}/"  # in a container it is the end of what the kernel prints
        if kill.task_memcg and place not in f"{kill.task_memcg}/":
            return False
        near = [
            seen
            for seen in self.processes.values()
            if seen.name == kill.name and 0 < abs(kill.pid - seen.pid) <= _NUMBERED_NEAR
        ]
        if near and (end is None or end - kill.time <= _NEAR_THE_END):
            return True
        slack = _BEFORE + drift(kill.time)
        return any(-slack <= kill.time - seen.first <= _STARTED_TOGETHER for seen in near)

    def owns_kill(self, kill: KernelKill) -> bool:
        if self.owns(kill.pid, kill.time):
            return True
        # The cgroup holds also for workers that lived shorter than one sample. An attempt before this one
        # may have had a cgroup of the same name: its kill stands before our start, and not in our counter.
        in_time = kill.time >= self.started - _STARTING and not self.own_counter_flat
        return in_time and same_or_below(kill.task_memcg, self.cgroups)


def kernel_facts(
    case: CaseFile, started: float, proc: str, kmsg: str, journalctl: str, suspended: float | None
) -> tuple[KernelLog, list[Missing]]:
    """What the kernel's log says of this run. ``suspended``: what the log's clock lacks."""
    # after a reboot the ring is another boot's; only a kept journal still has the lines
    boot = case.exit.run_boot_id.replace("-", "") if case.rebooted and case.exit.run_boot_id else None
    log = kernel_log.read(started, kmsg=kmsg, journalctl=journalctl, boot=boot, offset=suspended)
    if log.reason is not None:
        return KernelLog(), [Missing(log.source, log.reason, log.how_to_grant)]
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
    end = case.exit.status.boottime if case.exit.status is not None else None
    until = float("inf") if end is None else end + 5.0 + kernel_log.drift(end)
    kills, faults = read_kernel((line.time, line.text) for line in log.lines if line.time <= until)
    if case.moved.vmstat_oom_kill == 0:
        # a flat machine-wide counter: what kills the log shows were before this run, clocks being what they are
        kills = ()
    owned = [kill for kill in kills if ours.owns_kill(kill)]
    # the kill of a job that was killed itself would stand there under its own number
    killed = case.exit.status is not None and case.exit.status.signal == signal.SIGKILL
    owned += [
        replace(kill, sure=False)
        for kill in kills
        if kill not in owned and not killed and ours.may_own(kill, case.last_sign)
    ]
    pids = {kill.pid for kill in owned}
    kernel = KernelLog(
        complete=not log.overwritten and (ours.pids_comparable or bool(case.limits.cgroups)),
        our_kills=tuple(sorted(owned, key=lambda kill: kill.time)),
        other_kills=tuple(kill for kill in kills if kill.pid not in pids),
        our_faults=tuple(fault for fault in faults if ours.owns(fault.pid, fault.time)),
    )
    return kernel, missing
