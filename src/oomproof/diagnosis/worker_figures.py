"""What each worker of a job held at its end: by the last samples, else by the list of tasks that the kernel printed as it killed. Pure."""

from __future__ import annotations

from oomproof.evidence.case_file import CaseFile
from oomproof.records import dataclass

_SAME_SAMPLE = 2.0  # seconds; loaders start new workers every epoch, only those of the end count
_SEEN = 0.5  # of what the job held
_SAME_SHORTAGE = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """``count``: that lived at the end. ``each``: bytes of its own, 0: not known. ``held``: by the whole job at that moment."""

    count: int = 0
    each: int = 0
    held: int | None = None


def worker_figures(case: CaseFile, held: int | None) -> WorkerFigures:
    """``held``: what the job is known to have held. Samples tell pages of their own exactly, the kernel's list by an estimate, in which some
    may not be full yet; but a job that dies within a second of its workers' start was never sampled with them."""
    sampled = _sampled(case, held)
    return sampled if sampled.each else _of_kernel(case) or sampled


def _sampled(case: CaseFile, held: int | None) -> WorkerFigures:
    """Of workers that were seen before they had filled, nobody knows: what was seen of all processes is then far from what the job held."""
    newest = max((process.last for process in case.processes.values()), default=0.0)
    alive = [process for process in case.processes.values() if process.last >= newest - _SAME_SAMPLE]
    workers = [process for process in alive if process.role == "worker"]
    shares = [worker.share for worker in workers if worker.share is not None]
    each = sum(shares) // len(shares) if shares and len(shares) == len(workers) else 0
    seen = sum(process.used for process in alive)
    known = held is None or seen >= _SEEN * held
    return WorkerFigures(len(workers), each if known else 0, case.job.used if case.job is not None else None)


def _of_kernel(case: CaseFile) -> WorkerFigures | None:
    """By the reports of the last shortage: the kernel takes workers one by one. Its first list shows all of them, a later one how large they
    became."""
    kills = [kill for kill in case.our_kills if kill.sure]
    last = max((kill.time for kill in kills), default=0.0)
    jobs = [kill.job for kill in kills if kill.job is not None and last - kill.time <= _SAME_SHORTAGE]
    first = max(jobs, key=lambda job: job.workers, default=None)
    if first is None or not first.workers:
        return None
    each = max(job.each for job in jobs)
    return WorkerFigures(first.workers, each, max(first.held, first.workers * each))
