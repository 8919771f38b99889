"""Which of a log's failures came first: the root of the death, not the last complaint about it."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.causes import cause_of
from oomproof.evidence.texts.finding import Finding

_BESIDE = 2  # ordinary lines between exceptions that are told together
_WENT_ON = 20  # ordinary lines after a traceback that show that its process did not die of it


def root(findings: Sequence[Finding]) -> Finding | None:
    """The finding to believe, None where the text shows no death."""
    return next((finding for finding in findings if finding.job.role == "root"), None)


def first_failure(chain: Sequence[Finding]) -> int | None:
    """The index of the root in one chain: failures with no progress between them, in order of appearance."""
    candidates = [index for index, finding in enumerate(chain) if finding.job.kind != "talk"]
    if not candidates:
        return None
    # 1. What the processes themselves printed comes before what others report about them, and both come
    #    before mere repetitions of an error (wrappers, "exit code 1").
    best = min(candidates, key=lambda index: (_tier(chain[index]), index))
    best = _specific_over_generic(chain, candidates, best)
    best = _fuller(chain, candidates, best)
    # 2. A rank that was killed, or crashed, explains the timeouts of its peers, even if they speak first.
    if chain[best].cause == "nccl":
        best = next((index for index in candidates if _killed_peer(chain[index])), best)
    # … and of what a launcher tells, what it calls the first failure comes first.
    if chain[best].job.kind == "summary":
        named = (
            i for i in candidates if chain[i].job.first_exit is not None and chain[i].cause != "other-error"
        )
        best = next(named, best)
    # 3. torchrun names the first death: after an abort, an ordinary exception elsewhere is not it.
    if cause_of(chain[best].cause).generic and any(finding.job.first_exit == -6 for finding in chain):
        best = next(
            (index for index in candidates if cause_of(chain[index].cause).echo and _tier(chain[index]) < 3),
            best,
        )
    # 4. Slurm cancels a step whose task died: where a death stands above, the cancelling follows from it.
    if chain[best].job.cancelled:
        above = [index for index in candidates if index < best]
        deaths = [i for i in above if cause_of(chain[i].cause).by_signal and _tier(chain[i]) <= 3]
        best = next(iter(deaths or _failed_tasks(chain, above, best)), best)
    # 5. Who says "I killed it for memory" explains a process that vanished.
    if cause_of(chain[best].cause).sign_of_kill or chain[best].cause == "segfault":
        best = next((index for index in candidates if cause_of(chain[index].cause).kill), best)
    return best


def _tier(finding: Finding) -> int:
    kind = finding.job.kind
    if kind == "wrapper" or (kind == "summary" and finding.cause == "other-error"):
        return 5
    if finding.strength < 0.3:
        return 4
    if kind == "summary":
        return 3
    if cause_of(finding.cause).echo or finding.job.echo:
        return 2
    return 1


def _specific_over_generic(chain: Sequence[Finding], candidates: Sequence[int], best: int) -> int:
    """A plain exception loses to a telling one that is chained to it (``queue.Empty``, then "worker killed"),
    that the same rank raised later, or that came after the program had visibly gone on."""
    first = chain[best]
    if not cause_of(first.cause).generic or _tier(first) != 1:
        return best
    after = [index for index in candidates if index > best and _tier(chain[index]) <= 2]
    if first.job.heard == "exception":  # a stray line; then the run was seen to go on, then it died
        seen = first.job.signs
        died = (
            i
            for i in candidates
            if i > best and cause_of(chain[i].cause).by_signal and chain[i].job.signs > seen
        )
        if (death := next(died, None)) is not None:
            return death
    for index in after:
        later = chain[index]
        gap = later.job.ordinary - first.job.ordinary
        same_rank = bool(later.job.rank) and later.job.rank == first.job.rank
        telling = not cause_of(later.cause).generic and later.cause != "interrupted"  # Ctrl-C comes after
        # a paste of messages without their tracebacks: what loads says that it failed, then why
        beside = first.job.heard == later.job.heard == "exception" and gap <= _BESIDE
        if telling and (later.job.chained or beside or (same_rank and _tier(later) == 1)):
            return index
        if gap >= _WENT_ON and _tier(later) == 1:
            return _specific_over_generic(chain, candidates, index)
    return best


def _failed_tasks(chain: Sequence[Finding], above: Sequence[int], cancelled: int) -> Sequence[int]:
    """A task of the step that failed by itself, what kept it from starting first. A whole job is cancelled by its owner."""
    if "*** STEP " not in chain[cancelled].text:
        return ()
    told = [i for i in above if chain[i].job.kind == "summary" and chain[i].cause == "other-error"]
    return told if any(chain[i].text.startswith("srun: error: ") for i in told) else ()


def _fuller(chain: Sequence[Finding], candidates: Sequence[int], best: int) -> int:
    """A title says "MemoryError", the lines below it of which kind and how much."""
    first = chain[best]
    if first.cause != "python-memory-error" or first.job.requested is not None or first.job.message:
        return best
    fuller = (
        i for i in candidates if chain[i].cause == "numpy-memory-error" and _tier(chain[i]) <= _tier(first)
    )
    return next(fuller, best)


def _killed_peer(finding: Finding) -> bool:
    cause = cause_of(finding.cause)
    return ((cause.by_signal and not cause.echo) or cause.killed_by == "engine") and _tier(finding) <= 3
