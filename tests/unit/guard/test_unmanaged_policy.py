"""An unmanaged job that fills the machine: when it is paused, resumed, ended, and when our own jobs are spared for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.guard import detect_unmanaged, guard_policy
from oomproof.guard.action_text import why
from oomproof.guard.view import ActionHistory, JobState, JobView, Settings, UnmanagedView, View
from oomproof.leaf.action_kinds import (
    KILL_UNMANAGED,
    LAST_TURN,
    OTHERS_IDLE,
    PAUSE_UNMANAGED,
    RESUME_UNMANAGED,
    TERM_UNMANAGED,
    TURN,
)
from oomproof.units import GIB, MIB

DESKTOP = Settings(margin=5 * GIB, floor=1 * GIB, grace=30.0)
KEY = (812, 4711)
LOADER = UnmanagedView(KEY, "python load.py", 8 * GIB, 200.0 * MIB)
TRAINING = JobView("1-training", use=19 * GIB)
SHORT = View(1000.0, 1 * GIB, 0, 0.0, 200.0 * MIB, 200.0 * MIB, (TRAINING,), unmanaged=(LOADER,))


def kinds(settings: Settings, view: View, pauses: detect_unmanaged.Pauses) -> list[str]:
    return [action.kind for action in detect_unmanaged.decide(settings, view, pauses)[0]]


def paused(view: View = SHORT) -> tuple[View, dict[tuple[int, int], ActionHistory]]:
    """The same machine ten seconds after its pause, still as full."""
    actions, state = detect_unmanaged.decide(DESKTOP, view, {})
    state = detect_unmanaged.carried_out(DESKTOP, actions[0], state)
    later = replace(
        view, t=view.t + 10, shrink=0.0, drain=0.0, unmanaged=(replace(LOADER, rate=0.0, paused="guard"),)
    )
    return later, state


def ours(view: View, pauses: detect_unmanaged.Pauses, before: View | None = None) -> list[str]:
    """``before``: what was seen at an earlier look."""
    settings, state = {TRAINING.name: DESKTOP}, dict[str, JobState]()
    if before is not None:
        _, state = guard_policy.decide(settings, before, state, pauses)
    actions, _ = guard_policy.decide(settings, view, state, pauses)
    return [action.kind for action in actions if action.kind != "warn"]


def test_it_is_paused_and_the_training_is_not_touched() -> None:
    (action,), state = detect_unmanaged.decide(DESKTOP, SHORT, {})
    assert action.kind == PAUSE_UNMANAGED and action.unmanaged == LOADER
    assert why(action) == "1.0 GiB of RAM available; it held 8.0 GiB and grew by 200 MiB/s"
    assert ours(SHORT, state) == []
    assert ours(replace(SHORT, unmanaged=()), {}) == ["request"], "as before, where nobody else can be paused"


@pytest.mark.parametrize("available", [800 * MIB, 400 * MIB, 200 * MIB])
def test_once_it_is_paused_and_nothing_grows_any_more_nobody_is_touched(available: int) -> None:
    later, state = paused()
    assert ours(replace(later, available=available), state) == []
    other = replace(later, available=available, unmanaged=(replace(LOADER, rate=0.0, paused="other"),))
    assert ours(other, {}) == [], "another guard has paused it"


def test_with_it_paused_a_breath_of_others_is_no_reason_and_lasting_growth_is() -> None:
    later, state = paused()
    breath = replace(later, available=400 * MIB, shrink=20.0 * MIB, drain=4.0 * MIB)
    assert ours(breath, state) == []
    lasts = replace(breath, t=later.t + 6, shrink=100.0 * MIB, drain=100.0 * MIB)
    assert ours(lasts, state, later) == ["request"], "whoever grows may be paused in a moment"
    assert ours(replace(lasts, available=200 * MIB), state, later) == ["term"]


def test_what_the_paused_job_took_before_its_pause_is_no_growth_to_come() -> None:
    """Seen in the virtual machine: three jobs paused, 4 MiB/s of breath for three seconds, and the paused run got SIGTERM."""
    later, state = paused()
    mine = replace(TRAINING, paused="guard")
    before = replace(later, t=later.t - 20, available=GIB, jobs=(mine,), unmanaged=())
    breath = replace(later, available=200 * MIB, shrink=20.0 * MIB, drain=100.0 * MIB, jobs=(mine,))
    after = replace(breath, t=later.t + 6)
    assert ours(breath, state, before) == []
    assert ours(after, state, before) == [], "it is paused since that look only"
    assert ours(after, state, breath) == ["term"], "five seconds later it is somebody else's growth"


def test_with_it_paused_a_breath_of_its_own_does_not_end_our_job() -> None:
    """Seen in the virtual machine: 112 MiB left of a floor of 243, 3 MiB more for a look at what it holds, and SIGTERM."""
    later, state = paused()
    breathes = replace(TRAINING, rate=20.0 * MIB)
    breath = replace(later, available=450 * MIB, shrink=20.0 * MIB, drain=4.0 * MIB, jobs=(breathes,))
    assert ours(breath, state) == []
    assert ours(replace(breath, unmanaged=()), {}) == ["term"], "as before, where nobody is paused"
    grows = replace(breathes, rate=60.0 * MIB)
    lasts = replace(breath, shrink=60.0 * MIB, drain=60.0 * MIB, jobs=(grows,))
    assert ours(lasts, state) == ["pause"], "the one that is paused may go on instead"
    assert ours(replace(lasts, available=150 * MIB), state) == ["pause"]


def test_with_it_paused_and_nothing_left_the_ladder_goes_on() -> None:
    later, state = paused()
    assert ours(replace(later, available=60 * MIB), state) == ["kill"]
    assert ours(replace(later, available=400 * MIB, stall=0.5), state) == ["term"], "it does nothing but swap"


def test_whoever_should_have_paused_it_and_has_not_is_not_waited_for() -> None:
    assert ours(replace(SHORT, available=400 * MIB), {}) != []


@pytest.mark.parametrize(
    "change",
    [
        {"tie": "it has a window"},
        {"rate": 1.0 * MIB},
        {"use": 10 * MIB, "rate": 60.0 * MIB},
        {"paused": "other"},
    ],
)
def test_it_is_left_alone(change: dict[str, object]) -> None:
    view = replace(SHORT, unmanaged=(replace(LOADER, **change),))  # type: ignore[arg-type]
    assert kinds(DESKTOP, view, {}) == []


@pytest.mark.parametrize("change", [{"watch_only": True}, {"pause_max": 0.0}, {"pause_unmanaged": False}])
def test_the_user_can_forbid_it(change: dict[str, object]) -> None:
    settings = replace(DESKTOP, **change)  # type: ignore[arg-type]
    assert kinds(settings, SHORT, {}) == []
    assert not detect_unmanaged.spares_ours(settings, SHORT, {})


def test_it_is_not_paused_while_memory_is_plenty_or_falls_no_more() -> None:
    assert kinds(DESKTOP, replace(SHORT, available=4 * GIB), {}) == []
    assert kinds(DESKTOP, replace(SHORT, shrink=-1.0 * MIB), {}) == []


def test_it_resumes_when_there_is_headroom_and_our_own_go_first() -> None:
    later, state = paused()
    there = replace(later, available=20 * GIB)
    actions, state = detect_unmanaged.decide(DESKTOP, there, state)
    assert actions == []
    after = replace(there, t=there.t + 3)
    assert kinds(DESKTOP, after, state) == [RESUME_UNMANAGED]
    waiting = replace(after, others=(JobView("0-older", use=GIB, paused="guard"),))
    assert kinds(DESKTOP, waiting, state) == []


def test_after_half_a_minute_less_headroom_is_enough() -> None:
    """1 s of growth, 200 MiB, above the floor instead of 3: those that hold the rest may be paused too."""
    later, state = paused()
    for seconds, available, expected in (
        (20, 1400 * MIB, []),
        (32, 1200 * MIB, []),
        (33, 1400 * MIB, []),
        (36, 1400 * MIB, [RESUME_UNMANAGED]),
    ):
        now = replace(later, t=SHORT.t + seconds, available=available)
        actions, state = detect_unmanaged.decide(DESKTOP, now, state)
        assert [action.kind for action in actions] == expected, seconds


def test_two_that_wait_for_each_other_are_let_run_one_by_one() -> None:
    """Seen in the virtual machine: a training and a loader, both started by hand and both paused, an hour long."""
    older = replace(LOADER, key=(811, 4000), paused="guard", rate=0.0)
    newer = replace(older, key=KEY)
    waits = ActionHistory(paused_at=1000.0, paused_until=4600.0, resume_headroom=2 * GIB, pauses=1)
    state = {older.key: waits, newer.key: waits}
    full = replace(SHORT, t=1016.0, available=700 * MIB, shrink=0.0, jobs=(), unmanaged=(newer, older))
    actions, state = detect_unmanaged.decide(DESKTOP, full, state)
    assert actions == [], "somebody may end in the next seconds"
    then = replace(full, t=1031.0)
    assert kinds(DESKTOP, replace(then, jobs=(TRAINING,)), state) == [], "a run can still end"
    assert kinds(DESKTOP, replace(then, available=120 * MIB), state) == [], "too little for a try"
    assert kinds(DESKTOP, replace(then, stall=0.2), state) == []
    (action,), state = detect_unmanaged.decide(DESKTOP, then, state)
    assert (action.kind, action.unmanaged, action.gave_up) == (RESUME_UNMANAGED, older, False)
    state = detect_unmanaged.carried_out(DESKTOP, action, state)

    runs = replace(older, paused="", use=0)
    later = replace(full, t=1900.0, unmanaged=(newer, runs))
    actions, state = detect_unmanaged.decide(DESKTOP, later, state)
    assert actions == [], "the one that runs may end, and free what it holds"
    assert kinds(DESKTOP, replace(later, unmanaged=(newer,)), state) == [RESUME_UNMANAGED], (
        "it has ended and freed little"
    )

    grows = replace(LOADER, key=older.key)
    again = replace(later, t=1901.0, available=300 * MIB, shrink=200.0 * MIB, unmanaged=(newer, grows))
    (action,), state = detect_unmanaged.decide(DESKTOP, again, state)
    assert (action.kind, action.unmanaged) == (PAUSE_UNMANAGED, grows), "it was not all it needs"
    state = detect_unmanaged.carried_out(DESKTOP, action, state)
    for seconds, expected in ((1, []), (6, []), (10, []), (12, [RESUME_UNMANAGED])):
        actions, state = detect_unmanaged.decide(DESKTOP, replace(full, t=1901.0 + seconds), state)
        assert [action.kind for action in actions] == expected, seconds


def test_jobs_that_can_never_go_on_are_not_kept_for_an_hour() -> None:
    """Four turns, each into more of the floor; then it runs on, as it would without us."""
    stuck = replace(LOADER, paused="guard", rate=0.0)
    done = ActionHistory(
        paused_at=1000.0, paused_until=4600.0, resume_headroom=2 * GIB, pauses=4, alone_since=1000.0
    )
    view = replace(SHORT, t=1300.0, available=40 * MIB, shrink=0.0, jobs=(), unmanaged=(stuck,))
    (action,) = detect_unmanaged.decide(DESKTOP, view, {KEY: done})[0]
    assert action.kind == RESUME_UNMANAGED and action.gave_up and action.reason == LAST_TURN
    with_a_run = replace(view, others=(replace(TRAINING, paused="guard"),))
    assert kinds(DESKTOP, with_a_run, {KEY: done}) == [], "a run of ours would be ended for it"


def test_several_that_grow_are_paused_at_once_and_the_oldest_goes_on() -> None:
    older, newer = replace(LOADER, key=(811, 4000), rate=60.0 * MIB), replace(LOADER, rate=60.0 * MIB)
    newest = replace(newer, key=(813, 5000))
    view = replace(SHORT, jobs=(), available=DESKTOP.floor, unmanaged=(older, newest, newer))
    actions, _ = detect_unmanaged.decide(DESKTOP, view, {})
    assert [(action.kind, action.unmanaged) for action in actions] == [
        (PAUSE_UNMANAGED, newest),
        (PAUSE_UNMANAGED, newer),
    ]
    low = replace(view, available=DESKTOP.floor // 2)
    assert kinds(DESKTOP, low, {}) == [PAUSE_UNMANAGED, PAUSE_UNMANAGED, PAUSE_UNMANAGED]


def test_two_resume_oldest_first_and_the_second_sees_what_the_first_takes() -> None:
    older = replace(LOADER, key=(811, 4000), paused="guard", rate=0.0)
    newer = replace(older, key=KEY)
    waits = ActionHistory(
        paused_at=900.0, paused_until=4500.0, resume_headroom=2 * GIB, headroom_since=990.0, running=1
    )
    state = {older.key: waits, newer.key: waits}
    there = replace(SHORT, available=6 * GIB, shrink=0.0, unmanaged=(newer, older))
    actions, state = detect_unmanaged.decide(DESKTOP, there, state)
    assert [(action.kind, action.unmanaged) for action in actions] == [(RESUME_UNMANAGED, older)]
    state = detect_unmanaged.carried_out(DESKTOP, actions[0], state)
    for seconds, expected in ((1.0, []), (4.9, []), (5.0, [RESUME_UNMANAGED])):
        now = replace(there, t=there.t + seconds, unmanaged=(newer, replace(older, paused="")))
        actions, state = detect_unmanaged.decide(DESKTOP, now, state)
        assert [action.kind for action in actions] == expected, seconds


def test_after_an_hour_it_resumes_and_is_left_alone() -> None:
    later, state = paused()
    late = replace(later, t=later.t + 3600)
    (action,), state = detect_unmanaged.decide(DESKTOP, late, state)
    assert action.kind == RESUME_UNMANAGED and action.gave_up
    state = detect_unmanaged.carried_out(DESKTOP, action, state)
    grows = replace(SHORT, t=late.t + 1)
    assert kinds(DESKTOP, grows, state) == []
    assert not detect_unmanaged.spares_ours(DESKTOP, grows, state), "then the ladder of our own jobs goes on"


def test_a_longer_pause_where_the_user_wants_it() -> None:
    settings = replace(DESKTOP, unmanaged_pause_max=7200.0)
    (action,), state = detect_unmanaged.decide(settings, SHORT, {})
    assert detect_unmanaged.carried_out(settings, action, state)[KEY].paused_until == SHORT.t + 7200


def test_resumed_by_hand_it_is_left_alone() -> None:
    later, state = paused()
    actions, state = detect_unmanaged.decide(DESKTOP, replace(later, unmanaged=(LOADER,)), state)
    assert actions == [] and state[KEY].gave_up
    assert kinds(DESKTOP, replace(SHORT, t=2000.0), state) == []


def test_one_that_waits_for_the_paused_job_ends_the_pause() -> None:
    later, state = paused()
    (action,) = detect_unmanaged.decide(DESKTOP, replace(later, others_idle=True), state)[0]
    assert action.kind == RESUME_UNMANAGED and action.gave_up


def test_it_is_ended_only_where_that_is_allowed() -> None:
    gave_up = {KEY: ActionHistory(gave_up=True)}
    full = replace(SHORT, available=400 * MIB)
    assert kinds(DESKTOP, full, gave_up) == []
    may = replace(DESKTOP, may_end_unmanaged=True)
    (action,), state = detect_unmanaged.decide(may, full, gave_up)
    assert action.kind == TERM_UNMANAGED
    state = detect_unmanaged.carried_out(may, action, state)
    assert kinds(may, replace(full, t=full.t + 1), state) == [], "it has its grace"
    assert kinds(may, replace(full, t=full.t + 31), state) == [KILL_UNMANAGED]
    assert kinds(may, replace(full, available=200 * MIB), gave_up) == [KILL_UNMANAGED]
    tied = replace(full, unmanaged=(replace(LOADER, tie="it serves TCP port 5432"),))
    assert kinds(may, tied, gave_up) == []


@given(
    available=st.integers(0, 32 * GIB),
    swap=st.integers(0, 8 * GIB),
    shrink=st.floats(-1e10, 1e10),
    rate=st.floats(0, 1e10),
    use=st.integers(0, 64 * GIB),
    tie=st.sampled_from(["", "it has a window"]),
    mark=st.sampled_from(["", "guard", "other"]),
    known=st.sampled_from(
        [ActionHistory(), ActionHistory(gave_up=True), ActionHistory(paused_at=990.0, paused_until=5000.0)]
    ),
)
def test_whatever_comes(
    available: int, swap: int, shrink: float, rate: float, use: int, tie: str, mark: str, known: ActionHistory
) -> None:
    job = UnmanagedView(KEY, "x", use, rate, 0, tie, mark)
    view = View(1000.0, available, swap, 0.0, shrink, shrink, (TRAINING,), unmanaged=(job,))
    actions, state = detect_unmanaged.decide(DESKTOP, view, {KEY: known})
    for action in actions:
        assert action.kind in (PAUSE_UNMANAGED, RESUME_UNMANAGED), "without leave nobody is ended"
        if action.kind == PAUSE_UNMANAGED:
            assert not tie and not mark and not known.gave_up
        assert isinstance(detect_unmanaged.carried_out(DESKTOP, action, state)[KEY], ActionHistory)
    assert set(state) == {KEY}


# --- a guard for all users: what other users' runs say counts for as much as it may ----------------------------


def of_all_users(
    *runs: JobView, available: int = 20 * GIB
) -> tuple[View, dict[tuple[int, int], ActionHistory]]:
    """User 1000's loader, paused a while ago; there is headroom for it again since half a second."""
    view = replace(SHORT, jobs=(), others=runs, unmanaged=(replace(LOADER, uid=1000),))
    later, state = paused(view)
    later = replace(later, available=available, unmanaged=(replace(later.unmanaged[0], uid=1000),))
    return later, detect_unmanaged.decide(DESKTOP, later, state)[1]


def resumed_after(view: View, state: dict[tuple[int, int], ActionHistory], seconds: float) -> bool:
    return kinds(DESKTOP, replace(view, t=view.t + seconds), state) == [RESUME_UNMANAGED]


def test_nobody_else_waits_and_it_resumes() -> None:
    assert resumed_after(*of_all_users(), 3.0)


def test_its_own_users_paused_runs_come_first_however_long() -> None:
    mine = JobView("1-mine", GIB, paused="guard", uid=1000)
    assert not resumed_after(*of_all_users(mine), 3.0) and not resumed_after(*of_all_users(mine), 600.0)


def test_another_users_paused_run_comes_first_for_a_minute_and_no_longer() -> None:
    """It may be a claim of somebody who wants everybody else to wait."""
    theirs = JobView("1-theirs", GIB, paused="guard", uid=1001)
    assert not resumed_after(*of_all_users(theirs), 3.0) and resumed_after(*of_all_users(theirs), 61.0)


def test_only_its_own_users_idle_runs_are_a_deadlock() -> None:
    """A run of somebody else's that does nothing must not let the job fill the machine again."""
    runs = (JobView("1-mine", GIB, uid=1000), JobView("2-theirs", GIB, uid=1001))
    view, state = of_all_users(*runs, available=GIB)
    assert kinds(DESKTOP, replace(view, others_idle=True, idle_users=frozenset({1001})), state) == []
    (action,) = detect_unmanaged.decide(DESKTOP, replace(view, idle_users=frozenset({1000})), state)[0]
    assert action.kind == RESUME_UNMANAGED and action.gave_up and action.reason == OTHERS_IDLE


def test_while_anybodys_run_can_still_free_memory_it_waits() -> None:
    theirs = JobView("2-theirs", GIB, uid=1001)
    view, state = of_all_users(theirs, available=GIB)
    assert kinds(DESKTOP, view, state) == []
    alone = replace(view, others=())
    actions, state = detect_unmanaged.decide(DESKTOP, alone, state)
    assert actions == [], "another unmanaged job may hold what it needs"
    (action,) = detect_unmanaged.decide(DESKTOP, replace(alone, t=alone.t + 60), state)[0]
    assert action.kind == RESUME_UNMANAGED and action.reason == TURN and not action.gave_up, (
        "it may be paused again"
    )


def test_a_run_that_is_paused_too_and_waits_for_the_same_memory_does_not_keep_it_waiting() -> None:
    mine = JobView("1-mine", GIB, paused="guard")
    view = replace(SHORT, jobs=(), others=(mine,), unmanaged=(LOADER,))
    later, state = paused(view)
    later = replace(later, available=DESKTOP.floor, shrink=0.0)
    actions, state = detect_unmanaged.decide(DESKTOP, later, state)
    assert actions == []
    assert kinds(DESKTOP, replace(later, t=later.t + 60), state) == [RESUME_UNMANAGED]
    runs = replace(later, t=later.t + 60, others=(replace(mine, paused=""),))
    assert kinds(DESKTOP, runs, state) == [], "it may free some"


def test_the_only_one_that_runs_while_all_wait_for_it_may_take_a_part_of_the_floor() -> None:
    grows = replace(LOADER, rate=20.0 * MIB)
    alone = replace(SHORT, jobs=(), others=(), unmanaged=(grows,), shrink=20.0 * MIB)
    low, lowest = (
        replace(alone, available=size, swap_free=0) for size in (DESKTOP.floor // 2, DESKTOP.floor // 4)
    )
    before = {LOADER.key: ActionHistory(pauses=1)}
    assert kinds(DESKTOP, low, {}) == [PAUSE_UNMANAGED], "one that was never paused is, at the floor"
    assert kinds(DESKTOP, low, before) == [] and kinds(DESKTOP, lowest, before) == [PAUSE_UNMANAGED]
    runs = replace(low, others=(JobView("1-mine", GIB),))
    assert kinds(DESKTOP, runs, before) == [PAUSE_UNMANAGED]


def test_one_that_is_paused_without_any_run_is_not_given_up_after_two_minutes() -> None:
    later, state = paused(replace(SHORT, jobs=(), others=()))
    for seconds in (100, 130, 1000):
        now = replace(later, t=later.t + seconds, available=DESKTOP.floor // 2, shrink=0.0)
        actions, state = detect_unmanaged.decide(DESKTOP, now, state)
        assert not any(action.gave_up for action in actions), seconds


def test_one_that_has_just_begun_is_paused_for_what_it_will_hold() -> None:
    """Found with little in hand it was passed over, and the run beside it was ended before the next look."""
    young = replace(LOADER, use=10 * MIB)
    assert kinds(DESKTOP, replace(SHORT, unmanaged=(young,)), {}) == [PAUSE_UNMANAGED]


def test_one_that_does_not_grow_is_never_paused_but_may_be_waited_for() -> None:
    """The training is alone and itself the growth: it was ended at the floor, beside a job that ended seconds later."""
    holder = UnmanagedView((900, 1), "python eval.py", 3 * GIB)
    grows = replace(TRAINING, rate=200.0 * MIB, sustained=200.0 * MIB)
    view = replace(SHORT, available=600 * MIB, jobs=(grows,), unmanaged=())
    assert ours(view, {}) == ["term"]
    assert ours(replace(view, unmanaged=(holder,)), {}) == []
    assert ours(replace(view, available=500 * MIB, unmanaged=(holder,)), {}) == ["pause"]
    stalled = replace(SHORT, shrink=-1.0, stall=0.5, unmanaged=(holder,))
    assert kinds(DESKTOP, stalled, {}) == []


def test_what_another_guard_has_just_paused_has_a_moment_to_show() -> None:
    """What the paused job took in the last third of a second counted against the run."""
    theirs = replace(LOADER, rate=0.0, paused="other")
    view = replace(SHORT, available=120 * MIB, unmanaged=(theirs,))
    _, state = detect_unmanaged.decide(DESKTOP, view, {})
    assert ours(replace(view, t=1000.5), state) == []
    _, state = detect_unmanaged.decide(DESKTOP, replace(view, t=1001.5), state)
    assert ours(replace(view, t=1001.5), state) == ["kill"]


def test_what_runs_of_ours_take_is_not_looked_for_among_the_others() -> None:
    """A run that should have been paused for another's growth was spared until a third of the floor was gone."""
    mine, other = replace(TRAINING, rate=60.0 * MIB), JobView("0-older", use=GIB, rate=100.0 * MIB)
    view = replace(SHORT, shrink=160.0 * MIB, jobs=(mine,), others=(other,), unmanaged=(), searching=True)
    assert ours(view, {}) == ["pause"]


def test_a_run_is_paused_for_what_runs_take_also_where_somebody_else_could_be() -> None:
    """Two runs that grew waited for the pause of a third job, until one of them got SIGTERM."""
    mine, other = replace(TRAINING, rate=60.0 * MIB), JobView("0-older", use=GIB, rate=100.0 * MIB)
    view = replace(SHORT, shrink=160.0 * MIB, jobs=(mine,), others=(other,))
    assert ours(view, {}) == ["pause"]
    assert ours(replace(view, shrink=400.0 * MIB), {}) == []


def test_its_own_growth_does_not_end_a_run_in_the_second_of_somebody_elses_pause() -> None:
    theirs = replace(LOADER, rate=0.0, paused="other")
    grows = replace(TRAINING, rate=200.0 * MIB, sustained=200.0 * MIB)
    view = replace(SHORT, available=450 * MIB, jobs=(replace(grows, protected=True),), unmanaged=(theirs,))
    _, state = detect_unmanaged.decide(DESKTOP, view, {})
    assert "term" not in ours(replace(view, t=1000.5), state)
    assert "term" in ours(replace(view, t=1001.5), state)


def test_with_nothing_left_for_a_turn_the_first_runs_on_after_half_a_minute() -> None:
    """Five jobs started by hand, all paused with 12 MiB left, were kept so for an hour."""
    stuck = replace(LOADER, paused="guard", rate=0.0)
    done = ActionHistory(
        paused_at=1000.0, paused_until=4600.0, resume_headroom=2 * GIB, pauses=1, alone_since=1000.0
    )
    view = replace(SHORT, t=1020.0, available=40 * MIB, shrink=0.0, jobs=(), unmanaged=(stuck,))
    assert kinds(DESKTOP, view, {KEY: done}) == []
    (action,), _ = detect_unmanaged.decide(DESKTOP, replace(view, t=1031.0), {KEY: done})
    assert action.kind == RESUME_UNMANAGED and action.gave_up


def test_a_paused_run_that_holds_next_to_nothing_keeps_nobody_stuck() -> None:
    """In the simulation two jobs started by hand and a run of 14 MiB were all still paused after fifteen minutes."""
    stuck = replace(LOADER, paused="guard", rate=0.0)
    done = ActionHistory(
        paused_at=1000.0, paused_until=4600.0, resume_headroom=2 * GIB, pauses=4, alone_since=1000.0
    )
    waits = JobView("2-new", use=14 * MIB, paused="guard")
    view = replace(
        SHORT, t=1081.0, available=100 * MIB, shrink=0.0, jobs=(), others=(waits,), unmanaged=(stuck,)
    )
    (action,), _ = detect_unmanaged.decide(DESKTOP, view, {KEY: done})
    assert action.kind == RESUME_UNMANAGED and action.gave_up
    holds = replace(view, others=(replace(waits, use=GIB),))
    assert kinds(DESKTOP, holds, {KEY: done}) == [], "its end would help: it is ended in time"


def test_one_that_is_paused_alone_has_its_turn_later_than_one_of_several() -> None:
    """Beside a job that holds and does not grow, which no look names: it may end."""
    waits = replace(LOADER, paused="guard", rate=0.0)
    done = ActionHistory(
        paused_at=1000.0, paused_until=4600.0, resume_headroom=2 * GIB, pauses=1, alone_since=1000.0
    )
    alone = replace(SHORT, t=1010.0, available=300 * MIB, shrink=0.0, jobs=(), unmanaged=(waits,))
    assert kinds(DESKTOP, alone, {KEY: done}) == []
    assert kinds(DESKTOP, replace(alone, t=1016.0), {KEY: done}) == [RESUME_UNMANAGED]
    newer = replace(waits, key=(900, 5000))
    assert kinds(DESKTOP, replace(alone, unmanaged=(waits, newer)), {KEY: done, newer.key: done}) == [
        RESUME_UNMANAGED
    ]
