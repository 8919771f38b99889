"""How a trial's run counts: a verdict in; done, out of memory, failed, stopped, or nothing learnt, out. Pure."""

from __future__ import annotations

from oomproof.diagnosis.verdict import Verdict
from oomproof.records import dataclass

_OWN_LIMIT = "oom-kill-memcg"


@dataclass(frozen=True, slots=True)
class Ending:
    outcome: str  # of sweep_trials.ENDS
    why: str = ""
    again: bool = False  # says nothing of the trial: another try
    where: str = ""  # which memory it died of
    bound: bool = False  # ... by its own doing


def ending_of(verdict: Verdict, *, asked_to_stop: bool, beside: int, at_own_limit: bool) -> Ending:
    """``asked_to_stop``: by the sweep. ``beside``: trials that ran at the same time. ``at_own_limit``: it was stopped for its
    own limit, not for the machine's sake."""
    kind = verdict.kind
    if asked_to_stop and not kind.good:
        return Ending("stopped", "stopped with the sweep", again=True)
    culprit = verdict.culprit
    # a trial beside it has no part in this: how many fit together is for the sweep to learn
    if kind.memory and culprit is not None and not (culprit.managed and beside):
        return Ending("failed", f"{kind.title}, but {culprit.called} filled the machine", again=True)
    if kind.memory:
        where = "gpu" if kind.gpu else "host"
        bound = beside == 0 or (where == "host" and (at_own_limit or verdict.cause == _OWN_LIMIT))
        return Ending("out-of-memory", verdict.headline, again=not bound, where=where, bound=bound)
    if verdict.cause == "finished" and not verdict.all_well:
        return Ending("out-of-memory", verdict.headline, where="host", bound=True)
    if verdict.cause == "finished":
        return Ending("done")
    if kind.from_outside:
        return Ending("failed", verdict.headline, again=True)
    if kind.stopped_by == "person":
        return Ending("stopped", verdict.headline)
    return Ending("failed", verdict.headline)
