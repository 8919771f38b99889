"""Carries an action of the policy out on one job, with all that belongs to it: the latch, the pause, the record, the user."""

from __future__ import annotations

import time

from oomproof.guard import action_text, detect_resume
from oomproof.guard.guarded_job import ALONE, OTHERS, GuardedJob
from oomproof.guard.trial_processes import end_trial
from oomproof.guard.unmanaged_growth import UnmanagedGrowth
from oomproof.guard.view import Action, Figures, PolicyInput
from oomproof.leaf.action_kinds import KILL, PAUSE, RESUME, TERM, TRIAL, WARN, WITHDRAW, ActionReason
from oomproof.ledger.live_runs import ACTION_PAUSE
from oomproof.machine.clock import boottime
from oomproof.records import asdict

_ON_THE_MACHINE = (PAUSE, RESUME, TERM, KILL)
_ENDS = (TERM, KILL)
_GIVEN_BACK = 2.0  # seconds that the memory of a trial, just killed, may take to come back
PROGRAM_LOST = "program-lost"  # the event


class Actuator:
    """`act` first, then the policy's state, then `afterwards`: an act that fails is tried again at the next look."""

    def __init__(self, guarded: GuardedJob, unmanaged: UnmanagedGrowth) -> None:
        self._guarded, self._unmanaged = guarded, unmanaged
        self._trial_ended = -_GIVEN_BACK

    def act(self, action: Action, facts: PolicyInput) -> bool:
        """False when it is not the time for it: another guard acted a moment ago, or the user took the pause over."""
        guarded = self._guarded
        if action.kind == WITHDRAW:
            guarded.actions.withdraw(action_text.why(action), guarded.say, reason=action.reason)
            return True
        if not self._may_act(action, facts.t):
            return False
        if action.kind == RESUME:
            guarded.notice_hands(facts.t)
            if guarded.pause.by == "hand":
                return False  # since the last row
        if action.kind in _ENDS and not guarded.settings.watch_only and self._ends_a_trial(action, facts.t):
            return False  # the job itself was spared: nothing of this is remembered
        if not guarded.settings.watch_only or action.kind == WARN:
            guarded.actions.take(action.kind, self.why(action), asdict(facts), **self._record(action))
        return True

    def _ends_a_trial(self, action: Action, t: float) -> bool:
        """Of a sweep's agent only the trial that fills memory, once in a while; what was paused is ended as any other."""
        guarded = self._guarded
        if guarded.pause.by:
            return False
        if t - self._trial_ended < _GIVEN_BACK:
            return True
        trial = guarded.best_effort("looking for a trial", lambda: end_trial(guarded.job.pids()), None)
        if trial is None:
            return False
        self._trial_ended, why = t, f"{trial.shown}: {self.why(action)}"
        guarded.actions.take(TRIAL, why, None, **self._record(action))
        guarded.event(t, PROGRAM_LOST, f"{trial.shown} was killed by oomproof: {self.why(action)}",
                      pid=trial.pid, held=trial.held)  # fmt: skip
        told = f"killed {why}; the agent that started it continues"
        guarded.best_effort("telling the user", lambda: guarded.say(TRIAL, told), None)
        return True

    def _may_act(self, action: Action, t: float) -> bool:
        live = self._guarded.live
        if live is None or action.scope != "machine" or action.kind not in _ON_THE_MACHINE:
            return True
        resume = action.kind == RESUME
        pause = detect_resume.RESUME_INTERVAL if resume else ACTION_PAUSE
        return self._guarded.best_effort(OTHERS, lambda: live.take_latch(t, pause, resume), True, ALONE)

    def why(self, action: Action) -> str:
        text, named = action_text.why(action), self._unmanaged.named
        return f"{text}: {named}" if action.others_growth and named else text

    def _record(self, action: Action) -> dict[str, object]:
        """The facts of an action, as its line in actions.jsonl has them."""
        figures = action.figures
        if action.others_growth and self._unmanaged.named_pid:
            figures = {**figures, "culprit": self._unmanaged.named_pid}
        return {
            "reason": action.reason,
            "figures": figures,
            "scope": action.scope,
            "others_growth": action.others_growth,
        }

    def afterwards(self, action: Action, facts: PolicyInput, was_paused: bool) -> None:
        """The mark on disk, the word to the other runs, the event, the line to the user."""
        guarded, why = self._guarded, self.why(action)
        if action.kind == WITHDRAW:
            return
        if action.kind == PAUSE:
            guarded.moment.paused_since = facts.t
            guarded.pause.begin(why, time.time() + guarded.settings.pause_max, facts.can_push)
            # at once: the next guard must not pause one more for nothing
            guarded.tell_the_others(facts.use, facts.t)
        elif was_paused or facts.paused:
            guarded.moment.paused_since = None
            guarded.pause.end()
            guarded.notice_hands(facts.t)  # a pause by hand that came in this very moment counts
            guarded.tell_the_others(facts.use, facts.t)
        guarded.event(facts.t, action.kind, why, scope=action.scope)
        guarded.best_effort("telling the user", lambda: guarded.say(action.kind, why), None)

    def let_go(self, reason: ActionReason, figures: Figures) -> None:
        """A signal came for a paused job, which could not hear it; or the guard leaves."""
        guarded, why = self._guarded, action_text.reason_text(reason, figures)
        guarded.pause.look()  # it may have been paused by hand a moment ago
        if guarded.pause.by:
            guarded.actions.take(RESUME, why, reason=reason, figures=figures)
            guarded.pause.end()
            guarded.moment.paused_since = None
            guarded.event(boottime(), RESUME, why)
