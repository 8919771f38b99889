"""The guard's whole policy over N jobs: settings, view and state in, actions and state out. Nothing here touches the machine.

Each rule is a file of its own: detect_limit, detect_shortage, detect_pause, detect_resume, detect_calm, turn_order,
poll_interval. `ladder` joins them for one job; detect_unmanaged has those for a job that was not started by us.
"""

from __future__ import annotations

from collections.abc import Mapping

from oomproof.guard import detect_unmanaged, ladder
from oomproof.guard.detect_calm import calmed
from oomproof.guard.detect_resume import kept
from oomproof.guard.detect_unmanaged import Pauses
from oomproof.guard.turn_order import turns
from oomproof.guard.view import Action, Facts, JobState, JobView, Settings, View, is_near, ours
from oomproof.leaf.action_kinds import KILL, NOTHING, PAUSE, REQUEST, TERM, WITHDRAW
from oomproof.records import replace

DRAIN_SECONDS = 5.0  # what others take counts over this long
NEW = JobState()
NOBODY: Pauses = {}
_TOUCHES = (REQUEST, PAUSE, TERM, KILL)


def decide(
    settings: Mapping[str, Settings], view: View, state: Mapping[str, JobState], pauses: Pauses = NOBODY
) -> tuple[list[Action], dict[str, JobState]]:
    """What to do now, and what is remembered. An action changes the state once it was carried out: `carried_out`.

    ``pauses``: of unmanaged jobs, as detect_unmanaged left them at this look."""
    actions: list[Action] = []
    remembered: dict[str, JobState] = {}
    for job in view.jobs:
        given, before = settings[job.name], state.get(job.name, NEW)
        facts, after = facts_of(given, view, job, before)
        after, withdrawn = calmed(given, facts, after)
        done = kept(given, facts, after.done, job.pause_limit)
        remembered[job.name] = after = after if done is after.done else replace(after, done=done)
        actions += [replace(action, job=job.name, facts=facts) for action in withdrawn]
        actions += _choice(given, view, job, facts, after, pauses)
    return actions, remembered


def choose(
    settings: Mapping[str, Settings], view: View, state: Mapping[str, JobState], pauses: Pauses = NOBODY
) -> list[Action]:
    """The same for a second look a moment later, of which nothing is remembered."""
    actions = []
    for job in view.jobs:
        given, before = settings[job.name], state.get(job.name, NEW)
        actions += _choice(given, view, job, facts_of(given, view, job, before)[0], before, pauses)
    return actions


def _choice(
    settings: Settings, view: View, job: JobView, facts: Facts, state: JobState, pauses: Pauses
) -> list[Action]:
    action = ladder.choose(settings, facts, state.done)
    for_the_machine = action.scope == "machine" and action.kind in _TOUCHES and not action.gave_up
    theirs = not ours(facts) and (action.kind != PAUSE or facts.rate + facts.runs_rate < facts.shrink / 2)
    if for_the_machine and theirs and detect_unmanaged.spares_ours(settings, view, pauses):
        return []  # whoever fills the machine is paused first
    ends = for_the_machine and (action.kind in (TERM, KILL) or (action.kind == PAUSE and not facts.running))
    if ends and detect_unmanaged.pause_is_enough(settings, view, pauses):
        return []  # nor for a moment of growth of its own
    if for_the_machine and action.kind == TERM and detect_unmanaged.paused_elsewhere_now(view, pauses):
        return []
    return [] if action.kind == NOTHING else [replace(action, job=job.name, facts=facts)]


def carried_out(settings: Settings, action: Action, state: JobState) -> JobState:
    """The state after an action."""
    if action.facts is None or action.kind == WITHDRAW:
        return state
    return replace(state, done=ladder.taken(settings, action, action.facts, state.done))


def facts_of(settings: Settings, view: View, job: JobView, state: JobState) -> tuple[Facts, JobState]:
    """What the detectors of one job go by, and what is remembered of the others."""
    can_push = job.can_push and view.swap_free > settings.floor // 8
    facts = Facts(
        t=view.t,
        available=view.available,
        swap_free=view.swap_free,
        stall=view.stall,
        use=job.use,
        rate=job.rate,
        sustained=job.sustained,
        shrink=view.shrink,
        limit_headroom=job.limit_headroom,
        peak_headroom=job.peak_headroom,
        limit_rate=job.limit_rate,
        lasting=job.lasting,
        time_to_full=job.time_to_full,
        paused=job.paused,
        swap=job.swap,
        can_push=can_push,
    )
    if not job.paused and not is_near(settings, view.available, view.swap_free):
        return facts, state
    others = (*(candidate for candidate in view.jobs if candidate is not job), *view.others)
    turn = turns(job, others, settings.floor // 8, max(0.0, view.shrink), can_push)
    waiting = turn.waiting + sum(bool(job.paused) for job in view.unmanaged)
    others_changed = waiting > state.waiting or turn.running > state.running
    changed_at = view.t if others_changed else state.others_changed_at
    near = replace(
        facts,
        # what another job took before it was paused, or a run of ours as it started, is no growth to come
        drain=view.drain if view.t - changed_at > DRAIN_SECONDS else 0.0,
        my_turn=turn.to_end,
        pause_turn=turn.to_pause,
        resume_turn=turn.to_resume,
        running=turn.running,
        waiting=turn.waiting,
        pending=turn.pending,
        runs_rate=turn.rate,
        known_rate=turn.known_rate,
        searching=view.searching,
        pauses=state.done.pauses,
        unmanaged_wait=any(job.paused or job.waited or not job.tie for job in view.unmanaged),
        unmanaged_lives=any(not job.paused and not job.tie for job in view.unmanaged),
        unmanaged_runs=any(job.waited and not job.paused for job in view.unmanaged),
        others_idle=view.others_idle and bool(job.paused),
    )
    if (waiting, turn.running, changed_at) == (state.waiting, state.running, state.others_changed_at):
        return near, state
    return near, replace(state, waiting=waiting, running=turn.running, others_changed_at=changed_at)
