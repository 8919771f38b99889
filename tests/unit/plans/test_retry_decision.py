"""Again or not: only after a death of memory, never for a person's stop, and unchanged where it was somebody else's growth."""

from __future__ import annotations

import pytest

from oomproof.plans.death_facts import DeathFacts
from oomproof.plans.knobs import template_of
from oomproof.plans.plan import Plan
from oomproof.plans.smaller_plans import NoRetry, Retry, decide, first_plan

COMMAND = ["python", "t.py", "--batch-size", "64", "--accum", "2", "--workers", "16"]
TEMPLATE = template_of(COMMAND)
FIRST = first_plan(TEMPLATE, COMMAND)
HOST = DeathFacts("host", held=9 << 30)


def after(facts: DeathFacts, *plans: Plan, retries: int = 3) -> Retry | NoRetry:
    return decide(TEMPLATE, plans or (FIRST,), facts, retries)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (DeathFacts(None), "not run out of memory"),
        (DeathFacts("host", stopped=True), "person"),
        (DeathFacts(None, stopped=True), "person"),
    ],
)
def test_never(facts: DeathFacts, says: str) -> None:
    decision = after(facts)
    assert isinstance(decision, NoRetry) and says in decision.reason


def test_as_often_as_was_asked_for() -> None:
    plans = [FIRST]
    for _ in range(3):
        decision = after(HOST, *plans)
        assert isinstance(decision, Retry) and decision.plan not in plans
        plans.append(decision.plan)
    last = after(HOST, *plans)
    assert isinstance(last, NoRetry) and "3 times" in last.reason
    assert isinstance(after(HOST, FIRST, retries=0), NoRetry)


def test_it_backs_off() -> None:
    pauses = []
    plans = [FIRST]
    for _ in range(6):
        decision = after(HOST, *plans, retries=9)
        assert isinstance(decision, Retry)
        pauses.append(decision.pause)
        plans.append(decision.plan)
    assert pauses == sorted(pauses) and pauses[0] == 1.0 and pauses[-1] == 60.0


def test_anothers_growth_changes_no_plan_and_is_waited_out() -> None:
    decision = after(DeathFacts("host", held=9 << 30, others="load_model.py (pid 9) grew by 4 GiB"))
    assert isinstance(decision, Retry)
    assert decision.plan == FIRST and not decision.change and decision.need == 9 << 30
    again = after(DeathFacts("gpu", gpu_wanted=20 << 30, others="another job"), FIRST, FIRST)
    assert (
        isinstance(again, Retry) and again.plan == FIRST and again.gpu_need == 20 << 30 and again.need is None
    )


def test_nothing_left_is_a_reason_with_a_hint() -> None:
    command = ["python", "t.py", "--workers", "0", "--batch-size", "1", "--accum", "64"]
    template = template_of(command)
    decision = decide(template, [first_plan(template, command)], HOST, 3)
    assert (
        isinstance(decision, NoRetry) and "nothing smaller" in decision.reason and "--knob" in decision.hint
    )


def test_a_leak_is_named_as_what_it_is() -> None:
    decision = after(DeathFacts("host", leak=True))
    assert isinstance(decision, Retry) and "delay" in decision.note
