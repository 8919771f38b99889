"""The kills that a system's log tells as deaths: one for each job and shortage, whoever else tells it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.causes import cause_of
from oomproof.diagnosis.death_patterns import Ending, MemoryAtEnd
from oomproof.diagnosis.kernel_dump import job_of
from oomproof.evidence.texts.finding import Finding
from oomproof.evidence.texts.kernel_report import holds_one_job
from oomproof.evidence.texts.kill_history import (
    SAME_KILL,
    JobLog,
    may_explain,
    oldest_first,
    told_once,
    wall_of,
)
from oomproof.evidence.texts.task_jobs import family_of
from oomproof.evidence.texts.text_case import TextCase
from oomproof.records import replace


def is_history(case: TextCase) -> bool:
    """A kernel's or a journal's log that tells of kills: not the log of one run."""
    return case.progress.step is None and any(
        cause_of(finding.cause).kill and finding.victim is not None for finding in case.system
    )


def kill_endings(findings: Sequence[Finding]) -> list[Ending]:
    """Oldest first. A worker and its parent, or a whole cgroup, killed in one shortage are one death."""
    deaths: list[list[Finding]] = []
    for finding in oldest_first(told_once(findings)):
        if not cause_of(finding.cause).kill or finding.victim is None or finding.victim.pid is None:
            continue
        last = next((death for death in reversed(deaths) if _one_death(death[-1], finding)), None)
        if last is not None:
            last.append(finding)
        else:
            deaths.append([finding])
    return [_ending(max(death, key=_held)) for death in deaths]


def _one_death(first: Finding, later: Finding) -> bool:
    if first.seconds is None or later.seconds is None or not 0 <= later.seconds - first.seconds <= SAME_KILL:
        return False
    mine, victim = job_of(first), later.victim
    if mine is not None and victim is not None and victim.pid in mine.pids:
        return True
    where, other = (finding.kernel.task_memcg or finding.cgroup for finding in (first, later))
    return where == other and holds_one_job(where)


def _held(finding: Finding) -> int:
    job, victim = job_of(finding), finding.victim
    own = (victim.anon_rss or 0) + (victim.shmem_rss or 0) if victim is not None else 0
    return job.held if job is not None and len(job.pids) > 1 else own or finding.guard.held or 0


def _ending(finding: Finding) -> Ending:
    victim, wall = finding.victim, wall_of(finding)
    assert victim is not None
    name = victim.name or "?"
    return Ending(
        label=f"{name} ({victim.pid})",
        cause=finding.cause,
        wall=wall,
        since_boot=finding.seconds if wall is None else None,
        memory=MemoryAtEnd(_held(finding) or None, finding.kernel.machine.free),
        job=family_of(name),
    )


def explained(
    logs: Sequence[tuple[Ending, JobLog]], kills: Sequence[Finding]
) -> tuple[list[Ending], list[Finding]]:
    """(logs' endings, with the kill or crash that ended each; those that are of none of them). A date ties them, or that
    there is one killed job and one kill, as for `why` of the two."""
    left = list(kills)
    endings = []
    killed = [ending for ending, _ in logs if cause_of(ending.cause).unexplained]
    alone = len(killed) == 1 and len(kill_endings(kills)) == 1
    for ending, log in logs:
        dated = [kill for kill in left if wall_of(kill) is not None and log.told is not None]
        possible = left if alone and cause_of(ending.cause).unexplained else dated
        mine = [kill for kill in possible if not cause_of(kill.cause).good and may_explain(kill, log)]
        if ending.died and mine:
            kill = min(mine, key=lambda kill: abs((wall_of(kill) or 0.0) - (log.told or 0.0)))
            left = [other for other in left if other not in mine]
            memory = ending.memory or _ending(kill).memory
            ending = replace(ending, cause=kill.cause, wall=wall_of(kill), memory=memory)
        endings.append(ending)
    return endings, left
