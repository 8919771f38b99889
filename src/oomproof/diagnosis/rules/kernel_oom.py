"""The kernel's OOM killer: was it, and whose memory was full: the job's own limit, one above it, the machine.

The job's ``oom_kill`` counter moves for every kernel kill of one of its processes, also when the whole
machine ran short (``__oom_kill_process`` counts in the victim's cgroup either way). It proves the kill; whose
limit it was is told by the log, by ``oom`` (v2: counted where the limit was hit), or by ``failcnt`` (v1) and
the headroom that was left.
"""

from __future__ import annotations

import signal

from oomproof.causes import RAISE_LIMIT, cause_of, kernel_kill
from oomproof.diagnosis.advice import what_is_smaller
from oomproof.diagnosis.death import Death, Headroom, death_of, headroom_at_end, shm_full, shm_left
from oomproof.diagnosis.memory_answer import MemoryAnswer, answer
from oomproof.diagnosis.stopping_actions import ended_by_us, explains_the_end, guard_stop, hung_after_kill
from oomproof.diagnosis.verdict import Certainty, Command, Steps, Victim, Weight, WeightedCause, steps
from oomproof.evidence.case_file import CaseFile, KernelKill
from oomproof.evidence.job_processes import same_or_below
from oomproof.records import dataclass
from oomproof.units import format_duration, format_size

_KERNEL_LOG = Weight(1000, "the kernel's log names a process of ours and whose limit it was")
_ALIKE = Weight(300, "the kernel's log names a process like those of the job, at the time of its end")
_OWN_LIMIT = Weight(1000, "the job's cgroup counted a kill and its own limit's failure")
_OWN_LIMIT_V1 = Weight(
    500,
    "a kill was counted and the limit was reached, the machine had memory available; v1 counts reached limits also where reclaim then helped",
)
_OWN_LIMIT_TIGHT = Weight(70, "a kill was counted, the limit reached, the machine was short too")
_MACHINE_TIGHT = Weight(30, "the same case, the other reading")
_LIMIT_ABOVE = Weight(
    70, "a kill was counted, the job's own limit was not it, the machine had memory available"
)
_MACHINE_SHORT = Weight(70, "a kill was counted, the job's own limit was not it, the machine was short")
_UNLIKELY = Weight(20, "the less likely of the two when only the machine's available memory decides")
_TOLERATED = Weight(
    30,
    "a worker was killed for memory, then the job failed with an error that does not speak of a lost worker",
)
_VMSTAT_TIGHT = Weight(60, "somebody was OOM-killed, we died of SIGKILL, memory was short")
_VMSTAT_UNKNOWN = Weight(30, "the same, and nobody knows how much memory was left")
_VMSTAT_AMPLE = Weight(5, "the same, but memory was ample: the kill counted may be anybody's")

_OWN, _ABOVE, _MACHINE = "own", "above", "machine"


@dataclass(frozen=True, slots=True)
class _Reading:
    whose: str
    weight: float
    certainty: Certainty
    because: str


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None:
        return _unseen(case)
    if not death.failed:
        return []  # finished: the rule of that name tells of killed workers
    headroom = headroom_at_end(case)
    # where we ended it, a process that only looks like one of its own explains nothing
    if case.kernel_killed or (case.may_be_kernel_killed and not ended_by_us(case)):
        return [_claim(case, death, reading) for reading in _whose(case, death, headroom)]
    if death.signal == signal.SIGKILL and (case.moved.vmstat_oom_kill or 0) > 0:
        return _from_vmstat(case, death, headroom)
    return []


def _whose(case: CaseFile, death: Death, headroom: Headroom) -> list[_Reading]:
    readings = _by_log(case) or _by_counters(case, headroom)
    if death.signal == signal.SIGKILL or explains_the_end(case):
        return readings
    told = "; but the job then ended with an error that does not speak of a lost process"
    return [
        _Reading(reading.whose, _TOLERATED * reading.weight / 1000, "possible", reading.because + told)
        for reading in readings
    ]


def _by_log(case: CaseFile) -> list[_Reading]:
    kill = next(
        (other_kill for other_kill in reversed(case.kernel.our_kills) if other_kill.constraint is not None),
        None,
    )
    if kill is None:
        return []
    if not kill.by_limit:
        whose = _MACHINE
    elif kill.oom_memcg is None or not case.limits.cgroups:
        # the rate-limited line that names the cgroup is missing, or the job has none of its own
        whose = _OWN if case.limits.cgroups and _own_limit_failed(case) else _ABOVE
    else:
        whose = _OWN if same_or_below(kill.oom_memcg, case.limits.cgroups) else _ABOVE
    if not kill.sure:
        because = "the kernel's log names a process called and numbered like this job's, which lived between two samples"
        return [_Reading(whose, _ALIKE, "likely", because)]
    return [_Reading(whose, _KERNEL_LOG, "proven", "the kernel's log names the process")]


def _own_limit_failed(case: CaseFile) -> bool:
    moved = case.moved
    if moved.memcg_oom is not None:
        return moved.memcg_oom > 0
    return (moved.memcg_failcnt or 0) > 0


def _by_counters(case: CaseFile, headroom: Headroom) -> list[_Reading]:
    counted = "the job's cgroup counted the kill"
    moved = case.moved
    if (moved.memcg_oom or 0) > 0:
        return [_Reading(_OWN, _OWN_LIMIT, "proven", counted + " and the failure of its own limit")]
    if moved.memcg_oom is None and _own_limit_failed(case):  # cgroup v1
        reached = f"{counted} and {moved.memcg_failcnt} times that its limit was reached"
        if headroom.host_ample:
            return [_Reading(_OWN, _OWN_LIMIT_V1, "proven", f"{reached}; the machine had memory available")]
        return [
            _Reading(_OWN, _OWN_LIMIT_TIGHT, "likely", f"{reached}; but {headroom.phrase}"),
            _Reading(_MACHINE, _MACHINE_TIGHT, "possible", f"{counted}; {headroom.phrase}"),
        ]
    flat = f"{counted}, its own limit did not fail; {headroom.phrase}"
    if headroom.host_ample is False:  # of a container's memory: its limit is what was full
        full, other = (_ABOVE, _MACHINE) if case.samples.in_container else (_MACHINE, _ABOVE)
        return [
            _Reading(full, _MACHINE_SHORT, "likely", flat),
            _Reading(other, _UNLIKELY, "possible", flat),
        ]
    certainty: Certainty = "likely" if headroom.host_ample else "possible"
    return [
        _Reading(_ABOVE, _LIMIT_ABOVE, certainty, flat),
        _Reading(_MACHINE, _UNLIKELY, "possible", flat),
    ]


def _from_vmstat(case: CaseFile, death: Death, headroom: Headroom) -> list[WeightedCause]:
    """Only the machine-wide counter moved. It counts anybody's kill: likely at most."""
    if case.kernel.complete or case.moved.memcg_oom_kill == 0:
        return []  # the log names others, or the job's own counter says it was none of ours
    counted = "the machine's OOM-kill counter moved while the job ran, but it counts everybody's"
    because = f"{counted}; {headroom.phrase}"
    if headroom.host_ample is False:
        full = _ABOVE if case.samples.in_container else _MACHINE
        return [_claim(case, death, _Reading(full, _VMSTAT_TIGHT, "likely", because))]
    weight = _VMSTAT_AMPLE if headroom.host_ample else _VMSTAT_UNKNOWN
    whose = _ABOVE if headroom.host_ample or case.samples.in_container else _MACHINE
    return [_claim(case, death, _Reading(whose, weight, "possible", because))]


def _unseen(case: CaseFile) -> list[WeightedCause]:
    """No exit status, but the log names one of us: that is how keeper and job went."""
    if not case.kernel.our_kills or case.exit.keeper_alive:
        return []
    reading = _by_log(case)
    death = Death(signal.SIGKILL, None, False)
    return [_claim(case, death, other) for other in reading]


def _claim(case: CaseFile, death: Death, reading: _Reading) -> WeightedCause:
    kill = case.kernel.our_kills[-1] if case.kernel.our_kills else None
    limit = (kill.limit if kill else None) or case.limits.limit or case.limits.settings.limit
    # at its own limit it held the most it ever did
    held = case.samples.job_peak if reading.whose == _OWN else _held(case, kill)
    cause = "oom-kill-memcg"
    if reading.whose == _MACHINE:
        cause = kernel_kill(kill.constraint if kill else None) or "oom-kill-global"
    certain = reading.certainty if death.direct or reading.certainty != "proven" or kill else "likely"
    if not death.direct and (case.moved.memcg_oom_kill or 0) > 0:
        certain = reading.certainty  # the counter proves what the shell's number only suggests
    why = reading.because + f"; it {death.phrase}"
    if hung_after_kill(case):
        end = case.exit.status.boottime if case.exit.status else None
        later = f" {format_duration(end - kill.time)} later" if kill is not None and end is not None else ""
        why += f"{later}, from outside: what waits for a killed process (a pool's map) can never finish"
    if (stop := guard_stop(case)) is not None:
        why += f"; the guard had sent {stop.action} as well ({stop.why or 'memory'}), the kernel came first"
    if story := _shared_memory(case, cause):
        why += f"; {story}"
    memory = answer(case, limit if reading.whose == _OWN else None, machine=reading.whose != _OWN)
    why = "; ".join((why, *memory.told))
    guardless = any(event.kind == "guard-lost" for event in case.keeper_events)
    if guardless:
        why += "; the guard had been lost before: the job was unguarded"
    return WeightedCause(
        cause,
        reading.weight,
        certain,
        _headline(case, kill, death, reading.whose, limit, held),
        why,
        memory.next if reading.whose != _ABOVE or memory.culprit else _raise_above(case, memory),
        evidence=case.evidence_from(
            "exit",
            "counter.",
            "kernel.kill",
            "sample.host",
            "sample.job",
            "sample.peak",
            "sample.growth",
            "sample.twin",
            "other.",
            "agent.census",
        ),
        test="the line 'oom-kill:constraint=' in the kernel log: sudo dmesg | grep -A1 oom-kill:",
        victim=Victim.of(kill) if kill else _leader(case, death),
        remedies=memory.remedies,
        culprit=memory.culprit,
    )


def _raise_above(case: CaseFile, memory: MemoryAnswer) -> Steps:
    """Or the same command, smaller, where its line says what to change."""
    typed = [
        remedy for remedy in memory.remedies if remedy.change is not None and remedy.change.kind == "argument"
    ]
    smaller = next((remedy.command for remedy in typed if remedy.command is not None), None)
    return steps(
        f"{RAISE_LIMIT}, or ",
        Command(smaller) if smaller else f"load less at a time: {what_is_smaller(case)}",
    )


def _shared_memory(case: CaseFile, cause: str) -> str | None:
    """A full /dev/shm beside a kill is no second cause: its pages are memory, and count against the limit."""
    failure = case.output.failure
    output_verdict = failure is not None and cause_of(failure.cause).shared_memory
    if not output_verdict and not shm_full(case):
        return None
    where = "the job's limit" if cause == "oom-kill-memcg" else "the machine's memory"
    size = (
        f" ({format_size(shm_left(case))} of {format_size(case.samples.shm_total)} free)"
        if case.samples.shm_total
        else ""
    )
    seen = (
        "its output tells of a bus error in shared memory"
        if output_verdict
        else f"/dev/shm was full too{size}"
    )
    return f"{seen}: one cause, because pages in /dev/shm count against {where}"


def _held(case: CaseFile, kill: KernelKill | None) -> int | None:
    """What the job held: the larger of the last sample and the victim's own resident anon and shmem."""
    known = []
    if case.samples.job is not None:
        known.append(case.samples.job.used)
    if kill is not None and kill.anon_rss is not None:
        known.append(kill.anon_rss + (kill.shmem_rss or 0))
    return max(known, default=None)


def _headline(
    case: CaseFile, kill: KernelKill | None, death: Death, whose: str, limit: int | None, held: int | None
) -> str:
    who = "the job"
    if death.signal != signal.SIGKILL or (
        kill and case.samples.leader is not None and kill.pid != case.samples.leader
    ):
        who = f"a process of the job ({kill.name}, pid {kill.pid})" if kill else "a process of the job"
    # a sample is up to a second old, in which a job grows by gigabytes: only the kernel saw the last moment
    verb = "holding" if kill is not None and kill.anon_rss is not None else "last seen holding"
    holding = f", {verb} {format_size(held)}" if held else ""
    if whose == _OWN:
        full = f"the job's own limit of {format_size(limit)} was full" if limit else "its own limit was full"
    elif whose == _ABOVE:
        path = kill.oom_memcg if kill and kill.oom_memcg else "a cgroup above the job"
        size = f" ({format_size(kill.limit)})" if kill and kill.limit else ""
        full = f"the limit of {path}{size} was full, not the job's own"
    elif kill and kill.constraint in ("CONSTRAINT_CPUSET", "CONSTRAINT_MEMORY_POLICY"):
        full = "the memory nodes it is bound to were full"
    else:
        full = "the whole machine was out of memory"
    return f"out of memory: the kernel killed {who}{holding}; {full}"


def _leader(case: CaseFile, death: Death) -> Victim | None:
    if case.samples.leader is None or death.signal != signal.SIGKILL or not death.direct:
        return None
    seen = case.samples.processes.get(case.samples.leader)
    return Victim(case.samples.leader, seen.name if seen else None)
