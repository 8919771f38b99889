"""The ladder of one job: which action this moment calls for, and which may be taken now."""

from __future__ import annotations

from oomproof.guard.detect_limit import on_limit
from oomproof.guard.detect_pause import after_pause, can_pause, for_the_last, pause, pause_is_due, will_fit
from oomproof.guard.detect_resume import after_resume, while_paused
from oomproof.guard.detect_shortage import on_machine
from oomproof.guard.view import NONE, Action, Done, Facts, Settings
from oomproof.leaf.action_kinds import KILL, NOTHING, PAUSE, REQUEST, TERM, WARN, ActionKind
from oomproof.records import replace

LADDER = (NOTHING, WARN, REQUEST, PAUSE, TERM, KILL)


def wanted(settings: Settings, facts: Facts) -> Action:
    """The action this moment calls for, whatever was done before."""
    limit, machine = on_limit(settings, facts), on_machine(settings, facts)
    if machine.kind in (REQUEST, TERM, KILL) and will_fit(settings, facts):
        machine = replace(machine, kind=WARN)
    return machine if LADDER.index(machine.kind) > LADDER.index(limit.kind) else limit


def choose(settings: Settings, facts: Facts, state: Done) -> Action:
    """The action to take now; each action is taken once, a lower one never after a higher one."""
    if state.killed_at is not None:
        return NONE
    if facts.paused:
        return while_paused(settings, facts, state)
    if can_pause(settings, facts, state) and not will_fit(settings, facts):
        limit, machine = on_limit(settings, facts), on_machine(settings, facts)
        if pause_is_due(for_the_last(settings, facts), facts):
            machine = pause(settings, facts)
        elif machine.kind in (REQUEST, TERM, KILL):  # a pause is still to come, and it costs less
            machine = replace(machine, kind=WARN)
        action = machine if LADDER.index(machine.kind) > LADDER.index(limit.kind) else limit
        return NONE if _already(state, action.kind, facts.t) else action
    action = _escalate(settings, facts, state, wanted(settings, facts))
    if settings.watch_only and action.kind not in (NOTHING, WARN):
        action = replace(action, kind=WARN)
    return NONE if _already(state, action.kind, facts.t) else action


def _escalate(settings: Settings, facts: Facts, state: Done, action: Action) -> Action:
    """A SIGTERM that was not answered within the grace is followed by the kill, unless the danger has passed."""
    if state.term_at is None or action.kind == KILL:
        return action
    waited = facts.t - state.term_at
    if waited >= settings.grace and action.kind in (REQUEST, TERM):
        return replace(action, kind=KILL, figures={**action.figures, "unanswered": waited})
    return action


def _already(state: Done, kind: ActionKind, t: float) -> bool:
    if kind == WARN:
        recently = state.warned_at is not None and t - state.warned_at < 600
        return recently or state.asked_at is not None or state.term_at is not None
    if kind == REQUEST:
        return state.asked_at is not None or state.term_at is not None
    if kind == PAUSE:
        return state.paused_at is not None or state.term_at is not None
    if kind == TERM:
        return state.term_at is not None
    return kind == NOTHING


def taken(settings: Settings, action: Action, facts: Facts, state: Done) -> Done:
    """The state after that action was carried out."""
    if action.kind == PAUSE:
        return after_pause(settings, facts, state)
    if state.paused_at is not None or facts.paused:
        state = after_resume(state, action.gave_up)
    if action.kind == WARN:
        return replace(state, warned_at=facts.t)
    if action.kind == REQUEST:
        return replace(state, asked_at=facts.t, asked_for=action.scope)
    if action.kind == TERM:
        return replace(state, term_at=facts.t)
    if action.kind == KILL:
        return replace(state, killed_at=facts.t)
    return state
