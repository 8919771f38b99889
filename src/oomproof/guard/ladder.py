"""The ladder of one job: the rules that are asked, and which of their actions may be taken now."""

from __future__ import annotations

from collections.abc import Callable

from oomproof.guard.detect_limit import on_limit
from oomproof.guard.detect_pause import after_pause, on_growth
from oomproof.guard.detect_resume import after_resume, while_paused
from oomproof.guard.detect_shortage import on_machine
from oomproof.guard.view import NONE, Action, ActionHistory, PolicyInput, Settings
from oomproof.leaf.action_kinds import KILL, NOTHING, PAUSE, REQUEST, TERM, WARN, ActionKind
from oomproof.records import replace

Rule = Callable[[Settings, PolicyInput, ActionHistory], Action]
# Of a job that runs. Each says what it calls for, or NONE; the highest of them counts, and the first of equal ones.
RULES: tuple[Rule, ...] = (on_limit, on_machine, on_growth)
LADDER = (NOTHING, WARN, REQUEST, PAUSE, TERM, KILL)
_WITHOUT_PAUSES = ActionHistory(gave_up=True)


def _highest(settings: Settings, facts: PolicyInput, state: ActionHistory) -> Action:
    return max((rule(settings, facts, state) for rule in RULES), key=lambda action: LADDER.index(action.kind))


def wanted(settings: Settings, facts: PolicyInput) -> Action:
    """The action this moment calls for, whatever was done before and if no pause helped."""
    return _highest(settings, facts, _WITHOUT_PAUSES)


def choose(settings: Settings, facts: PolicyInput, state: ActionHistory) -> Action:
    """The action to take now; each action is taken once, a lower one never after a higher one."""
    if state.killed_at is not None:
        return NONE
    if facts.paused:
        return while_paused(settings, facts, state)
    action = _escalate(settings, facts, state, _highest(settings, facts, state))
    if settings.watch_only and action.kind not in (NOTHING, WARN):
        action = replace(action, kind=WARN)
    return NONE if _already(state, action.kind, facts.t) else action


def _escalate(settings: Settings, facts: PolicyInput, state: ActionHistory, action: Action) -> Action:
    """A SIGTERM that was not answered within the grace is followed by the kill, unless the danger has passed."""
    if state.term_at is None or action.kind == KILL:
        return action
    waited = facts.t - state.term_at
    if waited >= settings.grace and action.kind in (REQUEST, TERM):
        return replace(action, kind=KILL, figures={**action.figures, "unanswered": waited})
    return action


def _already(state: ActionHistory, kind: ActionKind, t: float) -> bool:
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


def taken(settings: Settings, action: Action, facts: PolicyInput, state: ActionHistory) -> ActionHistory:
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
