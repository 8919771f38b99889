"""Words for people: what the guard did and why, made from an action's kind, reason and figures. No code reads them back."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping

from oomproof.guard.view import Action, Figures, UnmanagedView
from oomproof.leaf.action_kinds import (
    BELOW_MARGIN,
    DEADLOCK,
    GROWTH_OVER,
    GUARD_LEAVES,
    HEADROOM_BACK,
    KILL,
    KILL_UNMANAGED,
    LAST_TURN,
    NEAR_LIMIT,
    NO_RUN_LEFT,
    NOTHING_FREED,
    ON_UNMANAGED,
    OTHERS_GROWTH,
    OTHERS_IDLE,
    OWN_GROWTH,
    PAUSE,
    PAUSE_EXPIRED,
    PAUSE_IN_VAIN,
    PAUSE_UNKNOWN,
    PAUSE_UNMANAGED,
    REQUEST,
    RESUME,
    RESUME_UNMANAGED,
    RUNS_CONTINUE,
    SHORTAGE_OVER,
    SIGNAL_CAME,
    TERM,
    TERM_UNMANAGED,
    TURN,
    UNMANAGED_NEED,
    WARN,
    WITHDRAW,
    ActionReason,
)
from oomproof.units import format_duration, format_size

# What was done, as a line of the job's terminal begins.
TITLES: dict[str, str] = {
    WARN: "memory is getting short",
    REQUEST: "asked the job to save and stop",
    TERM: "sent SIGTERM to the job",
    KILL: "killed all processes of the job",
    PAUSE: "paused",
    RESUME: "resumed",
    WITHDRAW: "took back the request to save and stop",
}
_TO_UNMANAGED = {
    PAUSE_UNMANAGED: "pause",
    TERM_UNMANAGED: "send SIGTERM to",
    KILL_UNMANAGED: "send SIGKILL to",
}
_SENT = {RESUME_UNMANAGED: "resumed", TERM_UNMANAGED: "sent SIGTERM to", KILL_UNMANAGED: "sent SIGKILL to"}
_SHORT = "{available} of RAM available{swap}, the job held {held}"
_WHY: dict[ActionReason, str] = {
    NEAR_LIMIT: "the job held {held} of its limit of {limit}{grew}{and_full}",
    OWN_GROWTH: _SHORT + " and grows by {rate}/s{then_full}",
    OTHERS_GROWTH: _SHORT + "; the growth is not this job's",
    BELOW_MARGIN: _SHORT + "; the margin is {margin}",
    RUNS_CONTINUE: _SHORT + "{and_grew}; {runs}",
    UNMANAGED_NEED: _SHORT + "{and_grew}; jobs that were not started by oomproof need memory as well",
    PAUSE_IN_VAIN: _SHORT + " while it is paused: pausing it did not help",
    DEADLOCK: _SHORT + "; all jobs are paused and wait for each other, so the newest run makes way",
    PAUSE_EXPIRED: "paused for {waited}, the longest it may be",
    HEADROOM_BACK: "{available} of RAM available again, after {waited}",
    NO_RUN_LEFT: "no other run is left that could free memory, after {waited}",
    NOTHING_FREED: "nobody has freed memory, after {waited}",
    OTHERS_IDLE: "the other runs do nothing either: they may be waiting for it, after {waited}",
    TURN: "nobody is left who could free memory, after {waited}; it is paused again if it keeps growing",
    LAST_TURN: "none of them can continue, after {waited}; if it needs more than there is, the kernel ends one: "
    "end one yourself, or add swap",
    PAUSE_UNKNOWN: "nothing is known of its pause any more",
    SHORTAGE_OVER: "memory is no longer short",
    GROWTH_OVER: "the job no longer grows",
    GUARD_LEAVES: "its guard leaves",
    SIGNAL_CAME: "{signal} came for it",
}
_UNMANAGED_GROWTH = "{available} of RAM{and_swap} available; it held {held} and grew by {rate}/s"
_SECONDS = ("full_in", "waited", "unanswered")


def why(action: Action) -> str:
    if action.kind in ON_UNMANAGED and action.reason == OWN_GROWTH:
        return _UNMANAGED_GROWTH.format_map(_texts(action.figures))
    return reason_text(action.reason, action.figures)


def reason_text(reason: ActionReason, figures: Figures) -> str:
    """The sentence of a reason; a figure that is missing is left out of it where it may be missing."""
    texts = _texts(figures)
    unanswered = f"SIGTERM was not answered for {texts['unanswered']}; " if "unanswered" in figures else ""
    return unanswered + _WHY[reason].format_map(texts)


def without_rate(figures: Figures) -> Figures:
    rest = figures.copy()
    rest.pop("rate", None)
    return rest


def _texts(figures: Mapping[str, object]) -> dict[str, str]:
    texts = {name: _shown(name, value) for name, value in figures.items()}
    rate, full = texts.get("rate"), texts.get("full_in")
    runs = figures.get("runs")
    swap = f" and {texts['swap_free']} of disk swap" if figures.get("swap_free") else ""
    optional = {
        "swap": swap or ", no swap left",
        "and_swap": swap,
        "runs": "another run continues" if runs == 1 else f"{runs} other runs continue",
        "grew": f", grew by {rate}/s" if rate else "",
        "and_grew": f" and grew by {rate}/s" if rate else "",
        "and_full": f", full in about {full}" if full else "",
        "then_full": f": full in about {full}" if full else "",
    }
    return defaultdict(lambda: "unknown", {**texts, **optional})  # of a damaged file a figure may be missing


def _shown(name: str, value: object) -> str:
    if not isinstance(value, (int, float)):
        return str(value)
    return format_duration(value) if name in _SECONDS else format_size(value)


def pause_terms(headroom: int, latest: float, pushed_out: bool) -> str:
    """What a pause brings, and when it ends: ``latest`` is the wall time."""
    if pushed_out:
        brings = "it is pushed out to swap"
    else:
        brings = "only its growth is stopped, its memory stays in RAM (no disk swap to push it out to)"
    return (
        f"{brings}; resumes when {format_size(headroom)} of RAM are available, at the latest {_clock(latest)}"
    )


def unmanaged_text(action: Action, job: UnmanagedView) -> str:
    """A resume or an end of an unmanaged job."""
    return f"{_SENT[action.kind]} {who(job)}: {why(action)}"


def would_text(action: Action, job: UnmanagedView) -> str:
    """What a guard that only looks would have done."""
    return f"would {_TO_UNMANAGED[action.kind]} {who(job)}: {why(action)}"


def paused_text(action: Action, job: UnmanagedView, headroom: int, latest: float) -> str:
    return (
        f"paused {who(job)}, which was not started by oomproof: {why(action)}. It resumes by itself when "
        f"{format_size(headroom)} of RAM are available, at the latest {_clock(latest)}; "
        f"now: oomproof resume {job.key[0]}"
    )


def who(job: UnmanagedView) -> str:
    return f"{job.name} (pid {job.key[0]})"


def _clock(wall: float) -> str:
    return time.strftime("%H:%M", time.localtime(wall))
