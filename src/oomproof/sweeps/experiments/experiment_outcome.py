"""How an experiment counts: a verdict in; died of memory, lived, or failed for another reason out."""

from __future__ import annotations

from oomproof.diagnosis.verdict import Verdict
from oomproof.sweeps.experiments.experiment_plan import DIED, FAILED, LIVED, Outcome


def outcome_of(verdict: Verdict, timed_out: bool) -> tuple[Outcome, str]:
    """(outcome, in words). ``timed_out``: ended by us, because its time was over."""
    kind = verdict.kind
    if kind.memory and verdict.culprit is not None:
        return FAILED, f"{kind.title}, but {verdict.culprit.called} filled the machine"
    if kind.memory:
        return DIED, kind.title
    if verdict.cause == "finished" and not verdict.all_well:
        return DIED, "finished, but the kernel killed one of its processes"
    if timed_out:
        return LIVED, "alive when --max-time was over"
    if verdict.cause == "finished":
        return LIVED, kind.title
    return FAILED, verdict.headline
