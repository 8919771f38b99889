"""Pausing a job: when it helps, and when it is due."""

from __future__ import annotations

from oomproof.guard.view import NONE, Action, ActionHistory, PolicyInput, Settings, grows, ours, shortage
from oomproof.leaf.action_kinds import OTHERS_GROWTH, PAUSE, RUNS_CONTINUE, UNMANAGED_NEED
from oomproof.records import replace

# So many parts of the floor are left to the one that runs: at its first turn, and later. The same for runs and for jobs that were
# not started by us: who waits longest would else never get what the others may take.
PARTS = (2, 4, 8)
_LAST = 2 * PARTS[-1]
# Of the present growth. Less than a pause comes before its line (detect_pause.PAUSE_REACTION_SECONDS), so that the pause is first.
_SECONDS_LEFT = 0.2


def turn_floor(floor: int, turns: int) -> int:
    """The floor of one that had so many turns."""
    return floor // PARTS[min(turns, len(PARTS) - 1)]


def line_beside_a_turn(floor: int, shrink: float) -> float:
    """At so much left a job that takes nothing is ended while another one has its turn."""
    return max(floor / _LAST, min(floor / 2, shrink * _SECONDS_LEFT))


# Pausing loses nothing but time, so it may come sooner than SIGTERM: this many seconds of the present growth above the
# floor, the margin at most. From the threshold to the last byte it took 0.02 s, 0.07 at worst on a machine with load 8
# (bench/freeze.py); the rest is for a process that waits inside the kernel, for a page from swap, and stops only
# when it has it. Not longer: a loader that would have ended just above the floor would wait for hours for nothing.
PAUSE_REACTION_SECONDS = 0.25
# the same where the margin is as low as the floor: as SIGTERM has (detect_shortage.REACT_TERM)
_LEAST_SECONDS = 0.06
# With disk swap the machine stalls long before RAM and swap are full. In the replay with swap the pause came at 0.16, before
# anybody else had stalled for half a second; SIGTERM, which costs the job, waits for three times as much (STALLED).
PAUSE_STALLED = 0.10
# It resumes when this many seconds of its own growth, a quarter of the floor at least, are free above the threshold it was
# paused at: enough that each turn gets something done. Never more than margin + floor, or it might never come.
RESUME_SECONDS = 3.0


def can_pause(settings: Settings, facts: PolicyInput, state: ActionHistory) -> bool:
    """Whether a pause of this job could help anybody, now or when the threshold is reached."""
    if settings.watch_only or settings.protected or settings.pause_max <= 0:
        return False
    if not facts.pause_turn or state.gave_up or state.term_at is not None:
        return False
    if facts.running == 0 and facts.waiting > 0 and not facts.unmanaged_wait:
        return False  # the last that runs: the others wait for it
    if facts.running == 0 and ours(facts) and not facts.unmanaged_wait:
        return False  # alone, and itself the growth: nobody would ever free memory
    # A pause stops growth. What a job holds comes free only where it can be pushed out.
    return grows(facts) or (facts.can_push and facts.use >= settings.floor / 8)


def is_waited_for(facts: PolicyInput) -> bool:
    """The last that runs while others are paused: they have stopped for it, and what it needs may be all that is left."""
    return facts.running == 0 and (facts.waiting > 0 or facts.unmanaged_wait)


def for_the_last(settings: Settings, facts: PolicyInput) -> Settings:
    """Such a job may take half of the floor, and more at later turns."""
    if not is_waited_for(facts):
        return settings
    return replace(settings, floor=turn_floor(settings.floor, facts.pauses))


def will_fit(settings: Settings, facts: PolicyInput) -> bool:
    """What it has yet to take is known, and leaves a part of the floor: then neither a pause nor an end helps anybody."""
    left = yet_to_take(settings, facts)
    if left is None or not ours(facts):
        return False
    return facts.available + facts.swap_free - facts.pending - left > settings.floor / 4


def yet_to_take(settings: Settings, facts: PolicyInput) -> int | None:
    """Of what it needs, where that is known and was not exceeded; needs are told in round figures."""
    if settings.need is None or facts.use > settings.need + settings.floor // 16:
        return None
    return max(0, settings.need - facts.use)


def pause_threshold(settings: Settings, facts: PolicyInput) -> int:
    growth = max(0.0, facts.shrink)
    highest = max(settings.margin, settings.floor + growth * _LEAST_SECONDS)
    return int(min(highest, settings.floor + growth * PAUSE_REACTION_SECONDS))


def pause_is_due(settings: Settings, facts: PolicyInput) -> bool:
    stalled = facts.stall > PAUSE_STALLED and facts.available <= settings.floor
    if stalled:
        return True
    return facts.shrink > 0 and facts.available + facts.swap_free <= pause_threshold(settings, facts)


def resume_headroom(settings: Settings, facts: PolicyInput) -> int:
    """RAM that must be available before a job paused now is resumed."""
    line = pause_threshold(settings, facts)
    left = yet_to_take(settings, facts)
    if left is not None:
        return settings.floor // 4 + left  # as will_fit has it
    hysteresis = max(settings.floor // 4, int(facts.rate * RESUME_SECONDS))
    return min(line + hysteresis, settings.margin + settings.floor)


def on_growth(settings: Settings, facts: PolicyInput, state: ActionHistory) -> Action:
    """A pause, where one helps and is due."""
    if not can_pause(settings, facts, state) or will_fit(settings, facts):
        return NONE
    if not pause_is_due(for_the_last(settings, facts), facts):
        return NONE
    figures = shortage(facts)
    if not facts.running and not ours(facts):
        return Action(PAUSE, OTHERS_GROWTH, figures, "machine")
    if facts.rate > 0:
        figures["rate"] = facts.rate
    if not facts.running:
        return Action(PAUSE, UNMANAGED_NEED, figures, "machine")
    figures["runs"] = facts.running
    return Action(PAUSE, RUNS_CONTINUE, figures, "machine")


def after_pause(settings: Settings, facts: PolicyInput, state: ActionHistory) -> ActionHistory:
    """The state after the job was paused."""
    return replace(
        state,
        paused_at=facts.t,
        paused_until=facts.t + settings.pause_max,
        resume_headroom=resume_headroom(settings, facts),
        paused_swap=facts.swap,
        paused_left=None,
        for_ours=facts.running > 0 or facts.waiting > 0,
        for_unmanaged=facts.running == 0 and facts.waiting == 0 and ours(facts),
        headroom_since=None,
        pauses=state.pauses + 1,
        running=facts.running,
        alone_since=None,
    )
