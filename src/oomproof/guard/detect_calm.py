"""When a shortage, or what a request was made for, is over: the next one starts its ladder anew."""

from __future__ import annotations

from oomproof.guard.ladder import wanted
from oomproof.guard.view import Action, ActionHistory, JobState, PolicyInput, Settings
from oomproof.leaf.action_kinds import GROWTH_OVER, NOTHING, SHORTAGE_OVER, WARN, WITHDRAW
from oomproof.records import replace

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
