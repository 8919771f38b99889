"""After an attempt has ended: another one, with which plan and after what wait; or the reason why not. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.plans.command_template import Template
from oomproof.plans.death_facts import DeathFacts
from oomproof.plans.plan import Plan, effective_batch
from oomproof.plans.smaller_plans import NoPlan, describe_change, next_plan
from oomproof.records import dataclass

# The first pause lets the dead job's memory come back; later ones are for whatever else takes it.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Retry:
    """``change``: what differs from the plan before, empty where nothing does. ``need``: bytes to wait for, None: no wait."""

    plan: Plan
    change: str
    why: str
    pause: float
    note: str = ""
    need: int | None = None
    gpu_need: int | None = None


@dataclass(frozen=True, slots=True)
class NoRetry:
    reason: str
    hint: str = ""


def decide(
    template: Template,
    plans: Sequence[Plan],
    facts: DeathFacts,
    retries: int,
    order: Sequence[str] = (),
) -> Retry | NoRetry:
    """``plans``: those of the attempts so far, in their order; ``retries``: how many there may be in all."""
    made = len(plans) - 1
    if facts.stopped:
        return NoRetry("it was stopped by a person")
    if facts.memory is None:
        return NoRetry("it did not run out of memory")
    if made >= retries:
        times = "once" if retries == 1 else f"{retries} times"
        return NoRetry(f"it was tried again {times} (--retry {retries})")
    pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 4**made)
    if facts.others:
        need = facts.held if facts.memory == "host" else None
        gpu_need = facts.gpu_wanted if facts.memory == "gpu" else None
        return Retry(plans[-1], "", facts.others, pause, need=need, gpu_need=gpu_need or None)
    smaller = next_plan(template, plans[-1], plans, facts, order, effective_batch(template, plans[0]))
    if isinstance(smaller, NoPlan):
        return NoRetry(smaller.reason, smaller.hint)
    note = smaller.note
    if facts.leak:
        note = "; ".join(filter(None, (note, "memory grew to the end: smaller settings may only delay it")))
    return Retry(smaller.plan, describe_change(template, plans[-1], smaller.plan), smaller.why, pause, note)
