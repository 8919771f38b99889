"""The ladder of one job: the rules that are asked, and which of their actions may be taken now."""

from __future__ import annotations

from collections.abc import Callable

from oomproof.guard.detect_limit import on_limit
from oomproof.guard.detect_pause import after_pause, on_growth
from oomproof.guard.detect_resume import after_resume, while_paused
from oomproof.guard.detect_shortage import on_machine
from oomproof.guard.view import NONE, Action, ActionHistory, JobState, PolicyInput, Settings
from oomproof.leaf.action_kinds import (
    GROWTH_OVER,
    KILL,
    NOTHING,
    PAUSE,
    REQUEST,
    SHORTAGE_OVER,
    TERM,
    WARN,
    WITHDRAW,
    ActionKind,
)
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


_SHORTAGE_SECONDS = 60.0  # seconds without any call to act: the next shortage starts its ladder anew
# seconds in which nothing calls for a request made for the limit's sake: it is taken back
REQUEST_OVER = 10.0


def request_is_over(settings: Settings, facts: PolicyInput, state: ActionHistory) -> bool:
    """Whether this moment no longer calls for the request that was made for the limit's sake."""
    if state.asked_at is None or state.asked_for != "limit" or state.term_at is not None:
        return False
    return wanted(settings, facts).kind in (NOTHING, WARN)


def reset_after_shortage(
    settings: Settings, facts: PolicyInput, state: JobState
) -> tuple[JobState, list[Action]]:
    """Days later, an old SIGTERM must not make a kill of the next warning. And our own requests are taken back."""
    if state.done.paused_at is not None:
        return (state if state.calm_since is None else replace(state, calm_since=None)), []
    if state.done == ActionHistory() and state.calm_since is None and state.unasked_since is None:
        return state, []
    state, withdrawn = _request(settings, facts, state)
    done = state.done
    if done == ActionHistory() or wanted(settings, facts).kind != NOTHING:
        return replace(state, calm_since=None), withdrawn
    if state.calm_since is None:
        return replace(state, calm_since=facts.t), withdrawn
    if facts.t - state.calm_since <= _SHORTAGE_SECONDS:
        return state, withdrawn
    withdrawn.append(Action(WITHDRAW, SHORTAGE_OVER))
    return replace(state, done=ActionHistory(warned_at=done.warned_at), calm_since=None), withdrawn


def _request(settings: Settings, facts: PolicyInput, state: JobState) -> tuple[JobState, list[Action]]:
    """A job that has stopped growing under its limit is no longer asked to stop."""
    if not request_is_over(settings, facts, state.done):
        return (state if state.unasked_since is None else replace(state, unasked_since=None)), []
    if state.unasked_since is None:
        return replace(state, unasked_since=facts.t), []
    if facts.t - state.unasked_since <= REQUEST_OVER:
        return state, []
    done = replace(state.done, asked_at=None, asked_for="")
    return replace(state, done=done, unasked_since=None), [Action(WITHDRAW, GROWTH_OVER)]
