"""What is done to a job and why, a word each: ``action`` and ``reason`` in actions.jsonl, and the events and alerts about them."""

from __future__ import annotations

from typing import Literal

ActionKind = Literal[
    "none", "warn", "request", "withdraw", "save", "pause", "resume", "term", "kill", "trial",
    "interrupt", "signal", "output-lost",
    "pause-unmanaged", "resume-unmanaged", "term-unmanaged", "kill-unmanaged",
]  # fmt: skip

NOTHING: ActionKind = "none"
WARN: ActionKind = "warn"
REQUEST: ActionKind = "request"  # to save and stop
WITHDRAW: ActionKind = "withdraw"  # that request is taken back
SAVE: ActionKind = "save"  # a request to save and continue
PAUSE: ActionKind = "pause"
RESUME: ActionKind = "resume"
TERM: ActionKind = "term"  # SIGTERM
KILL: ActionKind = "kill"  # SIGKILL to all processes of the job
TRIAL: ActionKind = "trial"  # SIGKILL to one trial of a sweep's agent
INTERRUPT: ActionKind = "interrupt"  # Ctrl-C, passed on to the job
SIGNAL: ActionKind = "signal"  # another signal, passed on
OUTPUT_LOST: ActionKind = "output-lost"  # the job's output could not be written
# To a job that was not started by oomproof:
PAUSE_UNMANAGED: ActionKind = "pause-unmanaged"
RESUME_UNMANAGED: ActionKind = "resume-unmanaged"
TERM_UNMANAGED: ActionKind = "term-unmanaged"
KILL_UNMANAGED: ActionKind = "kill-unmanaged"
ON_UNMANAGED = (PAUSE_UNMANAGED, RESUME_UNMANAGED, TERM_UNMANAGED, KILL_UNMANAGED)

ActionReason = Literal[
    "", "near-limit", "own-growth", "others-growth", "below-margin", "runs-continue", "unmanaged-need", "pause-in-vain",
    "deadlock", "pause-expired", "headroom-back", "no-run-left", "nothing-freed", "others-idle", "turn", "last-turn",
    "pause-unknown", "shortage-over", "growth-over", "guard-leaves", "signal",
]  # fmt: skip

NEAR_LIMIT: ActionReason = "near-limit"  # the job grows towards its own limit
OWN_GROWTH: ActionReason = "own-growth"  # the machine is short, and it is this job that grows
OTHERS_GROWTH: ActionReason = "others-growth"  # the machine is short, and others grow
BELOW_MARGIN: ActionReason = "below-margin"
# A pause, for whose sake:
RUNS_CONTINUE: ActionReason = "runs-continue"
UNMANAGED_NEED: ActionReason = "unmanaged-need"
# An end of a job that is paused:
PAUSE_IN_VAIN: ActionReason = "pause-in-vain"
DEADLOCK: ActionReason = "deadlock"  # all jobs are paused and wait for each other
# A resume:
PAUSE_EXPIRED: ActionReason = "pause-expired"
HEADROOM_BACK: ActionReason = "headroom-back"
NO_RUN_LEFT: ActionReason = "no-run-left"
NOTHING_FREED: ActionReason = "nothing-freed"
OTHERS_IDLE: ActionReason = "others-idle"
TURN: ActionReason = "turn"  # nobody is left who could free memory: it is tried
LAST_TURN: ActionReason = "last-turn"  # the same, after its turns: it is no longer paused
PAUSE_UNKNOWN: ActionReason = "pause-unknown"
GUARD_LEAVES: ActionReason = "guard-leaves"
SIGNAL_CAME: ActionReason = "signal"
# A request is withdrawn:
SHORTAGE_OVER: ActionReason = "shortage-over"
GROWTH_OVER: ActionReason = "growth-over"
# It is not this job that fills the machine.
NOT_ITS_GROWTH = (OTHERS_GROWTH, PAUSE_IN_VAIN, DEADLOCK)
