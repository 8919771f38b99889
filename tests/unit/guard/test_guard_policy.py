"""The guard's decisions: plain values in, one action out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.guard import ladder, poll_interval
from oomproof.guard.detect_limit import default_limit_floor
from oomproof.guard.ladder import choose, request_is_over, taken
from oomproof.guard.poll_interval import poll_seconds
from oomproof.guard.view import Action, ActionHistory, PolicyInput, Settings, headroom
from oomproof.leaf.action_kinds import OTHERS_GROWTH
from oomproof.units import GIB, MIB

MACHINE = Settings(margin=5 * GIB, floor=1 * GIB, grace=30.0)
LIMITED = Settings(margin=5 * GIB, floor=1 * GIB, grace=30.0, limit=8 * GIB, limit_floor=80 * MIB)
CALM = PolicyInput(
    t=100.0, available=20 * GIB, swap_free=0, stall=0.0, use=2 * GIB, rate=0.0, sustained=0.0, shrink=0.0
)


def facts(**changes: object) -> PolicyInput:
    return replace(CALM, **changes)  # type: ignore[arg-type]


def growing(rate: float, **changes: object) -> PolicyInput:
    return facts(rate=rate, sustained=rate, shrink=rate, **changes)


def after(done: ActionHistory, kind: str, moment: PolicyInput, scope: str = "") -> ActionHistory:
    return taken(MACHINE, Action(kind, scope=scope), moment, done)


def test_calm_machine_calls_for_nothing() -> None:
    assert choose(MACHINE, CALM, ActionHistory()).kind == "none"


@pytest.mark.parametrize(
    ("moment", "kind"),
    [
        (facts(available=4 * GIB), "warn"),
        (growing(100 * MIB, available=3 * GIB), "request"),  # 30 s of it fill what is above the floor
        (growing(100 * MIB, available=1 * GIB), "term"),
        (growing(100 * MIB, available=400 * MIB), "kill"),
        (growing(4 * GIB, available=900 * MIB), "term"),
        (
            growing(40 * GIB, available=2 * GIB),
            "term",
        ),  # absurdly fast: the line is what fills while we react
        (
            facts(rate=4.0 * GIB, shrink=4.0 * GIB, available=1200 * MIB),
            "warn",
        ),  # a burst that may end by itself
    ],
)
def test_machine_ladder(moment: PolicyInput, kind: str) -> None:
    action = choose(MACHINE, moment, ActionHistory())
    assert (action.kind, action.scope) == (kind, "machine")


def test_a_steep_start_with_ample_room_is_left_alone() -> None:
    """A model that loads at 2 GB/s must still run: above the margin nothing is ever asked or ended."""
    assert choose(MACHINE, growing(2 * GIB, available=8 * GIB), ActionHistory()).kind == "none"


def test_disk_swap_counts_until_the_machine_thrashes() -> None:
    short = growing(50 * MIB, available=500 * MIB, swap_free=8 * GIB)
    assert choose(MACHINE, short, ActionHistory()).kind == "none"
    assert choose(MACHINE, replace(short, stall=0.6), ActionHistory()).kind in ("term", "kill")


def test_growth_of_a_stranger_is_named_and_our_job_is_touched_last() -> None:
    unmanaged = facts(available=900 * MIB, shrink=200.0 * MIB, drain=40.0 * MIB)  # it began a second ago
    action = choose(MACHINE, unmanaged, ActionHistory())
    assert action.kind == "request"
    assert action.reason == OTHERS_GROWTH and action.others_growth
    assert choose(MACHINE, replace(unmanaged, available=200 * MIB), ActionHistory()).kind == "kill"


def test_a_small_job_is_not_ended_for_a_stranger() -> None:
    """Ending 10 MiB does not help the machine."""
    assert (
        choose(MACHINE, facts(available=200 * MIB, shrink=1e9, drain=1e9, use=10 * MIB), ActionHistory()).kind
        == "request"
    )


def test_a_tiny_job_that_just_starts_on_a_full_machine_is_left_alone() -> None:
    assert (
        choose(MACHINE, growing(20 * MIB, available=300 * MIB, use=15 * MIB), ActionHistory()).kind == "warn"
    )


def test_only_the_newest_run_acts() -> None:
    moment = growing(100 * MIB, available=400 * MIB, my_turn=False)
    assert choose(MACHINE, moment, ActionHistory()).kind == "warn"


@pytest.mark.parametrize(
    ("available", "rate", "kind"),
    [
        (4 * GIB, 50 * MIB, "none"),
        (1500 * MIB, 50 * MIB, "none"),  # a limit is the user's word: not before it is nearly full
        (350 * MIB, 50 * MIB, "request"),
        (80 * MIB, 50 * MIB, "term"),
        (300 * MIB, 2 * GIB, "request"),
        (60 * MIB, 2 * GIB, "term"),
        (20 * MIB, 50 * MIB, "kill"),
        (20 * MIB, 0, "none"),  # just below its limit and still: the kernel lets it live, so do we
    ],
)
def test_limit_ladder(available: int, rate: int, kind: str) -> None:
    moment = facts(limit_headroom=available, rate=float(rate), sustained=float(rate), lasting=float(rate))
    assert choose(LIMITED, moment, ActionHistory()).kind == kind


def test_growth_that_may_end_with_loading_calls_for_nothing() -> None:
    """Imports and first steps: fast for many seconds, and no sign that they go on."""
    moment = facts(limit_headroom=300 * MIB, rate=50.0 * MIB, sustained=50.0 * MIB)
    assert choose(LIMITED, moment, ActionHistory()).kind == "none"


def test_a_job_that_outgrew_its_usual_peak_is_asked_a_whole_grace_before() -> None:
    moment = facts(limit_headroom=1500 * MIB, use=6 * GIB, rate=50.0 * MIB, lasting=50.0 * MIB)
    assert choose(LIMITED, moment, ActionHistory()).kind == "none"
    assert choose(replace(LIMITED, usual_peak=5 * GIB), moment, ActionHistory()).kind == "request"
    assert choose(replace(LIMITED, usual_peak=int(5.9 * GIB)), moment, ActionHistory()).kind == "none"


@given(st.integers(20 * MIB, 100 * GIB), st.floats(0, 8 * GIB), st.floats(0, 8 * GIB))
def test_nothing_is_done_to_a_job_whose_limit_is_five_percent_above_what_it_holds(
    limit: int, rate: float, lasting: float
) -> None:
    settings = replace(LIMITED, limit=limit, limit_floor=default_limit_floor(limit))
    available = limit - int(limit / 1.05)
    moment = facts(
        limit_headroom=available, peak_headroom=available, rate=rate, sustained=rate, lasting=lasting
    )
    assert choose(settings, moment, ActionHistory()).kind == "none"


def test_a_request_is_over_when_nothing_calls_for_it_any_more() -> None:
    moment = facts(limit_headroom=300 * MIB, rate=50.0 * MIB, lasting=50.0 * MIB)
    asked = after(ActionHistory(), "request", moment, "limit")
    assert not request_is_over(LIMITED, moment, asked)
    flat = replace(moment, rate=0.0, lasting=0.0)
    assert request_is_over(LIMITED, flat, asked)
    assert not request_is_over(LIMITED, flat, ActionHistory()), "nobody was asked"
    assert not request_is_over(LIMITED, flat, after(ActionHistory(), "request", moment, "machine"))
    assert not request_is_over(LIMITED, flat, after(asked, "term", moment)), "too late for that"


def test_trend_warns_long_before() -> None:
    moment = facts(limit_headroom=4 * GIB, time_to_full=600.0, sustained=7.0 * MIB)
    assert choose(LIMITED, moment, ActionHistory()).kind == "warn"


def test_each_rung_is_taken_once() -> None:
    moment = growing(100 * MIB, available=1 * GIB)
    state = after(ActionHistory(), "term", moment)
    assert choose(MACHINE, moment, state).kind == "none"
    assert choose(MACHINE, replace(moment, available=3 * GIB), state).kind == "none", (
        "never back up the ladder"
    )


def test_sigterm_unanswered_is_followed_by_the_kill() -> None:
    moment = growing(100 * MIB, available=1 * GIB)
    state = after(ActionHistory(), "term", moment)
    late = replace(moment, t=moment.t + 31)
    assert choose(MACHINE, late, state).kind == "kill"
    assert choose(MACHINE, replace(late, available=20 * GIB), state).kind == "none", "the danger has passed"


def test_watch_only_never_does_more_than_warn() -> None:
    moment = growing(1 * GIB, available=10 * MIB)
    assert choose(replace(MACHINE, watch_only=True), moment, ActionHistory()).kind == "warn"


sizes = st.integers(min_value=0, max_value=64 * GIB)
rates = st.floats(min_value=-8 * GIB, max_value=8 * GIB)
moments = st.builds(
    PolicyInput,
    t=st.just(50.0),
    available=sizes,
    swap_free=sizes,
    stall=st.floats(0, 1),
    use=sizes,
    rate=rates,
    sustained=st.floats(0, 8 * GIB),
    shrink=rates,
    drain=rates,
    limit_headroom=st.none() | st.integers(-GIB, 8 * GIB),
    time_to_full=st.none() | st.floats(0, 1e6),
    my_turn=st.booleans(),
)


@given(moments)
def test_a_decision_always_has_a_reason(moment: PolicyInput) -> None:
    for settings in (MACHINE, LIMITED):
        action = choose(settings, moment, ActionHistory())
        assert action.kind in ladder.LADDER
        assert bool(action.reason) == (action.kind != "none")


@given(moments)
def test_ample_room_is_never_acted_on(moment: PolicyInput) -> None:
    """Far from the margin and from any limit, no growth of any speed ends a job."""
    safe = replace(moment, available=60 * GIB, limit_headroom=None)
    assert choose(MACHINE, safe, ActionHistory()).kind in ("none", "warn")


@given(moments, st.integers(0, GIB))
def test_less_room_never_calls_for_a_milder_rung(moment: PolicyInput, less: int) -> None:
    """Monotone: what calls for a action calls for at least that with less memory."""
    steady = replace(moment, limit_headroom=None, stall=0.0)
    tighter = replace(steady, available=max(0, steady.available - less))
    rank = ladder.LADDER.index
    assert rank(choose(MACHINE, tighter, ActionHistory()).kind) >= rank(
        choose(MACHINE, steady, ActionHistory()).kind
    )


@given(moments)
def test_poll_is_soon_enough_for_the_fastest_fill(moment: PolicyInput) -> None:
    seconds = poll_seconds(MACHINE, moment, moment)
    assert poll_interval.POLL_FAST <= seconds <= poll_interval.POLL_MAX
    available = headroom(MACHINE, moment) - MACHINE.floor
    assert seconds <= max(poll_interval.POLL_MIN_CALM, available / poll_interval.FASTEST_FILL)


def test_a_job_that_breathes_on_a_full_machine_is_left_alone() -> None:
    """1 MiB more than a third of a second ago, just below the floor: hours, not seconds."""
    breath = facts(available=1000 * MIB, rate=3.0 * MIB, shrink=3.0 * MIB, sustained=0.01 * MIB)
    assert choose(MACHINE, breath, ActionHistory()).kind == "warn"
    assert choose(MACHINE, replace(breath, available=500 * MIB), ActionHistory()).kind == "term", (
        "but not for ever"
    )


def test_the_others_breath_just_below_the_floor_asks_nobody_to_stop() -> None:
    """As it was in a replay: 2.4 MiB in a third of a second, 6 MiB in six, the loader paused and waiting for this job."""
    small = Settings(margin=243 * MIB, floor=243 * MIB, grace=30.0)
    moment = facts(
        available=246464512,
        use=510451712,
        rate=-1314992.48,
        sustained=76545.6,
        shrink=7437013.0,
        drain=1.1 * MIB,
        pause_turn=True,
        waiting=1,
    )
    assert choose(small, moment, ActionHistory()).kind == "warn"
    assert choose(small, replace(moment, drain=7437013.0), ActionHistory()).kind == "request", "once it lasts"


def test_an_old_sigterm_does_not_make_a_kill_of_a_warning() -> None:
    old = ActionHistory(term_at=CALM.t - 7 * 86400)
    assert choose(MACHINE, facts(available=int(4.9 * GIB)), old).kind == "none"


def test_a_trickle_near_the_limit_is_no_danger() -> None:
    """80 MiB of headroom and 13 KiB/s last for hours."""
    limited = replace(LIMITED, limit=20 * GIB, limit_floor=200 * MIB)
    moment = facts(limit_headroom=80 * MIB, rate=13 * 1024.0)
    assert choose(limited, moment, ActionHistory()).kind == "none"
