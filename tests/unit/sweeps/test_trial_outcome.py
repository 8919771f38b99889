"""How a verdict counts for a trial."""

from __future__ import annotations

import pytest

from oomproof.diagnosis.verdict import Culprit, RankedCause, Verdict
from oomproof.sweeps.sweep_loop import ending_of


def verdict(cause: str, **fields: object) -> Verdict:
    return Verdict("r", 1, cause, "proven", 1.0, f"because of {cause}", "why", (), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cause", "outcome", "again"),
    [
        ("finished", "done", False),
        ("other-error", "failed", False),
        ("nan", "failed", False),
        ("oom-kill-memcg", "out-of-memory", False),
        ("stopped-by-guard", "out-of-memory", False),
        ("cuda-oom", "out-of-memory", False),
        ("machine-down", "failed", True),
        ("guard-lost", "failed", True),
        ("killed-unknown", "failed", True),
        ("interrupted", "failed", True),
        ("stopped-by-user", "stopped", False),
    ],
)
def test_alone_on_the_machine(cause: str, outcome: str, again: bool) -> None:
    ending = ending_of(verdict(cause), asked_to_stop=False, beside=0, at_own_limit=False)
    assert (ending.outcome, ending.again) == (outcome, again)
    assert ending.bound == (outcome == "out-of-memory")
    assert ending.where == {"cuda-oom": "gpu"}.get(cause, "host" if outcome == "out-of-memory" else "")


def test_beside_others_only_its_own_limit_is_its_own_doing() -> None:
    def bound(cause: str, at_own_limit: bool) -> bool:
        return ending_of(verdict(cause), asked_to_stop=False, beside=1, at_own_limit=at_own_limit).bound

    assert bound("oom-kill-memcg", False) and bound("stopped-by-guard", True)
    assert not bound("stopped-by-guard", False) and not bound("oom-kill-global", False)
    assert not bound("cuda-oom", True), "a card is shared"


def test_somebody_else_filled_the_machine() -> None:
    culprit = Culprit(9, "loader", "me", 1, 0, 1, 1.0, 1.0)
    ending = ending_of(
        verdict("oom-kill-global", culprit=culprit), asked_to_stop=False, beside=0, at_own_limit=False
    )
    assert ending.again and "loader filled the machine" in ending.why


def test_a_process_of_it_was_killed_on_the_way() -> None:
    lost = RankedCause("finished", 1.0, ("exit", "counter.memcg_oom_kill"), "")
    ending = ending_of(verdict("finished", causes=(lost,)), asked_to_stop=False, beside=0, at_own_limit=False)
    assert ending.outcome == "out-of-memory"


def test_stopped_with_the_sweep_but_one_that_finished_first_is_done() -> None:
    stopped = ending_of(verdict("stopped-by-user"), asked_to_stop=True, beside=0, at_own_limit=False)
    assert stopped.again
    assert ending_of(verdict("finished"), asked_to_stop=True, beside=0, at_own_limit=False).outcome == "done"
