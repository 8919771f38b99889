"""The guard's whole policy over N jobs: settings, view and state in, actions and state out. Nothing here touches the machine.

Each rule is a file of its own: detect_limit, detect_shortage, detect_pause, detect_resume. `ladder` has their list and takes the
highest action, `policy_input` makes what they go by; detect_unmanaged has the rules for a job that was not started by us.
"""

from __future__ import annotations

from collections.abc import Mapping

from oomproof.guard import detect_unmanaged, ladder
from oomproof.guard.detect_resume import update_pause
from oomproof.guard.detect_unmanaged import Pauses
from oomproof.guard.ladder import reset_after_shortage
from oomproof.guard.policy_input import input_of
from oomproof.guard.view import Action, JobState, JobView, PolicyInput, Settings, View, ours
from oomproof.leaf.action_kinds import KILL, NOTHING, PAUSE, REQUEST, TERM, WITHDRAW
from oomproof.records import replace

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
        facts, after = input_of(given, view, job, before)
        after, withdrawn = reset_after_shortage(given, facts, after)
        done = update_pause(given, facts, after.done, job.pause_limit)
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
        actions += _choice(given, view, job, input_of(given, view, job, before)[0], before, pauses)
    return actions


def _choice(
    settings: Settings, view: View, job: JobView, facts: PolicyInput, state: JobState, pauses: Pauses
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
