"""Which of a log's failures came first: the root of the death, not the last complaint about it."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.evidence.texts.finding import Finding

# Ends of a process that are seldom a cause in themselves: the peers of a rank that died, an abort after
# an error was already printed, connections that broke because the other side had gone.
_ECHOES = frozenset(("nccl", "abort"))
# What a kill for memory looks like from inside the job. When the engine, or the kernel, says that it
# killed for memory, that line explains these.
_EXPLAINED_BY_A_KILL = frozenset((
    "dataloader-killed", "killed-unknown", "bus-error", "shm-exhausted", "nccl", "interrupted", "abort", "other-error", "segfault",
))  # fmt: skip
_KILLS_FOR_MEMORY = frozenset(("slurm-oom", "ray-oom", "oom-kill-memcg"))
_DIED = frozenset(("segfault", "bus-error", "abort", "killed-unknown"))
_GENERIC = frozenset(("other-error", "assert"))
_WENT_ON = 20  # ordinary lines after a traceback that show that its process did not die of it


def root(findings: Sequence[Finding]) -> Finding | None:
    """The finding to believe, None where the text shows no death."""
    return next((finding for finding in findings if finding.job.role == "root"), None)


def first_failure(chain: Sequence[Finding]) -> int | None:
    """The index of the root in one chain: failures with no progress between them, in order of appearance."""
    candidates = [index for index, each in enumerate(chain) if each.job.kind != "talk"]
    if not candidates:
        return None
    # 1. What the processes themselves printed comes before what others report about them, and both come
    #    before mere repetitions of an error (wrappers, "exit code 1").
    best = min(candidates, key=lambda index: (_tier(chain[index]), index))
    best = _specific_over_generic(chain, candidates, best)
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
    if chain[best].cause in _GENERIC and any(each.job.first_exit == -6 for each in chain):
        best = next(
            (index for index in candidates if chain[index].cause in _ECHOES and _tier(chain[index]) < 3), best
        )
    # 4. Slurm cancels a step whose task died: where a death stands above, the cancelling follows from it.
    if chain[best].job.cancelled:
        best = next(
            (i for i in candidates if i < best and chain[i].cause in _DIED and _tier(chain[i]) <= 3), best
        )
    # 5. Who says "I killed it for memory" explains a process that vanished.
    if chain[best].cause in _EXPLAINED_BY_A_KILL:
        best = next((index for index in candidates if chain[index].cause in _KILLS_FOR_MEMORY), best)
    return best


def _tier(finding: Finding) -> int:
    kind = finding.job.kind
    if kind == "wrapper" or (kind == "summary" and finding.cause == "other-error"):
        return 5
    if finding.strength < 0.3:
        return 4
    if kind == "summary":
        return 3
    if finding.cause in _ECHOES or finding.job.echo:
        return 2
    return 1


def _specific_over_generic(chain: Sequence[Finding], candidates: Sequence[int], best: int) -> int:
    """A plain exception loses to a telling one that is chained to it (``queue.Empty``, then "worker killed"),
    that the same rank raised later, or that came after the program had visibly gone on."""
    first = chain[best]
    if first.cause not in _GENERIC or _tier(first) != 1:
        return best
    after = [index for index in candidates if index > best and _tier(chain[index]) <= 2]
    if first.job.heard == "exception":  # a stray line; then the run was seen to go on, then it died
        seen = first.job.signs
        died = (i for i in candidates if i > best and chain[i].cause in _DIED and chain[i].job.signs > seen)
        if (death := next(died, None)) is not None:
            return death
    for index in after:
        later = chain[index]
        gap = later.job.ordinary - first.job.ordinary
        same_rank = bool(later.job.rank) and later.job.rank == first.job.rank
        if later.cause not in _GENERIC and (later.job.chained or (same_rank and _tier(later) == 1)):
            return index
        if gap >= _WENT_ON and _tier(later) == 1:
            return _specific_over_generic(chain, candidates, index)
    return best


def _killed_peer(finding: Finding) -> bool:
    return (
        finding.cause in ("killed-unknown", "segfault", "bus-error", "slurm-oom", "ray-oom")
        and _tier(finding) <= 3
    )
