"""Pausing a job: when it helps, when it is due, when it ends. Settings and facts in, one action out."""

from __future__ import annotations

from dataclasses import replace

from oomproof.guard.facts import (
    NONE,
    STALLED,
    Action,
    Facts,
    Settings,
    State,
    grows,
    headroom,
    in_words,
    ours,
)
from oomproof.units import format_duration, format_size

# Freezing loses nothing but time, so it may come sooner than SIGTERM: this many seconds of the present growth above the
# floor, the margin at most. From the line to the last byte it took 0.02 s, 0.07 at worst on a machine with load 8
# (bench/freeze.py); the rest is for a process that waits inside the kernel, for a page from swap, and stands still only
# when it has it. Not longer: a loader that would have ended just above the floor would wait for hours for nothing.
FREEZE_SECONDS = 0.25
_LEAST_SECONDS = 0.06  # the same where the margin is as low as the floor: as SIGTERM has (policy.REACT_TERM)
# With disk swap the machine stalls long before RAM and swap are full. In the replay with swap the pause came at 0.16, before
# anybody else had stalled for half a second; SIGTERM, which costs the job, waits for three times as much (STALLED).
FREEZE_STALLED = 0.10
# It goes on when this many seconds of its own growth, a quarter of the floor at least, are free above the line it was
# frozen at: enough that each turn gets something done. Never more than margin + floor, or it might never come.
THAW_SECONDS = 3.0
ROOM_QUIET = 2.0  # seconds for which that room must have been there: a neighbour's breath is no room
FROZEN_AT_LEAST = 5.0
THAW_PAUSE = 5.0  # seconds between two runs that go on: the second must see what the first takes
SETTLE = 1.0  # seconds after a freeze before its effect is judged


def can_freeze(settings: Settings, facts: Facts, state: State) -> bool:
    """Whether a pause of this job could help anybody, now or when the line is reached."""
    if settings.watch_only or settings.protected or settings.freeze_max <= 0:
        return False
    if not facts.freeze_turn or state.gave_up or state.term_at is not None:
        return False
    if facts.running == 0 and facts.waiting > 0:
        return False  # the last that runs: the others wait for it
    if facts.running == 0 and ours(facts):
        return False  # alone, and itself the growth: nobody would ever give room
    # A pause stops growth. What a job holds comes free only where it can be pushed out.
    return grows(facts) or (facts.can_push and facts.use >= settings.floor / 8)


def freeze_line(settings: Settings, facts: Facts) -> int:
    growth = max(0.0, facts.shrink)
    highest = max(settings.margin, settings.floor + growth * _LEAST_SECONDS)
    return int(min(highest, settings.floor + growth * FREEZE_SECONDS))


def freeze_is_due(settings: Settings, facts: Facts) -> bool:
    stalled = facts.stall > FREEZE_STALLED and facts.available <= settings.floor
    if stalled:
        return True
    return facts.shrink > 0 and facts.available + facts.swap_free <= freeze_line(settings, facts)


def thaw_room(settings: Settings, facts: Facts) -> int:
    """RAM that must be available before a job frozen now goes on."""
    line = freeze_line(settings, facts)
    if settings.need is not None and settings.need > facts.use:
        return settings.floor + settings.need - facts.use
    hysteresis = max(settings.floor // 4, int(facts.rate * THAW_SECONDS))
    return min(line + hysteresis, settings.margin + settings.floor)


def freeze(settings: Settings, facts: Facts) -> Action:
    why = in_words(facts)
    if facts.rate > 0:
        why += f" and grows by {format_size(facts.rate)}/s"
    if facts.running:
        other = "another run goes on" if facts.running == 1 else f"{facts.running} other runs go on"
        return Action("freeze", f"{why}; {other}", "machine")
    return Action("freeze", f"{why}; the growth is not this job's", "machine")


def room_is_back(facts: Facts, state: State) -> bool:
    """RAM only: what was pushed out must come back into it."""
    return facts.available >= state.thaw_room + max(0, facts.swap - state.frozen_swap)


def while_frozen(settings: Settings, facts: Facts, state: State) -> Action:
    """A job that stands still: the ladder goes on below it when pausing was not enough, else it waits for its room."""
    if settings.watch_only:
        return NONE
    settled = state.frozen_at is None or facts.t - state.frozen_at >= SETTLE
    pressed = facts.shrink > 0 or facts.stall > STALLED
    if settled and pressed and facts.my_turn and state.term_at is None:
        room = headroom(settings, facts)
        if room <= settings.floor / 2 and facts.use >= settings.floor / 8:
            why = f"{in_words(facts)} while it is paused: pausing it did not help"
            return Action("kill" if room <= settings.floor / 4 else "term", why, "machine")
    if state.frozen_at is None:
        return NONE  # by hand: whoever froze it thaws it
    waited = facts.t - state.frozen_at
    if facts.t >= state.frozen_until:
        return Action("thaw", f"paused for {format_duration(waited)}, as long as it may be", "machine", True)
    if waited < FROZEN_AT_LEAST or not facts.thaw_turn:
        return NONE
    if state.room_since is not None and facts.t - state.room_since >= ROOM_QUIET:
        why = f"{format_size(facts.available)} of RAM available again, after {format_duration(waited)}"
        return Action("thaw", why, "machine")
    if state.for_ours and facts.running == 0 and state.room_since is None:
        why = f"no other run is left that could give room, after {format_duration(waited)}"
        return Action("thaw", why, "machine", True)
    if state.for_ours and facts.others_idle:
        why = f"the other runs do nothing either: they may be waiting for it, after {format_duration(waited)}"
        return Action("thaw", why, "machine", True)
    return NONE


def frozen(settings: Settings, facts: Facts, state: State) -> State:
    """The state after the job was frozen."""
    return replace(
        state,
        frozen_at=facts.t,
        frozen_until=facts.t + settings.freeze_max,
        thaw_room=thaw_room(settings, facts),
        frozen_swap=facts.swap,
        for_ours=facts.running > 0,
        room_since=None,
    )


def thawed(state: State, gave_up: bool = False) -> State:
    """The state after it goes on, whoever let it."""
    return replace(state, frozen_at=None, room_since=None, gave_up=state.gave_up or gave_up)
