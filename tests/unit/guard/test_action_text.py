"""The words of each reason, and that a damaged record still has some."""

from __future__ import annotations

import typing

import pytest

from oomproof.guard.action_text import paused_text, reason_text, unmanaged_text, without_rate, would_text
from oomproof.guard.view import Action, Figures, UnmanagedView
from oomproof.leaf.action_kinds import (
    NEAR_LIMIT,
    OWN_GROWTH,
    PAUSE_UNMANAGED,
    RESUME_UNMANAGED,
    RUNS_CONTINUE,
    TURN,
    ActionReason,
)
from oomproof.units import GIB, MIB

REASONS = [reason for reason in typing.get_args(ActionReason) if reason]
LIMIT: Figures = {"held": 592 * MIB, "limit": 600 * MIB, "rate": 10.0 * MIB, "full_in": 30.0}
SHORT: Figures = {"available": GIB, "swap_free": 2 * GIB, "held": 8 * GIB, "rate": 200.0 * MIB}
LOADER = UnmanagedView((812, 4711), "python load.py", 8 * GIB)


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_has_words_also_without_its_figures(reason: ActionReason) -> None:
    assert reason_text(reason, {}) and "{" not in reason_text(reason, {})


def test_a_limit() -> None:
    assert reason_text(NEAR_LIMIT, LIMIT) == (
        "the job held 592 MiB of its limit of 600 MiB, grew by 10 MiB/s, full in about 30 s"
    )
    assert reason_text(NEAR_LIMIT, without_rate({**LIMIT, "unanswered": 31.0})) == (
        "SIGTERM was not answered for 31 s; the job held 592 MiB of its limit of 600 MiB, full in about 30 s"
    )


@pytest.mark.parametrize(("runs", "words"), [(1, "another run continues"), (3, "3 other runs continue")])
def test_a_pause_for_other_runs(runs: int, words: str) -> None:
    assert reason_text(RUNS_CONTINUE, {**SHORT, "runs": runs}) == (
        f"1.0 GiB of RAM available and 2.0 GiB of disk swap, the job held 8.0 GiB and grew by 200 MiB/s; {words}"
    )


def test_an_unmanaged_job() -> None:
    pause = Action(PAUSE_UNMANAGED, OWN_GROWTH, SHORT)
    why = "1.0 GiB of RAM and 2.0 GiB of disk swap available; it held 8.0 GiB and grew by 200 MiB/s"
    assert would_text(pause, LOADER) == f"would pause python load.py (pid 812): {why}"
    paused = paused_text(pause, LOADER, 2 * GIB, 0.0)
    assert paused.startswith(f"paused python load.py (pid 812), which was not started by oomproof: {why}. It")
    assert paused.endswith("now: oomproof resume 812")
    resumed = unmanaged_text(Action(RESUME_UNMANAGED, TURN, {"waited": 60.0}), LOADER)
    assert resumed.startswith("resumed python load.py (pid 812): nobody is left who could free memory, after")
