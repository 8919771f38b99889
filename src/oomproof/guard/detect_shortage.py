"""The machine near its floor: whose growth it is decides who is warned, asked or ended, and when."""

from __future__ import annotations

from oomproof.guard.detect_limit import TERM_SECONDS
from oomproof.guard.detect_pause import can_pause, for_the_last, will_fit
from oomproof.guard.detect_resume import end_line
from oomproof.guard.view import (
    NONE,
    STALLED,
    Action,
    ActionHistory,
    Figures,
    PolicyInput,
    Settings,
    headroom,
    ours,
    shortage,
)
from oomproof.leaf.action_kinds import BELOW_MARGIN, KILL, OTHERS_GROWTH, OWN_GROWTH, REQUEST, TERM, WARN
from oomproof.records import replace

# Seconds from a look to a job that no longer grows: a poll, the look again, the signal (bench/guard.py measures it).
# Longer is no safer: a burst that would have ended by itself is then ended for nothing.
REACT_TERM = 0.06
REACT_KILL = 0.03
# On the machine's floor: ended when the next line below is reached within TERM_SECONDS, or, by growth that has lasted,
# within this many. A job that only breathes (1 MiB up and down) beside a full machine is no danger: in one replay the
# training was ended, by all signs for that, while the loader that it had to outlive was paused.
LASTING_SECONDS = 10.0
_GOES_ON = 1 / 8  # of the growth that lasted: below that it has just ended


def on_machine(settings: Settings, facts: PolicyInput, state: ActionHistory) -> Action:
    """The machine's floor; only a warning while a pause is still to come, which costs less, and where the job will fit."""
    action = _on_floor(settings, facts)
    if action.kind not in (REQUEST, TERM, KILL):
        return action
    spared = will_fit(settings, facts) or can_pause(settings, facts, state)
    return replace(action, kind=WARN) if spared else action


def _on_floor(settings: Settings, facts: PolicyInput) -> Action:
    """Whose growth it is decides who is touched, and when."""
    available = headroom(settings, facts)
    shrink = max(0.0, facts.shrink)
    floor = for_the_last(settings, facts).floor
    # one whose pauses are over is ended as soon as it takes more: what is left is for its saving
    line = max(settings.floor if facts.pauses else floor, shrink * REACT_TERM)
    if available > max(settings.margin, line):
        return NONE
    is_ours, state = ours(facts), shortage(facts)
    helps = facts.use >= settings.floor / 8  # ending a job that holds next to nothing frees next to nothing
    if is_ours and facts.my_turn and helps:
        growing: Figures = {**state, "rate": max(facts.rate, facts.sustained)}
        if available <= max(floor / 2, shrink * REACT_KILL) and _reaches(facts, available - floor / 4):
            return Action(KILL, OWN_GROWTH, growing, "machine")
        if available <= line and _reaches(facts, available - floor / 2):
            return Action(TERM, OWN_GROWTH, growing, "machine")
        if facts.sustained > 0 and available <= _ask_threshold(settings, facts):
            growing["full_in"] = available / facts.sustained
            return Action(REQUEST, OWN_GROWTH, growing, "machine")
    elif not is_ours and facts.my_turn and available <= settings.floor:
        # Somebody else fills the machine. We are touched last, but before the kernel picks by size.
        last = end_line(settings, facts)
        if available <= last and facts.use >= settings.floor / 4 and _is_filled(settings, facts, available):
            kind = KILL if available <= last / 2 else TERM
            return Action(kind, OTHERS_GROWTH, state, "machine")
        # Asked when the next action would come within the grace. Not by one breath of others, a few MiB in a third of a
        # second: in one replay the training was asked to stop for that, while the loader waited for it to end.
        lasting = min(shrink, facts.drain)
        pressing = lasting > 0 and available - lasting * settings.grace <= settings.floor / 2
        return Action(REQUEST if pressing else WARN, OTHERS_GROWTH, state, "machine")
    if available <= settings.margin:
        return Action(WARN, BELOW_MARGIN, {**state, "margin": settings.margin}, "machine")
    return NONE


def _is_filled(settings: Settings, facts: PolicyInput, available: int) -> bool:
    """Whether others still take what is left: a job that only holds is not ended because others hold the rest."""
    lasting = max(0.0, min(facts.shrink, facts.drain))
    return facts.stall > STALLED or available - lasting * LASTING_SECONDS <= settings.floor / 8


def _reaches(facts: PolicyInput, gap: float) -> bool:
    """Whether this job's growth soon takes that much more."""
    if facts.rate <= 0 or facts.rate < facts.sustained * _GOES_ON:
        return False
    soon = max(facts.rate * TERM_SECONDS, facts.sustained * LASTING_SECONDS)
    return soon >= gap


def _ask_threshold(settings: Settings, facts: PolicyInput) -> float:
    """What the growth takes within the grace, above the floor; a trickle is let come half a floor nearer."""
    taken_then = facts.sustained * settings.grace
    base = settings.floor if taken_then >= settings.floor / 2 else settings.floor / 2
    return min(settings.margin, base + taken_then)
