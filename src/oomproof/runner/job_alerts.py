"""What is told of one guarded job beyond its terminal: each action and alert, with its figures of this moment and what to type."""

from __future__ import annotations

from oomproof.alerts.alert import Alert
from oomproof.alerts.alert_channel import Alerts
from oomproof.guard.guarded_job import GuardedJob
from oomproof.leaf.action_kinds import KILL, ON_UNMANAGED, PAUSE, REQUEST, RESUME, SAVE, TERM, WARN, WITHDRAW
from oomproof.recording.run_folders import Run, to_type
from oomproof.units import format_duration

_NEXT = {
    WARN: "if it gets shorter, the job is paused, or asked to save and stop",
    REQUEST: "SIGTERM follows when memory is still short after {grace}",
    TERM: "killed if it has not ended after {grace}",
    WITHDRAW: "the job continues",
    "leak": "nothing is done before memory is short. What holds it: oomproof inspect {run}",
    "above": "nothing is done before memory is short. What holds it: oomproof inspect {run}",
    "gpu-above": "nothing is done. What holds it: oomproof inspect {run}",
    "page-cache": "nothing is done: it continues, slowly",
}
_UNDO = {
    REQUEST: "pause",
    PAUSE: "resume",
    RESUME: "pause",
    TERM: "why",
    KILL: "why",
    "unguarded": "watch",
}


class JobAlerts:
    """Nothing in here waits: it is called on the guard's thread."""

    def __init__(self, alerts: Alerts, run: Run, guarded: GuardedJob) -> None:
        self._alerts, self._run, self._guarded = alerts, run, guarded
        self._called = ""

    def start(self) -> None:
        if not self._alerts.is_on:
            return
        self._called = to_type(self._run)
        job, log = self._guarded.job, str(self._run.attempt.alerts_file)
        text = "oomproof was killed; the job continues under its limit, unguarded"
        self._alerts.start(log, self._made("unguarded", text, ""), (job.leader, job.leader_start))

    def action(self, kind: str, why: str, terms: str = "") -> None:
        """Of the guard's ladder; ``terms`` say when a pause ends."""
        if self._alerts.is_on:
            self._alerts.send(self._made(kind, why, terms))

    def event(self, kind: str, text: str) -> None:
        self.action(kind, text)

    def _made(self, kind: str, text: str, terms: str) -> Alert:
        moment, settings, memory = self._guarded.moment, self._guarded.settings, self._guarded.moment.memory
        left = moment.time_to_full  # not of a request: its reason has the time that it was made for
        if kind == "leak" and moment.full_at is not None:
            left = max(0.0, moment.full_at - moment.t)
        following = terms or _NEXT.get(kind, "").format(
            grace=format_duration(settings.grace), run=self._called
        )
        if settings.watch_only and kind in (WARN, "leak", "above"):
            following = "nothing is done (--watch-only)"
        return Alert(
            kind,
            self._run.name,
            text,
            run=self._run.id,
            held=memory.use if memory is not None else None,
            available=moment.available if memory is not None else None,
            limit=settings.limit,
            seconds_left=left if kind in (WARN, SAVE, "leak", "above") else None,
            next=following,
            # of an unmanaged job the text itself names the command, with its pid
            command="" if kind in ON_UNMANAGED else f"oomproof {_UNDO.get(kind, 'stop')} {self._called}",
        )
