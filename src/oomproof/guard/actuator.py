"""Carries an action of the policy out on one job, with all that belongs to it: the latch, the pause, the record, the user."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from oomproof.guard import action_text, detect_resume
from oomproof.guard.guarded_job import ALONE, OTHERS, GuardedJob
from oomproof.guard.unmanaged_growth import UnmanagedGrowth
from oomproof.guard.view import Action, Figures, PolicyInput
from oomproof.leaf.action_kinds import KILL, PAUSE, RESUME, TERM, TRIAL, WARN, WITHDRAW, ActionReason
from oomproof.leaf.proc_files import command_line
from oomproof.leaf.process_signals import send_signal
from oomproof.ledger.live_runs import ACTION_PAUSE
from oomproof.machine import processes
from oomproof.machine.clock import boottime
from oomproof.machine.processes import ProcessMemory
from oomproof.printable import one_line
from oomproof.recording.secrets import mask_argv
from oomproof.records import asdict, dataclass
from oomproof.units import format_size

_LONGEST = 240  # characters of a command
_FIRST_WORDS = 6  # env, an interpreter and its options come before the program


@dataclass(frozen=True, slots=True)
class Trial:
    pid: int
    start: int
    command: str  # masked
    held: int  # with what it started
    pids: tuple[int, ...]  # the trial and what it started

    @property
    def shown(self) -> str:
        return f"{self.command} (pid {self.pid}, held {format_size(self.held)})"


def shown_command(words: Iterable[str]) -> str:
    text = one_line(shlex.join(mask_argv(words)))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def is_sweep_agent(words: Sequence[str]) -> bool:
    """`wandb agent SWEEP`: a program that starts one trial after the other and lives on whatever becomes of them."""
    names = [os.path.basename(word) for word in words[: _FIRST_WORDS + 1]]
    return any(name == "wandb" and after == "agent" for name, after in pairwise(names))


def trial_to_end(samples: Sequence[ProcessMemory], command: Callable[[int], list[str]]) -> Trial | None:
    """The one below an agent that holds the most, where that is most of the job; None where no agent is in it."""
    known = {sample.pid: sample for sample in samples}
    use = {sample.pid: sample.anon + sample.shmem + sample.swap for sample in samples}
    agents = {pid for pid in known if is_sweep_agent(command(pid))}
    agents -= {pid for pid in agents if known[pid].parent in agents}  # a fork of the agent itself is no agent
    best: Trial | None = None
    for root in (pid for pid in known if known[pid].parent in agents):
        pids = _with_descendants(root, known)
        held = sum(use[pid] for pid in pids)
        if best is None or held > best.held:
            best = Trial(root, known[root].start, shown_command(command(root)), held, pids)
    if best is None or 2 * best.held < sum(use.values()):
        return None
    return best


def _with_descendants(root: int, known: Mapping[int, ProcessMemory]) -> tuple[int, ...]:
    found = [root]
    for pid in found:
        found += [child for child in known if known[child].parent == pid and child not in found]
    return tuple(found)


def end_trial(pids: Sequence[int]) -> Trial | None:
    """Kills it; None, and nothing done, where the job's processes ``pids`` are no agent with a trial. Some milliseconds."""
    samples = [sample for pid in pids if (sample := processes.memory(pid)) is not None]
    trial = trial_to_end(samples, command_line)
    if trial is None:
        return None
    started = {sample.pid: sample.start for sample in samples}
    for pid in trial.pids:
        if processes.is_alive(pid, started[pid]):  # never one that got the pid of another
            send_signal(pid, signal.SIGKILL)
    return trial


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
