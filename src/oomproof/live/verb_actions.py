"""What a key does to a run: the verb that a user would type, as a process of its own. The screen never waits for it."""

from __future__ import annotations

import os
import subprocess

from oomproof.live.live_snapshot import WAITING, JobState
from oomproof.own_command import OWN_COMMAND
from oomproof.printable import printable
from oomproof.records import dataclass

PAUSE, PAUSE_CARD, SAVE, STOP, WHY = "pause", "pause with the card", "save", "stop", "why"


@dataclass(frozen=True, slots=True)
class VerbCall:
    """The words to type, or why not."""

    words: tuple[str, ...] = ()
    problem: str = ""

    @property
    def text(self) -> str:
        return f"oomproof {' '.join(self.words)}"


def call_of(action: str, job: JobState | None) -> VerbCall:
    """Which command an action on a job is."""
    if job is None:
        return VerbCall(problem="there is no job to act on")
    if not job.managed and job.paused_by and action in (PAUSE, PAUSE_CARD):
        return VerbCall(("resume", str(job.pid)))
    if not job.managed:
        return VerbCall(problem=f"{job.name} was not started by oomproof; watch it: oomproof adopt {job.pid}")
    if not job.mine:
        return VerbCall(problem=f"{job.name} is not a run of yours")
    if action == WHY:
        return VerbCall(("why", job.id))
    if action == STOP:
        return VerbCall(("stop", job.id))
    if job.state == WAITING:
        return VerbCall(problem=f"{job.name} was not started yet; x takes it out of the queue")
    if action == SAVE:
        return VerbCall(("save", job.id))
    if job.paused_by and not (action == PAUSE_CARD and not job.gpu_given_back):
        return VerbCall(("resume", job.id))
    return VerbCall(("pause", "--gpu", job.id) if action == PAUSE_CARD else ("pause", job.id))


def run_verb(call: VerbCall, columns: int = 80) -> tuple[int, str]:
    """(its status, what it printed, for so many columns). Waits for it: call it from a thread."""
    try:
        done = subprocess.run(
            [*OWN_COMMAND, *call.words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "COLUMNS": str(columns)},
            start_new_session=True,  # a stop that was begun is finished, also when the screen is closed
            check=False,
        )
    except OSError as error:
        return 1, f"cannot start {call.text}: {error.strerror}"
    return done.returncode, printable(done.stdout.decode("utf-8", "replace")).strip()


def outcome(call: VerbCall, text: str) -> str:
    """Of what a verb printed, the line that says what happened: the first, or the last of those that take several steps."""
    lines = [line.removeprefix("oomproof: ").strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "done"
    return lines[-1] if call.words[0] in ("stop", "save") else lines[0]
