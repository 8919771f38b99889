"""When a job is paused, when it goes on, and when pausing is given up: plain values in, one action out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.guard import detect_pause, detect_resume, ladder
from oomproof.guard.ladder import choose
from oomproof.guard.view import Action, ActionHistory, PolicyInput, Settings
from oomproof.leaf.action_kinds import OTHERS_GROWTH, UNMANAGED_NEED
from oomproof.units import GIB, MIB

DESKTOP = Settings(margin=5 * GIB, floor=1 * GIB, grace=30.0)
# a loader beside an older run that goes on
LOADER = PolicyInput(
    t=100.0,
    available=1 * GIB,
    swap_free=0,
    stall=0.0,
    use=3 * GIB,
    rate=80.0 * MIB,
    sustained=80.0 * MIB,
    shrink=80.0 * MIB,
    pause_turn=True,
    running=1,
)


def loader(**changes: object) -> PolicyInput:
    return replace(LOADER, **changes)  # type: ignore[arg-type]


def paused(**changes: object) -> ActionHistory:
    state = detect_pause.after_pause(DESKTOP, LOADER, ActionHistory())
    return replace(state, **changes)  # type: ignore[arg-type]


def still(**changes: object) -> PolicyInput:
    """The same loader, paused by its guard, ten seconds later."""
    quiet: dict[str, object] = {
        "t": 110.0,
        "rate": 0.0,
        "sustained": 0.0,
        "shrink": 0.0,
        "paused": "guard",
        "pause_turn": False,
    }
    return replace(LOADER, **{**quiet, **changes})  # type: ignore[arg-type]


def test_the_loader_is_paused_before_anything_dies() -> None:
    action = choose(DESKTOP, LOADER, ActionHistory())
    assert (action.kind, action.scope) == ("pause", "machine")
    for available in (800 * MIB, 400 * MIB, 0):  # where SIGTERM and the kill would come
        assert choose(DESKTOP, loader(available=available), ActionHistory()).kind == "pause"


def test_a_pause_comes_sooner_than_sigterm_would() -> None:
    just_above = loader(available=DESKTOP.floor + 15 * MIB)
    assert choose(DESKTOP, just_above, ActionHistory()).kind == "pause"
    alone = replace(just_above, pause_turn=False, sustained=0.0)
    assert choose(DESKTOP, alone, ActionHistory()).kind == "warn"


def test_it_is_not_asked_to_stop_while_a_pause_could_do() -> None:
    asked = replace(loader(available=3 * GIB), pause_turn=False)
    assert choose(DESKTOP, asked, ActionHistory()).kind == "request"
    assert choose(DESKTOP, loader(available=3 * GIB), ActionHistory()).kind == "warn"


@pytest.mark.parametrize(
    "changes",
    [
        {"running": 0},  # alone, and itself the growth
        {"running": 0, "waiting": 1, "rate": 20.0 * MIB},  # the last that runs: the others wait for it
        {"pause_turn": False},  # another one's turn
        {"rate": 0.0, "sustained": 0.0},  # does not grow, cannot be pushed out: its pause would free nothing
    ],
)
def test_a_pause_that_cannot_help_is_not_made(changes: dict[str, object]) -> None:
    assert choose(DESKTOP, loader(**changes), ActionHistory()).kind != "pause"


def test_a_lone_growing_job_goes_down_the_old_ladder() -> None:
    lone = loader(running=0)
    assert choose(DESKTOP, lone, ActionHistory()).kind == "term"
    assert choose(DESKTOP, replace(lone, available=3 * GIB), ActionHistory()).kind == "request"


def test_beside_jobs_that_the_machines_guard_has_paused_it_is_paused_too_and_not_ended() -> None:
    """None of them grows then; what runs among the rest ends, and they resume one by one."""
    above = loader(running=0, unmanaged_wait=True)
    assert choose(DESKTOP, above, ActionHistory()).kind == "warn", (
        "they stopped for it: half of the floor is its own"
    )
    beside = replace(above, available=DESKTOP.floor // 2)
    action = choose(DESKTOP, beside, ActionHistory())
    assert action.kind == "pause" and action.reason == UNMANAGED_NEED and not action.others_growth
    waited_for = replace(beside, waiting=1, unmanaged_wait=False)
    assert choose(DESKTOP, waited_for, ActionHistory()).kind != "pause", "others wait for it"
    assert choose(DESKTOP, beside, ActionHistory(gave_up=True)).kind == "term", "it did not help before"
    done = detect_pause.after_pause(DESKTOP, beside, ActionHistory())
    later = replace(beside, paused="guard", rate=0.0, shrink=0.0, unmanaged_lives=True)
    assert choose(DESKTOP, replace(later, t=beside.t + 100), done).kind == "none", "one of them may end"
    all_paused = replace(later, t=beside.t + 31, unmanaged_lives=False)
    turn = choose(DESKTOP, all_paused, done)
    assert turn.kind == "resume" and not turn.gave_up, "they may all wait for each other: it has its turn"
    assert choose(DESKTOP, all_paused, replace(done, pauses=3)).gave_up, "and has had them"
    given_up = choose(DESKTOP, replace(later, t=beside.t + 121), done)
    assert given_up.kind == "resume" and given_up.gave_up, "nobody has ended"
    grows_on = replace(beside, pauses=1)
    assert choose(DESKTOP, grows_on, ActionHistory(gave_up=True, pauses=1)).kind == "term", (
        "while it can still save"
    )
    for_a_run = detect_pause.after_pause(DESKTOP, replace(beside, running=1), ActionHistory())
    assert choose(DESKTOP, replace(later, running=1, t=beside.t + 121), for_a_run).kind == "none"


@pytest.mark.parametrize(
    "settings",
    [replace(DESKTOP, protected=True), replace(DESKTOP, pause_max=0.0), replace(DESKTOP, watch_only=True)],
)
def test_who_must_not_be_paused_is_not(settings: Settings) -> None:
    assert choose(settings, LOADER, ActionHistory()).kind != "pause"


def test_a_strangers_growth_pauses_a_job_that_grows_too() -> None:
    beside = loader(running=0, rate=30.0 * MIB, shrink=100.0 * MIB)
    action = choose(DESKTOP, beside, ActionHistory())
    assert action.kind == "pause" and action.reason == OTHERS_GROWTH and action.others_growth


def test_with_disk_swap_a_stalling_machine_is_enough() -> None:
    swapping = loader(
        available=900 * MIB, swap_free=8 * GIB, rate=0.0, shrink=0.0, sustained=0.0, can_push=True
    )
    assert choose(DESKTOP, swapping, ActionHistory()).kind == "none"
    assert choose(DESKTOP, replace(swapping, stall=0.2), ActionHistory()).kind == "pause"


def test_its_own_limit_is_no_reason_to_pause() -> None:
    limited = replace(DESKTOP, limit=4 * GIB, limit_floor=40 * MIB)
    moment = loader(available=20 * GIB, limit_headroom=30 * MIB)
    assert choose(limited, moment, ActionHistory()).kind == "term"
    short = replace(moment, available=900 * MIB, limit_headroom=30 * MIB)
    assert choose(limited, short, ActionHistory()).kind == "term", "both at once: its limit is nearer"


def test_it_goes_on_when_its_room_has_been_back_for_a_while() -> None:
    state = paused()
    assert state.resume_headroom == DESKTOP.floor + 20 * MIB + 256 * MIB
    back = still(available=2 * GIB)
    assert detect_resume.headroom_is_back(back, state)
    assert choose(DESKTOP, back, replace(state, headroom_since=109.0)).kind == "none"
    action = choose(DESKTOP, back, replace(state, headroom_since=107.0))
    assert action.kind == "resume" and not action.gave_up
    assert not detect_resume.headroom_is_back(still(available=1290 * MIB), state)


def test_a_known_need_is_the_room_it_waits_for() -> None:
    state = detect_pause.after_pause(replace(DESKTOP, need=10 * GIB), LOADER, ActionHistory())
    assert state.resume_headroom == DESKTOP.floor // 4 + 7 * GIB, "as much as it would not be paused with"


def test_one_that_holds_all_it_needs_is_not_paused_and_resumes_first() -> None:
    """In the simulation one was paused in the last moment of its growth, and ended for those that took the rest."""
    settings = replace(DESKTOP, need=3 * GIB)
    done = loader(available=400 * MIB, use=3 * GIB + 20 * MIB)
    assert choose(settings, done, ActionHistory()).kind == "warn"
    assert choose(settings, replace(done, use=4 * GIB), ActionHistory()).kind == "pause", (
        "more than was known"
    )
    state = detect_pause.after_pause(settings, done, ActionHistory())
    assert detect_resume.headroom_is_back(still(available=300 * MIB), state)


def test_a_paused_job_is_not_ended_for_growth_whose_end_is_known() -> None:
    state = paused(paused_left=900 * MIB)
    other = still(available=400 * MIB, shrink=50.0 * MIB, drain=50.0 * MIB, runs_rate=50.0 * MIB)
    assert choose(DESKTOP, other, state).kind == "term"
    known = replace(other, known_rate=50.0 * MIB, pending=200 * MIB)
    assert choose(DESKTOP, known, state).kind == "none"
    assert choose(DESKTOP, replace(known, pending=300 * MIB), state).kind == "term", "it leaves nothing"
    assert choose(DESKTOP, replace(known, known_rate=20.0 * MIB), state).kind == "term", "others take more"


def test_growth_that_has_just_ended_ends_nobody() -> None:
    """What was left of the rate was a rounding error; what lasted over seconds was 34 MiB/s."""
    settings = Settings(margin=243 * MIB, floor=243 * MIB, grace=30.0)
    grown = loader(available=136 * MIB, use=392 * MIB, rate=20.0 * MIB, sustained=34.0 * MIB, shrink=20.0 * MIB,
                   running=0, pauses=1, pause_turn=False)  # fmt: skip
    assert choose(settings, grown, ActionHistory(pauses=1)).kind == "term"
    assert (
        choose(settings, replace(grown, rate=0.1 * MIB, shrink=0.1 * MIB), ActionHistory(pauses=1)).kind
        != "term"
    )


def test_what_was_pushed_out_must_fit_back_in() -> None:
    state = paused()
    assert not detect_resume.headroom_is_back(still(available=2 * GIB, swap=2 * GIB), state)
    assert detect_resume.headroom_is_back(still(available=4 * GIB, swap=2 * GIB), state)


def test_the_older_goes_on_first() -> None:
    ready = paused(headroom_since=100.0)
    assert choose(DESKTOP, still(available=9 * GIB, resume_turn=False), ready).kind == "none"


def test_the_time_limit_gives_up_and_the_ladder_goes_on() -> None:
    state = paused()
    late = still(t=state.paused_until, available=1100 * MIB)
    action = choose(DESKTOP, late, state)
    assert action.kind == "resume" and action.gave_up
    after = detect_resume.after_resume(state, action.gave_up)
    assert choose(DESKTOP, LOADER, after).kind == "term", "no second pause in this shortage"


def test_deadlock_the_other_grows_on() -> None:
    """The paused job holds what the other one needs: thawed and ended, for it is the newest."""
    state = paused(paused_left=900 * MIB)
    early = still(available=400 * MIB, shrink=50.0 * MIB, drain=50.0 * MIB, unmanaged_wait=True, running=2)
    beside_runs = replace(early, unmanaged_wait=False)
    assert choose(DESKTOP, beside_runs, state).kind == "term", "later there is no time for SIGTERM"
    assert choose(DESKTOP, early, state).kind == "none", "whoever grows may be paused in a moment"
    fast = replace(early, shrink=1000.0 * MIB, drain=200.0 * MIB)
    assert choose(DESKTOP, fast, state).kind == "term", "there is no time for that"
    assert choose(DESKTOP, replace(early, stall=0.5), state).kind == "term"
    pressed = replace(early, available=200 * MIB)
    assert choose(DESKTOP, pressed, state).kind == "term"
    assert choose(DESKTOP, pressed, paused()).kind == "none", "not before its effect can show"
    first = detect_resume.update_pause(DESKTOP, replace(pressed, t=101.5), paused(), None)
    assert first.paused_left == 200 * MIB
    assert choose(DESKTOP, pressed, first).kind == "none", "what shrank may have shrunk before the pause"
    assert choose(DESKTOP, replace(pressed, available=190 * MIB), first).kind == "term"
    assert choose(DESKTOP, replace(pressed, available=0), replace(first, paused_left=0)).kind == "kill"
    assert detect_resume.update_pause(DESKTOP, replace(pressed, t=100.5), paused(), None).paused_left is None
    assert choose(DESKTOP, replace(pressed, shrink=0.0), state).kind == "none", "nothing shrinks: no hurry"
    breath = replace(pressed, running=0, waiting=1, unmanaged_wait=True, resume_turn=False, drain=4.0 * MIB)
    assert choose(DESKTOP, breath, state).kind == "none", "a program that starts"
    assert choose(DESKTOP, replace(breath, drain=50.0 * MIB), state).kind == "term"
    assert choose(DESKTOP, replace(breath, available=120 * MIB), state).kind == "kill"
    assert choose(DESKTOP, replace(pressed, use=20 * MIB), state).kind == "none", "its end would free nothing"
    after = ladder.taken(DESKTOP, Action("term"), pressed, state)
    assert after.paused_at is None and after.term_at == 110.0


@pytest.mark.parametrize("changes", [{"running": 0}, {"others_idle": True}])
def test_deadlock_nobody_is_left_or_gets_anywhere(changes: dict[str, object]) -> None:
    action = choose(DESKTOP, still(available=1100 * MIB, **changes), paused())
    assert action.kind == "resume" and action.gave_up


def test_by_hand_is_left_to_the_hand() -> None:
    for_ever = still(t=1e9, paused="hand", available=20 * GIB)
    assert choose(DESKTOP, for_ever, ActionHistory()) == Action("none")
    ended = still(paused="hand", available=300 * MIB, shrink=1.0 * MIB)
    assert choose(DESKTOP, ended, ActionHistory()).kind == "term", "but the machine is not lost for it"


def test_after_sigterm_there_is_no_pause() -> None:
    assert choose(DESKTOP, LOADER, ActionHistory(term_at=99.0)).kind == "none"


moments = st.builds(
    PolicyInput,
    t=st.floats(100, 1e5),
    available=st.integers(0, 64 * GIB),
    swap_free=st.integers(0, 8 * GIB),
    stall=st.floats(0, 1),
    use=st.integers(0, 64 * GIB),
    rate=st.floats(-8 * GIB, 8 * GIB),
    sustained=st.floats(0, 8 * GIB),
    shrink=st.floats(-8 * GIB, 8 * GIB),
    my_turn=st.booleans(),
    pause_turn=st.booleans(),
    resume_turn=st.booleans(),
    running=st.integers(0, 3),
    waiting=st.integers(0, 3),
    others_idle=st.booleans(),
    paused=st.sampled_from(["", "guard", "hand"]),
    swap=st.integers(0, GIB),
    can_push=st.booleans(),
)


@given(moments)
def test_every_action_has_a_reason_and_a_state(moment: PolicyInput) -> None:
    state = paused() if moment.paused == "guard" else ActionHistory()
    action = choose(DESKTOP, moment, state)
    assert action.kind in (*ladder.LADDER, "resume")
    assert bool(action.reason) == (action.kind != "none")
    if moment.paused:
        assert action.kind in ("none", "resume", "term", "kill"), "a job that stands still hears nothing else"
    if action.kind == "resume":
        assert moment.paused == "guard"


@given(moments)
def test_nothing_dies_while_a_pause_could_help(moment: PolicyInput) -> None:
    running = replace(moment, paused="")
    if detect_pause.can_pause(DESKTOP, running, ActionHistory()):
        assert choose(DESKTOP, running, ActionHistory()).kind in ("none", "warn", "pause")


@given(moments)
def test_a_pause_ends_above_the_line_it_began_at(moment: PolicyInput) -> None:
    """Hysteresis: what lets it go on does not pause it again at once."""
    available = detect_pause.resume_headroom(DESKTOP, moment)
    assert available > detect_pause.pause_threshold(DESKTOP, moment) or moment.shrink * 0.06 > DESKTOP.margin
    assert available <= DESKTOP.margin + DESKTOP.floor


def test_one_that_will_fit_is_not_killed_either() -> None:
    """One look before it had all it needed, it was killed with half of the floor left."""
    nearly = loader(available=400 * MIB, use=3 * GIB, pause_turn=False)
    assert choose(DESKTOP, nearly, ActionHistory()).kind == "kill"
    assert choose(replace(DESKTOP, need=3 * GIB + 50 * MIB), nearly, ActionHistory()).kind == "warn"


def test_a_run_that_only_holds_is_not_ended_because_others_hold_the_rest() -> None:
    """98 MiB of a floor of 243 were left, nobody took more, and the last run got SIGTERM."""
    holds = loader(available=400 * MIB, rate=0.0, sustained=0.0, shrink=0.0, running=0, waiting=1)
    assert choose(DESKTOP, holds, ActionHistory()).kind == "warn"
    taken = replace(holds, shrink=50.0 * MIB, drain=50.0 * MIB)
    assert choose(DESKTOP, taken, ActionHistory()).kind == "term", "others take what is left"
    assert choose(DESKTOP, replace(holds, available=100 * MIB), ActionHistory()).kind == "kill", (
        "nothing is left"
    )
