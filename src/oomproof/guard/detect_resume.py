"""A paused job: when it goes on, when pausing it was not enough, when the pause is given up."""

from __future__ import annotations

from oomproof.guard.view import NONE, STALLED, Action, Done, Facts, Settings, headroom, in_words
from oomproof.records import replace
from oomproof.units import format_duration, format_size

ROOM_QUIET = 2.0  # seconds for which that room must have been there: a neighbour's breath is no room
FROZEN_AT_LEAST = 5.0
THAW_PAUSE = 5.0  # seconds between two runs that go on: the second must see what the first takes
SETTLE = 1.0  # seconds after a freeze before its effect is judged


def room_is_back(facts: Facts, state: Done) -> bool:
    """RAM only: what was pushed out must come back into it."""
    return facts.available >= state.thaw_room + max(0, facts.swap - state.frozen_swap)


def while_frozen(settings: Settings, facts: Facts, state: Done) -> Action:
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


def thawed(state: Done, gave_up: bool = False) -> Done:
    """The state after it goes on, whoever let it."""
    return replace(state, frozen_at=None, room_since=None, gave_up=state.gave_up or gave_up)


def kept(settings: Settings, facts: Facts, state: Done, limit: float | None) -> Done:
    """What changed about the pause since the last look: the room, a time limit, the user's own word."""
    if state.frozen_at is None:
        return state
    if facts.frozen != "guard":  # resumed or taken over by hand: then that counts, for this shortage
        return thawed(state, gave_up=True)
    if limit is not None:
        state = replace(state, frozen_until=min(state.frozen_until, state.frozen_at + limit))
    back = room_is_back(facts, state)
    return replace(state, room_since=(state.room_since or facts.t) if back else None)
