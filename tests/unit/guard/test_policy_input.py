"""Whose turn it is among several jobs: the pure rule, and the policy over all of them at once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from oomproof.guard import guard_policy
from oomproof.guard.policy_input import alone, with_turn
from oomproof.guard.view import JobState, JobView, PolicyInput, Settings, View
from oomproof.units import GIB, MIB

WORTH = 64 * MIB


def run(age: int, use: int = 500, rate: int = 0, **more: object) -> JobView:
    return JobView(f"{age:015d}-r{age}", use=use * MIB, rate=rate * MIB, **more)  # type: ignore[arg-type]


def ask(me: JobView, *others: JobView, shrink: float = 0.0, can_push: bool = False) -> PolicyInput:
    view = View(0.0, 0, 0, 0.0, shrink * MIB, 0.0, (me, *others))
    return with_turn(alone(view, me, can_push), me, others, WORTH)


def test_newest_that_helps_is_ended_first() -> None:
    assert not ask(run(1), run(2)).my_turn and ask(run(2), run(1)).my_turn
    assert ask(run(1), run(2, use=10)).my_turn, "a young run that holds too little to help is passed over"
    assert not ask(run(1), run(2, use=10, rate=80), shrink=80).my_turn, "unless it is the growth"
    assert not ask(run(1), run(2, use=10, rate=30), shrink=80).my_turn, (
        "or has a part in it: it is paused first"
    )


def test_the_protected_come_last() -> None:
    young = run(2, protected=True)
    assert ask(run(1), young).my_turn and not ask(young, run(1)).my_turn
    assert ask(run(1, rate=80), young, shrink=80).pause_turn
    assert not ask(young, run(1), shrink=80).pause_turn
    assert ask(young, run(1, protected=True)).my_turn, "of two protected runs, the newest"


def test_without_swap_the_newest_that_grows_is_paused() -> None:
    """A pause stops growth: pausing the one that sits still would free nothing."""
    old, still = run(1, rate=80), run(2)
    assert ask(old, still, shrink=80).pause_turn and not ask(still, old, shrink=80).pause_turn
    both = run(3, use=5, rate=40)
    assert ask(both, old, still, shrink=120).pause_turn and not ask(old, both, still, shrink=120).pause_turn


def test_one_that_reserved_nothing_is_paused_before_one_that_did() -> None:
    old, young = run(1, rate=50), run(2, rate=50, reserved=True)
    assert ask(old, young, shrink=100).pause_turn and not ask(young, old, shrink=100).pause_turn


def test_with_swap_the_newest_is_paused() -> None:
    old, still = run(1, rate=80), run(2)
    assert ask(still, old, shrink=80, can_push=True).pause_turn
    assert not ask(old, still, shrink=80, can_push=True).pause_turn


def test_paused_runs_are_not_paused_again_and_resume_oldest_first() -> None:
    old, middle, new = run(1), run(2, paused="guard"), run(3, paused="guard")
    seen = ask(new, old, middle)
    assert not seen.pause_turn and not seen.resume_turn and (seen.running, seen.waiting) == (1, 1)
    assert ask(middle, old, new).resume_turn
    assert ask(new, old, run(2, paused="hand")).resume_turn, "a run that the user froze is not waited for"


ages = st.lists(st.integers(1, 9), min_size=1, max_size=6, unique=True)


@given(ages, st.data(), st.floats(0, 500), st.booleans())
def test_at_most_one_is_chosen(numbers: list[int], data: st.DataObject, shrink: float, push: bool) -> None:
    """Whatever they hold and do: never two to freeze, never two to end of those that hold enough."""
    everybody = [
        run(
            age,
            use=data.draw(st.integers(0, 900)),
            rate=data.draw(st.integers(-50, 300)),
            paused=data.draw(st.sampled_from(["", "guard", "hand"])),
            protected=data.draw(st.booleans()),
        )
        for age in numbers
    ]
    seen = {
        me.name: ask(me, *(one for one in everybody if one is not me), shrink=shrink, can_push=push)
        for me in everybody
    }
    assert sum(one.pause_turn for one in seen.values()) <= 1
    worthy = [me for me in everybody if me.use >= WORTH]
    assert sum(seen[me.name].my_turn for me in worthy) <= 1
    waiting = [me for me in everybody if me.paused == "guard"]
    assert sum(seen[me.name].resume_turn for me in waiting) == (1 if waiting else 0), (
        "somebody may always go on"
    )
    for me in everybody:
        assert not (seen[me.name].pause_turn and (me.protected or me.paused))


# --- the policy over N jobs ---------------------------------------------------------------------------------------------

SETTINGS = Settings(margin=4 * GIB, floor=GIB, grace=30.0)


def machine(*jobs: JobView, available: int = 900 * MIB, shrink: float = 100.0 * MIB) -> View:
    return View(1000.0, available, 0, 0.0, shrink, shrink, jobs)


def kinds(view: View, state: dict[str, JobState] | None = None, **settings: Settings) -> dict[str, str]:
    given = {job.name: settings.get(job.name.split("-")[1], SETTINGS) for job in view.jobs}
    actions, _ = guard_policy.decide(given, view, state or {})
    return {action.job.split("-")[1]: action.kind for action in actions}


def test_one_guard_over_three_jobs_pauses_the_newest_that_grows_and_nobody_else() -> None:
    training, sitting, loader = run(1, 5000), run(2, 800), run(3, 2000, rate=90)
    assert kinds(machine(training, sitting, loader)) == {"r1": "warn", "r2": "warn", "r3": "pause"}


def test_each_job_has_its_own_limit() -> None:
    near, far = run(1, 990, rate=50, limit_headroom=15 * MIB, limit_rate=50.0 * MIB), run(2, 100, rate=50)
    view = machine(near, far, available=20 * GIB)
    assert kinds(view, r1=replace(SETTINGS, limit=1000 * MIB, limit_floor=20 * MIB)) == {"r1": "term"}


def test_a_watched_job_is_left_alone_and_the_others_are_not() -> None:
    one, two = run(1, 3000, rate=60), run(2, 3000, rate=60)
    assert kinds(machine(one, two), r2=replace(SETTINGS, watch_only=True))["r2"] == "warn"


jobs = st.lists(
    st.builds(
        run,
        st.integers(1, 9),
        st.integers(0, 9000),
        st.integers(-50, 500),
        paused=st.sampled_from(["", "", "hand"]),
        protected=st.booleans(),
        reserved=st.booleans(),
        sustained=st.floats(0, 5e8),
        can_push=st.booleans(),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda job: job.name,
)


@given(jobs, st.integers(0, 6 * GIB), st.integers(0, 2 * GIB), st.floats(-1e9, 4e9))
def test_one_guard_over_all_jobs_decides_as_one_guard_each(
    everybody: list[JobView], available: int, swap: int, shrink: float
) -> None:
    """What `run` decides for its own job, a guard over the whole machine decides for that job too."""
    whole = View(1000.0, available, swap, 0.0, shrink, shrink / 2, tuple(everybody))
    together, _ = guard_policy.decide({job.name: SETTINGS for job in everybody}, whole, {})
    alone = []
    for job in everybody:
        others = tuple(replace(other, sustained=0.0) for other in everybody if other is not job)
        found, _ = guard_policy.decide({job.name: SETTINGS}, replace(whole, jobs=(job,), others=others), {})
        alone += found
    assert together == alone
    # Whether a pause can push a job out to swap is known of each job to its own guard only, and decides whose turn it is: one
    # of those that can and one of those that cannot may both see theirs. The latch lets one of them act at a time.
    assert sum(action.kind == "pause" for action in together) <= len({job.can_push for job in everybody})


def test_what_the_others_that_run_take() -> None:
    told = run(2, rate=30, reserved=True, pending=100 * MIB)
    seen = ask(run(1), told, run(3, rate=20), run(4, rate=50, paused="guard"))
    assert (seen.runs_rate, seen.pending) == (50 * MIB, 100 * MIB)
