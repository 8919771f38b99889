"""Mixes of jobs that an earlier policy lost, by the guard's own rules on a machine that is arithmetic."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from replay_simulated import Mix


@pytest.mark.parametrize("seed", [10, 13, 17, 30, 40])
def test_all_of_a_mix_finish(seed: int) -> None:
    mix = Mix(seed)
    assert set(mix.run()) == {"finished"}, "\n".join(mix.said)


def test_where_nobody_can_go_on_one_is_lost_and_not_all() -> None:
    """Four jobs started by hand want 1,300 MiB of 780 at once: no order of pauses is known that saves all."""
    assert Mix(12).run().count("finished") == 4
