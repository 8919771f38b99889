"""One alert: which job, what is the matter, how much time is left, what will happen, and the command that changes it."""

from __future__ import annotations

from typing import Any

from oomproof.leaf.action_kinds import (
    KILL,
    KILL_UNMANAGED,
    PAUSE,
    PAUSE_UNMANAGED,
    REQUEST,
    RESUME,
    RESUME_UNMANAGED,
    SAVE,
    TERM,
    TERM_UNMANAGED,
    WARN,
    WITHDRAW,
)
from oomproof.records import dataclass
from oomproof.units import format_duration

SCHEMA = 1
ALERT, NEWS, QUIET = "alert", "news", "quiet"  # to --on-alert and every receiver; to receivers; to neither
END = "end"  # the kind that --on-end hears
SWITCH = "resume everything: oomproof resume --all; a run without any guard: OOMPROOF_DISABLE=1"
_TITLES = {
    WARN: "memory is getting short",
    REQUEST: "asked to save and stop",
    WITHDRAW: "the request to save and stop was taken back",
    SAVE: "asked to save and continue",
    PAUSE: "paused",
    RESUME: "resumed",
    TERM: "sent SIGTERM",
    KILL: "killed all its processes",
    "leak": "memory grows without end",
    "above": "holds more than --alert-above",
    "gpu-above": "holds more GPU memory than --alert-gpu-above",
    "page-cache": "slow for lack of page cache",
    "gpu-full": "GPU memory is getting short",
    "worker-killed": "the kernel killed one of its processes",
    "unguarded": "runs without its guard",
    "retry": "ran out of memory and is tried again",
    PAUSE_UNMANAGED: "a job that fills the machine was paused",
    RESUME_UNMANAGED: "a job that was not started by oomproof runs again",
    TERM_UNMANAGED: "a job that fills the machine got SIGTERM",
    KILL_UNMANAGED: "a job that fills the machine was killed",
    END: "has ended",
}
# each of these messages names the panic switch
_ACTIONS = (WARN, REQUEST, PAUSE, TERM, KILL, PAUSE_UNMANAGED)
_OVER = (TERM, KILL, END)  # nothing is left to change
LONGEST = 700  # characters of a line: Discord takes 2000 in all


@dataclass(frozen=True, slots=True)
class Alert:
    """Sizes in bytes; what is not known is None or empty."""

    kind: str
    job: str  # as people call it
    text: str  # what is the matter, with its figures
    title: str = ""  # in a few words; by the kind where it is empty
    run: str = ""  # its id
    held: int | None = None
    available: int | None = None
    limit: int | None = None
    seconds_left: float | None = None
    next: str = ""  # what will happen
    command: str = ""  # what changes that
    level: str = ALERT
    cause: str = ""  # of an end
    exit_status: int | None = None

    def as_json(self, host: str, wall: float) -> dict[str, Any]:
        """What a command finds on its standard input, and a plain webhook in its body, less ``message``."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "level": self.level,
            "job": self.job,
            "run": self.run or None,
            "host": host,
            "time": wall,
            "title": self.title or _TITLES.get(self.kind, self.kind),
            "text": self.text,
            "held_bytes": self.held,
            "available_bytes": self.available,
            "limit_bytes": self.limit,
            "seconds_left": self.seconds_left,
            "next": self.next,
            "command": self.command,
            "cause": self.cause or None,
            "exit_status": self.exit_status,
        }


def subject(alert: dict[str, Any]) -> str:
    """``big on gpubox: paused``"""
    return f"{alert['job']} on {alert['host']}: {alert['title']}"


def message(alert: dict[str, Any]) -> str:
    """A line each: what, how long, what comes, what to type."""
    lines = [_cut(str(alert["text"]))]
    if alert.get("repeated"):
        lines[0] += f" ({alert['repeated']} more like this were summed up)"
    if alert.get("seconds_left") is not None and "full in " not in lines[0]:  # said once
        lines.append(f"time left: about {format_duration(alert['seconds_left'])}")
    if alert.get("next"):
        lines.append(f"next: {_cut(alert['next'])}")
    if alert.get("command"):
        lines.append(f"{'more' if alert['kind'] in _OVER else 'to change it'}: {alert['command']}")
    if alert["kind"] in _ACTIONS:
        lines.append(SWITCH)
    return "\n".join(lines)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
