"""What of a death decides how to go on: whose memory was full, by how much, and whether the job itself had filled it. Pure."""

from __future__ import annotations

from typing import Literal

from oomproof.diagnosis.advice import died_loading
from oomproof.diagnosis.gpu_shortage import crowding, same_failure
from oomproof.diagnosis.memory_answer import allowed_bytes
from oomproof.diagnosis.smaller_command import worker_figures
from oomproof.diagnosis.stopping_actions import guard_stop
from oomproof.diagnosis.verdict import Verdict
from oomproof.evidence.case_file import Action, CaseFile
from oomproof.evidence.gpu_oom import GpuOom
from oomproof.leaf.action_kinds import INTERRUPT, KILL, REQUEST, SIGNAL, TERM
from oomproof.records import dataclass
from oomproof.units import format_size

Memory = Literal["host", "shm", "gpu"]

_LIKELY = 0.5  # a verdict that is more probably something else is none to act on
_NEARLY_ALL = 0.8  # of what the job held
_GROWING = 1 << 20  # bytes a second
_FIXED = ("parameter", "gradient", "optimizer", "buffer")  # what no batch changes
_STOPPED = (INTERRUPT, REQUEST, TERM, KILL)  # by the user
_SIGNALS = ("SIGINT", "SIGTERM", "SIGQUIT", "SIGHUP", "Ctrl-C")


@dataclass(frozen=True, slots=True)
class DeathFacts:
    """Bytes; None or 0 where nobody knows."""

    memory: Memory | None  # which was full; None: it did not run out of memory
    phase: str = "unknown"
    others: str = ""  # who filled it, where that was not this job
    stopped: bool = False  # a person ended it, or wanted to
    held: int | None = None
    allowed: int | None = None
    workers: int = 0  # that lived at the end
    worker_bytes: int = 0  # each, of its own
    loading: bool = False  # no batch had been asked for yet
    alone: bool = False  # no worker was ever seen, and one process held nearly all
    growing: bool = False  # to the end: what was measured is not all it wanted
    leak: bool = False  # from step to step: smaller settings only delay it
    gpu_fixed: int | None = None  # what no batch changes
    gpu_wanted: int = 0  # at least
    gpu_capacity: int = 0  # what it could have had
    steps: int | None = None  # made before
    fitting_batch: int | None = None  # of the generation in which it happened
    fitting_new_tokens: int | None = None

    @property
    def worker_share(self) -> float | None:
        """Of what the job held; None where it is not known."""
        if not self.held or not self.worker_bytes:
            return None
        return min(1.0, self.workers * self.worker_bytes / self.held)


def facts_of(case: CaseFile, verdict: Verdict) -> DeathFacts:
    stopped = verdict.kind.stopped_by == "person" or any(map(_by_a_person, case.actions))
    if not verdict.kind.memory or verdict.probability < _LIKELY:
        return DeathFacts(None, verdict.phase, stopped=stopped)
    stop = guard_stop(case)
    oom = case.agent.gpu_oom
    if verdict.cause != "cuda-oom" or (oom is not None and not same_failure(oom, verdict.gpu)):
        oom = None
    held = _held(case, verdict)
    workers = worker_figures(case, held)
    call = oom.generating if oom is not None else None
    return DeathFacts(
        memory="gpu" if verdict.kind.gpu else "shm" if verdict.kind.shared_memory else "host",
        phase=verdict.phase,
        others=_others(verdict, stop, oom),
        stopped=stopped,
        held=held,
        allowed=_allowed(case, verdict, stop),
        workers=workers.count,
        worker_bytes=workers.each,
        loading=died_loading(case),
        alone=not workers.count and _alone(case, held),
        growing=case.samples.job is None or case.samples.job.rate > _GROWING,
        leak=verdict.growth is not None,
        gpu_fixed=oom.held(*_FIXED) if oom is not None and oom.owners else None,
        gpu_wanted=_gpu_wanted(verdict, oom),
        gpu_capacity=_gpu_capacity(verdict, oom),
        steps=verdict.step,
        fitting_batch=call.fitting_batch or None if call is not None else None,
        fitting_new_tokens=call.fitting_new_tokens or None if call is not None else None,
    )


def _by_a_person(action: Action) -> bool:
    if action.by != "user":
        return False
    return action.action in _STOPPED or (action.action == SIGNAL and action.why in _SIGNALS)


def _others(verdict: Verdict, stop: Action | None, oom: GpuOom | None) -> str:
    """Who it was; the guard may know only that it was not this job."""
    if verdict.culprit is not None:
        who = verdict.culprit
        return f"{who.called} (pid {who.pid}) grew by {format_size(who.grew_bytes)}"
    if verdict.cause == "stopped-by-guard" and stop is not None and stop.others_growth:
        return "others filled the machine"
    crowd = crowding(oom) if oom is not None else None
    if oom is None or crowd is None:
        return ""
    who_held = oom.neighbours[0] if oom.neighbours else None
    named = f" (pid {who_held.pid})" if who_held is not None else ""
    return f"another job{named} held {format_size(crowd[1])} of the card that this one lacked"


def _alone(case: CaseFile, held: int | None) -> bool:
    seen = case.samples.processes.values()
    largest = max((process.used for process in seen), default=0)
    return (
        held is not None
        and largest > _NEARLY_ALL * held
        and all(process.role != "worker" for process in seen)
    )


def _at_limit(verdict: Verdict, stop: Action | None) -> bool:
    """Whether it was the job's own limit that was full."""
    return verdict.cause == "oom-kill-memcg" or (stop is not None and stop.scope == "limit")


def _held(case: CaseFile, verdict: Verdict) -> int | None:
    sizes = [
        size
        for size in (case.samples.job.used if case.samples.job else None, case.samples.job_peak)
        if size is not None
    ]
    if verdict.cause == "oom-kill-memcg" and case.limits.settings.limit is not None:
        sizes.append(case.limits.settings.limit)  # the last sample is up to a second old; the limit was full
    return max(sizes, default=None)


def _allowed(case: CaseFile, verdict: Verdict, stop: Action | None) -> int | None:
    at_limit = _at_limit(verdict, stop)
    return allowed_bytes(case, case.limits.settings.limit if at_limit else None, machine=not at_limit)


def _gpu_wanted(verdict: Verdict, oom: GpuOom | None) -> int:
    if oom is not None:
        return oom.allocated + (oom.requested or 0)
    gpu = verdict.gpu
    return (gpu.allocated_bytes or 0) + (gpu.requested_bytes or 0) if gpu is not None else 0


def _gpu_capacity(verdict: Verdict, oom: GpuOom | None) -> int:
    """Its tensors, and what the driver would still have given; gaps between tensors do not count."""
    if oom is not None:
        return oom.allocated + oom.reach
    gpu = verdict.gpu
    if gpu is None or gpu.allocated_bytes is None or gpu.free_bytes is None:
        return 0
    return gpu.allocated_bytes + gpu.free_bytes
