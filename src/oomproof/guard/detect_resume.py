"""A paused job: when it is resumed, when pausing it was not enough, when the pause is given up."""

from __future__ import annotations

from oomproof.guard.detect_pause import PARTS, line_beside_a_turn
from oomproof.guard.view import (
    NONE,
    STALLED,
    Action,
    ActionHistory,
    PolicyInput,
    Settings,
    headroom,
    shortage,
)
from oomproof.leaf.action_kinds import (
    DEADLOCK,
    HEADROOM_BACK,
    KILL,
    NO_RUN_LEFT,
    NOTHING_FREED,
    OTHERS_IDLE,
    PAUSE_EXPIRED,
    PAUSE_IN_VAIN,
    RESUME,
    TERM,
    ActionReason,
)
from oomproof.records import replace

HEADROOM_SECONDS = 2.0  # seconds for which that headroom must have lasted: what a neighbour frees for a moment does not count
PAUSED_AT_LEAST = 5.0
RESUME_INTERVAL = 5.0  # seconds between two runs that resume: the second must see what the first takes
UNMANAGED_SECONDS = 120.0  # that unmanaged jobs have to end and free memory; they may be paused themselves, and wait for this one
PAUSED_SECONDS = 30.0  # the same where all of them are paused: they may have a turn each
SOON = 5.0  # seconds, in which growth that lasts would take what is left
# that all jobs have been paused, runs and others, with a turn for each that may have one
STUCK_SECONDS = 300.0
_SECONDS_LEFT = 0.5  # of the machine's growth: who takes nothing is ended as late as there is time for
SETTLE = 1.0  # seconds after a pause before its effect is judged


def headroom_is_back(facts: PolicyInput, state: ActionHistory) -> bool:
    """RAM only: what was pushed out must come back into it. What is reserved for those that run is theirs."""
    own = state.resume_headroom + max(0, facts.swap - state.paused_swap)
    return facts.available - facts.pending >= own


def end_line(settings: Settings, facts: PolicyInput) -> float:
    """At so much left a job that takes nothing is ended for others' growth: whoever grows may be paused a moment later."""
    if facts.stall > STALLED or not (facts.unmanaged_wait or facts.searching):
        return settings.floor / 2
    if facts.unmanaged_wait and (facts.unmanaged_runs or facts.running == 1):
        return line_beside_a_turn(settings.floor, facts.shrink)
    return max(settings.floor / 4, min(settings.floor / 2, facts.shrink * _SECONDS_LEFT))


def while_paused(settings: Settings, facts: PolicyInput, state: ActionHistory) -> Action:
    """A job that is paused: the ladder continues below it when pausing was not enough, else it waits for its headroom."""
    if settings.watch_only:
        return NONE
    available = headroom(settings, facts)
    settled = state.paused_at is None or state.paused_left is not None
    # on a slow machine two looks are seconds apart, and the growth between them may be from before the pause
    since_the_pause = state.paused_left is None or available < state.paused_left
    # nor is a program that starts, a few MiB in a moment, a reason where no run is left that grows: in one replay 53 MiB were left
    # for 15 s, then 49
    soon = available - max(0.0, min(facts.shrink, facts.drain)) * SOON
    least = settings.floor / 8
    lasts = facts.running > 0 or soon <= least
    shrinks = facts.shrink > 0 and (available <= least or (since_the_pause and lasts))
    pressed = (shrinks and not _will_end(settings, facts)) or facts.stall > STALLED
    if settled and pressed and facts.my_turn and state.term_at is None:
        line = end_line(settings, facts)
        if available <= line and facts.use >= settings.floor / 8:
            return Action(KILL if available <= line / 2 else TERM, PAUSE_IN_VAIN, shortage(facts), "machine")
    if state.paused_at is None:
        return NONE  # by hand: whoever paused it resumes it
    waited = facts.t - state.paused_at
    if facts.t >= state.paused_until:
        return _resume(PAUSE_EXPIRED, waited, gave_up=True)
    if _is_stuck(settings, facts, state):
        return Action(TERM, DEADLOCK, shortage(facts), "machine", gave_up=True)
    if waited < PAUSED_AT_LEAST or not facts.resume_turn:
        return NONE
    if state.headroom_since is not None and facts.t - state.headroom_since >= HEADROOM_SECONDS:
        return Action(RESUME, HEADROOM_BACK, {"available": facts.available, "waited": waited}, "machine")
    if facts.available <= settings.floor / 6 or facts.unmanaged_runs:
        return NONE  # it would only be ended: somebody who holds more may still be tried, or has its turn
    if state.for_ours and facts.running == 0 and state.headroom_since is None:
        return _resume(NO_RUN_LEFT, waited, gave_up=not facts.unmanaged_wait and not facts.waiting)
    wait = UNMANAGED_SECONDS if facts.unmanaged_lives else PAUSED_SECONDS
    if state.for_unmanaged and waited >= wait and state.headroom_since is None:
        had_its_turns = facts.unmanaged_lives or state.pauses >= len(PARTS)
        return _resume(NOTHING_FREED, waited, gave_up=had_its_turns)
    if state.for_ours and facts.others_idle:
        return _resume(OTHERS_IDLE, waited, gave_up=True)
    return NONE


def _resume(reason: ActionReason, waited: float, gave_up: bool) -> Action:
    return Action(RESUME, reason, {"waited": waited}, "machine", gave_up)


def _will_end(settings: Settings, facts: PolicyInput) -> bool:
    """Most of the growth is of runs whose need is known, and leaves a part of the floor when it is reached."""
    return facts.known_rate >= facts.shrink / 2 and facts.available - facts.pending > settings.floor / 8


def _is_stuck(settings: Settings, facts: PolicyInput, state: ActionHistory) -> bool:
    """All wait for each other, some of them jobs that are not ours to end, and nobody has had a turn for a long while."""
    if state.alone_since is None or facts.t - state.alone_since < STUCK_SECONDS or state.term_at is not None:
        return False
    return facts.my_turn and facts.use >= settings.floor / 8 and (facts.unmanaged_wait or facts.waiting > 0)


def after_resume(state: ActionHistory, gave_up: bool = False) -> ActionHistory:
    """The state after it was resumed, by whomever."""
    return replace(
        state, paused_at=None, headroom_since=None, alone_since=None, gave_up=state.gave_up or gave_up
    )


def update_pause(
    settings: Settings, facts: PolicyInput, state: ActionHistory, limit: float | None
) -> ActionHistory:
    """What changed about the pause since the last look: the headroom, a time limit, the user's own word."""
    paused_at = state.paused_at
    if paused_at is None:
        return state
    if facts.paused != "guard":  # resumed or taken over by hand: then that counts, for this shortage
        return after_resume(state, gave_up=True)
    if limit is not None:
        state = replace(state, paused_until=min(state.paused_until, paused_at + limit))
    back = headroom_is_back(facts, state)
    since = (state.headroom_since or facts.t) if back else None
    # what one that has just begun or resumed takes is to be seen first
    if since is not None and facts.running > state.running:
        since = max(since, facts.t + RESUME_INTERVAL - HEADROOM_SECONDS)
    left = state.paused_left
    if left is None and facts.t - paused_at >= SETTLE:
        left = headroom(settings, facts)
    is_alone = facts.running == 0 and not facts.unmanaged_runs
    alone = (state.alone_since or facts.t) if is_alone else None
    return replace(state, headroom_since=since, running=facts.running, alone_since=alone, paused_left=left)
