"""What is done to a job, a word each: the guard's decisions, ``action`` in actions.jsonl, and the events and alerts about them."""

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
