"""What to do about memory: settings and facts in, one action out. Nothing here touches the machine."""

from __future__ import annotations

from dataclasses import replace

from oomproof.guard.facts import NONE, Action, Facts, Settings, State, headroom, in_words, ours
from oomproof.guard.pausing import can_freeze, freeze, freeze_is_due, thawed, while_frozen
from oomproof.units import MIB, format_duration, format_size

# Python's allocator and the kernel's page faults fill about 2 GiB/s per core here and up to 6 GiB/s on fast desktops
# with several threads (earlyoom measured 6000 MiB/s with `stress -m 4`): the poll must be sooner than that.
FASTEST_FILL = 6000 * MIB
POLL_MIN, POLL_MAX = 0.01, 1.0
POLL_FAST = 0.002  # where the present growth reaches the line within POLL_MIN
POLL_MIN_CALM = 0.1  # a job that has not grown for 15 s cannot be worth a hundred wake-ups a second

# Seconds from a look to a job that no longer grows: a poll, the look again, the signal (bench/guard.py measures it).
# Longer is no safer: a burst that would have ended by itself is then ended for nothing.
REACT_TERM = 0.06
REACT_KILL = 0.03
# Under a limit a job that is looked at too late is ended by the kernel, which is exact; and a loader's burst of 150 MiB/s
# that stays 9 MiB below the limit is no danger (bench/false_stops.py).
REACT_LIMIT = 0.04
# Under its own limit a job is ended only when it will be full within this many seconds.
KILL_SECONDS, TERM_SECONDS = 0.5, 2.0
# A limit is the user's word, and often set just above what the job needs: with less than this share of it left, and
# not before, growth is acted on. A job whose limit is 5 % above its peak keeps 4.8 % of it free (bench/false_stops.py).
LIMIT_SHARE = 1 / 22
# A job that has outgrown its usual peak by this much does something new: then a request may come sooner, below a
# quarter of the limit.
OUTGROWN, EARLY_SHARE = 1.05, 1 / 4
# On the machine's floor: ended when the next line below is reached within TERM_SECONDS, or, by growth that has lasted,
# within this many. A job that only breathes (1 MiB up and down) beside a full machine is no danger: in one replay the
# training was ended, by all signs for that, while the loader that it had to outlive was paused.
LASTING_SECONDS = 10.0
SHORTAGE_OVER = 60.0  # seconds without any call to act: the next shortage starts its ladder anew
REQUEST_OVER = (
    10.0  # seconds in which nothing calls for a request made for the limit's sake: it is taken back
)
TREND_WARNING = 900.0  # warn when a steady growth fills memory within this many seconds

LADDER = ("none", "warn", "ask", "freeze", "term", "kill")


def default_limit_floor(limit: int) -> int:
    """Small: fast growth has a line of its own, and a job that was just asked to save needs the rest for that."""
    return max(min(2 * MIB, int(limit * LIMIT_SHARE)), limit // 400)


def poll_seconds(settings: Settings, facts: Facts) -> float:
    """Sleep for as long as the fastest possible fill takes to reach the nearest line."""
    room = headroom(settings, facts) - settings.floor
    if facts.limit_headroom is not None:
        # half: eight threads fill 11 GiB/s, and a small limit is crossed within one poll (bench/guard.py)
        room = min(room, (facts.limit_headroom - settings.limit_floor) // 2)
    quiet = facts.sustained == 0 and facts.rate <= 0
    least = POLL_MIN_CALM if quiet else POLL_MIN
    if facts.rate * POLL_MIN > max(room, MIB):
        least = POLL_FAST
    return min(POLL_MAX, max(least, room / FASTEST_FILL))


def wanted(settings: Settings, facts: Facts) -> Action:
    """The rung this moment calls for, whatever was done before."""
    limit, machine = _on_limit(settings, facts), _on_machine(settings, facts)
    return machine if LADDER.index(machine.kind) > LADDER.index(limit.kind) else limit


def decide(settings: Settings, facts: Facts, state: State) -> Action:
    """The rung to take now; each rung is taken once, a lower one never after a higher one."""
    if state.killed_at is not None:
        return NONE
    if facts.frozen:
        return while_frozen(settings, facts, state)
    if can_freeze(settings, facts, state):
        limit, machine = _on_limit(settings, facts), _on_machine(settings, facts)
        if freeze_is_due(settings, facts):
            machine = freeze(settings, facts)
        elif machine.kind in ("ask", "term", "kill"):  # a pause is still to come, and it costs less
            machine = replace(machine, kind="warn")
        action = machine if LADDER.index(machine.kind) > LADDER.index(limit.kind) else limit
        return NONE if _already(state, action.kind, facts.t) else action
    action = _escalate(settings, facts, state, wanted(settings, facts))
    if settings.watch_only and action.kind not in ("none", "warn"):
        action = replace(action, kind="warn")
    return NONE if _already(state, action.kind, facts.t) else action


def _escalate(settings: Settings, facts: Facts, state: State, action: Action) -> Action:
    """A SIGTERM that was not answered within the grace is followed by the kill, unless the danger has passed."""
    if state.term_at is None or action.kind == "kill":
        return action
    waited = facts.t - state.term_at
    if waited >= settings.grace and action.kind in ("ask", "term"):
        return Action(
            "kill", f"SIGTERM went unanswered for {format_duration(waited)}; {action.why}", action.scope
        )
    return action


def _already(state: State, kind: str, t: float) -> bool:
    if kind == "warn":
        recently = state.warned_at is not None and t - state.warned_at < 600
        return recently or state.asked_at is not None or state.term_at is not None
    if kind == "ask":
        return state.asked_at is not None or state.term_at is not None
    if kind == "freeze":
        return state.frozen_at is not None or state.term_at is not None
    if kind == "term":
        return state.term_at is not None
    return kind == "none"


def _on_limit(settings: Settings, facts: Facts) -> Action:
    """The job's own limit. Only growth is acted on: a job that sits just below its limit is fine there."""
    room = facts.limit_headroom
    if room is None or settings.limit is None:
        return NONE
    rate, lasting = max(0.0, facts.rate if facts.limit_rate is None else facts.limit_rate), facts.lasting
    share = settings.limit * LIMIT_SHARE
    line = max(settings.limit_floor, min(rate * REACT_LIMIT, share))
    if rate == 0 and lasting == 0 and facts.time_to_full is None:
        return NONE  # the calm case: no sentence is built for nothing
    holds = f"the job holds {format_size(facts.use)} of its limit {format_size(settings.limit)}, grows by"
    now = f"{holds} {format_size(rate)}/s"
    # Near the limit a trickle is no danger: time left decides (13 KiB/s and 80 MiB of room last for hours).
    if room <= line / 2 and rate * KILL_SECONDS >= room:
        return Action("kill", now, "limit")
    if room <= line and rate * TERM_SECONDS >= room:
        return Action("term", now, "limit")
    peak_room = room if facts.peak_headroom is None else min(room, facts.peak_headroom)
    usual = settings.usual_peak
    expected = usual is not None and facts.use <= usual < settings.limit
    if usual is not None and facts.use > usual * OUTGROWN:
        share = settings.limit * EARLY_SHARE
    if lasting > 0 and not expected and peak_room <= min(share, lasting * settings.grace):
        left = format_duration(max(0, peak_room) / lasting)
        return Action("ask", f"{holds} {format_size(lasting)}/s, full in about {left}", "limit")
    if facts.time_to_full is not None and facts.time_to_full < TREND_WARNING:
        trend = f"{holds} {format_size(room / max(facts.time_to_full, 0.1))}/s"
        return Action("warn", f"{trend}, full in about {format_duration(facts.time_to_full)}", "limit")
    return NONE


def _on_machine(settings: Settings, facts: Facts) -> Action:
    """The machine's floor. Whose growth it is decides who is touched, and when."""
    room = headroom(settings, facts)
    shrink = max(0.0, facts.shrink)
    line = max(settings.floor, shrink * REACT_TERM)
    if room > max(settings.margin, line):
        return NONE  # the calm case: no sentence is built for nothing
    is_ours, state = ours(facts), in_words(facts)
    helps = facts.use >= settings.floor / 8  # ending a job that holds next to nothing frees next to nothing
    if is_ours and facts.my_turn and helps:
        growing = f"{state} and grows by {format_size(max(facts.rate, facts.sustained))}/s"
        if room <= max(settings.floor / 2, shrink * REACT_KILL) and _reaches(
            facts, room - settings.floor / 4
        ):
            return Action("kill", growing, "machine")
        if room <= line and _reaches(facts, room - settings.floor / 2):
            return Action("term", growing, "machine")
        if facts.sustained > 0 and room <= _ask_line(settings, facts):
            left = format_duration(room / facts.sustained)
            return Action("ask", f"{growing}: full in about {left}", "machine")
    elif not is_ours and facts.my_turn and room <= settings.floor:
        # Somebody else fills the machine. We are touched last, but before the kernel picks by size.
        stranger = f"{state}; the growth is not this job's"
        if room <= settings.floor / 4 and facts.use >= settings.floor / 4:
            return Action("kill", stranger, "machine")
        if room <= settings.floor / 2 and facts.use >= settings.floor / 4:
            return Action("term", stranger, "machine")
        # Asked when the next rung would come within the grace. Not by one breath of others, a few MiB in a third of a
        # second: in one replay the training was asked to stop for that, while the loader waited for it to end.
        lasting = min(shrink, facts.drain)
        pressing = lasting > 0 and room - lasting * settings.grace <= settings.floor / 2
        return Action("ask" if pressing else "warn", stranger, "machine")
    if room <= settings.margin:
        return Action("warn", f"{state}; the margin is {format_size(settings.margin)}", "machine")
    return NONE


def _reaches(facts: Facts, gap: float) -> bool:
    """Whether this job's growth soon takes that much more."""
    soon = max(facts.rate * TERM_SECONDS, facts.sustained * LASTING_SECONDS)
    return facts.rate > 0 and soon >= gap


def _ask_line(settings: Settings, facts: Facts) -> float:
    """What the growth takes within the grace, above the floor; a trickle is let come half a floor nearer."""
    taken_then = facts.sustained * settings.grace
    base = settings.floor if taken_then >= settings.floor / 2 else settings.floor / 2
    return min(settings.margin, base + taken_then)


def request_is_over(settings: Settings, facts: Facts, state: State) -> bool:
    """Whether this moment no longer calls for the request that was made for the limit's sake."""
    if state.asked_at is None or state.asked_for != "limit" or state.term_at is not None:
        return False
    return wanted(settings, facts).kind in ("none", "warn")


def taken(state: State, kind: str, t: float, scope: str = "") -> State:
    """The state after an action of the first ladder: warn, ask, term, kill."""
    if kind == "warn":
        return replace(state, warned_at=t)
    if kind == "ask":
        return replace(state, asked_at=t, asked_for=scope)
    if kind == "term":
        return replace(thawed(state), term_at=t)
    return replace(thawed(state), killed_at=t)
