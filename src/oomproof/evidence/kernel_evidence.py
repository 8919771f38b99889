"""What the kernel said while a job ran: its log's lines in, kills and faults with their times out."""

from __future__ import annotations

from collections.abc import Iterable

from oomproof.causes import cause_of
from oomproof.evidence.case_file import KernelFault, KernelKill
from oomproof.evidence.texts.finding import Finding

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
