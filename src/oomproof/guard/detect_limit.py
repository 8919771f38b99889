"""A job near its own limit: warned, asked, ended in time."""

from __future__ import annotations

from oomproof.guard.view import NONE, Action, ActionHistory, Figures, PolicyInput, Settings
from oomproof.leaf.action_kinds import KILL, NEAR_LIMIT, REQUEST, TERM, WARN
from oomproof.units import MIB

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
TREND_WARNING = 900.0  # warn when a steady growth fills memory within this many seconds


def default_limit_floor(limit: int) -> int:
    """Small: fast growth has a line of its own, and a job that was just asked to save needs the rest for that."""
    return max(min(2 * MIB, int(limit * LIMIT_SHARE)), limit // 400)


def on_limit(settings: Settings, facts: PolicyInput, _: ActionHistory) -> Action:
    """The job's own limit. Only growth is acted on: a job that sits just below its limit is fine there."""
    available = facts.limit_headroom
    if available is None or settings.limit is None:
        return NONE
    rate, lasting = max(0.0, facts.rate if facts.limit_rate is None else facts.limit_rate), facts.lasting
    share = settings.limit * LIMIT_SHARE
    line = max(settings.limit_floor, min(rate * REACT_LIMIT, share))
    if rate == 0 and lasting == 0 and facts.time_to_full is None:
        return NONE
    now: Figures = {"held": facts.use, "limit": settings.limit, "rate": rate}
    # Near the limit a trickle is no danger: time left decides (13 KiB/s and 80 MiB of headroom last for hours).
    if available <= line / 2 and rate * KILL_SECONDS >= available:
        return Action(KILL, NEAR_LIMIT, now, "limit")
    if available <= line and rate * TERM_SECONDS >= available:
        return Action(TERM, NEAR_LIMIT, now, "limit")
    left_to_peak = available if facts.peak_headroom is None else min(available, facts.peak_headroom)
    usual = settings.usual_peak
    expected = usual is not None and facts.use <= usual < settings.limit
    if usual is not None and facts.use > usual * OUTGROWN:
        share = settings.limit * EARLY_SHARE
    if lasting > 0 and not expected and left_to_peak <= min(share, lasting * settings.grace):
        lasts: Figures = {**now, "rate": lasting, "full_in": max(0, left_to_peak) / lasting}
        return Action(REQUEST, NEAR_LIMIT, lasts, "limit")
    if facts.time_to_full is not None and facts.time_to_full < TREND_WARNING:
        trend = available / max(facts.time_to_full, 0.1)
        return Action(WARN, NEAR_LIMIT, {**now, "rate": trend, "full_in": facts.time_to_full}, "limit")
    return NONE
