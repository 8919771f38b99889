"""A rehearsal on a card goes on until batches of other sizes have left all behind that they leave."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra [ml] is not installed")
from oomproof.sizing.rehearsal.rehearsed_loop import _CALM, RehearsedLoop
from oomproof.sizing.virtual_gpu.step_limits import STEPS

GIB = 1 << 30


class Card:
    """Of which more is reserved with every step, up to ``most`` steps."""

    now = "train"

    def __init__(self, most: int | None) -> None:
        self.most, self.asked = most, 0

    def reserved(self) -> int | None:
        self.asked += 1
        return None if self.most is None else (10 + min(self.asked, self.most)) * GIB


def steps_until_settled(card: Any, batches_differ: bool = True, limit: float = 120.0) -> tuple[int, Any]:
    loop = RehearsedLoop(card, lambda reason: None, limit)
    loop.batches_differ = batches_differ
    asked = []
    while loop.steps < STEPS or loop.settling:
        asked.append(loop.wants_largest())
        loop._stepped()
        assert loop.evaluation_is_due() == (loop.steps >= STEPS and not loop.settling)
    assert asked[:STEPS] == [False, True, False] and not any(asked[STEPS:])
    assert loop.wants_largest(), "once more, among all that is left behind"
    return loop.steps, loop


def test_steps_go_on_until_the_card_is_asked_for_no_more() -> None:
    steps, loop = steps_until_settled(Card(most=40))
    assert steps == STEPS + 39 + _CALM and loop.notes == []
    loop._stepped()
    assert not loop.wants_largest()


@pytest.mark.parametrize(("card", "batches_differ"), [(Card(most=40), False), (Card(most=None), True)])
def test_batches_of_one_size_and_the_host_have_nothing_to_settle(card: Card, batches_differ: bool) -> None:
    assert steps_until_settled(card, batches_differ)[0] == STEPS


def test_what_grows_for_ever_takes_its_share_of_the_time() -> None:
    steps, loop = steps_until_settled(Card(most=10**9), limit=1e-9)
    assert steps == STEPS and "still took more of the card after 3 steps" in loop.notes[0]
