"""Drives one sweep: looks at what runs, writes down what ended, and does what the plan says next."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from oomproof.diagnosis.verdict import Verdict
from oomproof.errors import CANNOT_EXECUTE, NOT_FOUND, USAGE, OomproofError
from oomproof.islands import island_part
from oomproof.records import dataclass, replace
from oomproof.sweeps.optuna_engine import engine_of
from oomproof.sweeps.search_space import key_of, shown
from oomproof.sweeps.sweep_folder import RUN_FLAGS, Sweep, budget_of, order_of
from oomproof.sweeps.sweep_plan import (
    MOST_LOST,
    MOST_SHRUNK,
    SIZE_FIRST,
    Action,
    SweepView,
    choose_plan,
    next_action,
    shape_json,
)
from oomproof.sweeps.sweep_trials import (
    ASKED,
    ENDED,
    SIZED,
    SKIPPED,
    STARTING,
    STOPPING,
    SweepLog,
    Trial,
    Try,
    take,
)
from oomproof.sweeps.time_estimate import seconds_left
from oomproof.sweeps.trial_memory import shape_of
from oomproof.sweeps.trial_plans import command_of, plans_of
from oomproof.sweeps.trial_process import (
    End,
    Phase,
    Template,
    TrialProcess,
    count_of,
    describe,
    end_line,
    missing_metric_line,
    source_line,
    start_line,
)
from oomproof.units import format_duration

_OWN_LIMIT = "oom-kill-memcg"


@dataclass(frozen=True, slots=True)
class Ending:
    outcome: str  # of sweep_trials.ENDS
    why: str = ""
    again: bool = False  # says nothing of the trial: another try
    where: str = ""  # which memory it died of
    bound: bool = False  # ... by its own doing


def ending_of(verdict: Verdict, *, asked_to_stop: bool, beside: int, at_own_limit: bool) -> Ending:
    """``asked_to_stop``: by the sweep. ``beside``: trials that ran at the same time. ``at_own_limit``: it was stopped for its
    own limit, not for the machine's sake."""
    kind = verdict.kind
    if asked_to_stop and not kind.good:
        return Ending("stopped", "stopped with the sweep", again=True)
    culprit = verdict.culprit
    # a trial beside it has no part in this: how many fit together is for the sweep to learn
    if kind.memory and culprit is not None and not (culprit.managed and beside):
        return Ending("failed", f"{kind.title}, but {culprit.called} filled the machine", again=True)
    if kind.memory:
        where = "gpu" if kind.gpu else "host"
        bound = beside == 0 or (where == "host" and (at_own_limit or verdict.cause == _OWN_LIMIT))
        return Ending("out-of-memory", verdict.headline, again=not bound, where=where, bound=bound)
    if verdict.cause == "finished" and not verdict.all_well:
        return Ending("out-of-memory", verdict.headline, where="host", bound=True)
    if verdict.cause == "finished":
        return Ending("done")
    if kind.from_outside:
        return Ending("failed", verdict.headline, again=True)
    if kind.stopped_by == "person":
        return Ending("stopped", verdict.headline)
    return Ending("failed", verdict.headline)


_SOONEST, _LATEST = 0.1, 1.0  # seconds between two looks
_OVER: tuple[Phase, ...] = ("ended", "refused", "missing")
_FATAL = (USAGE, CANNOT_EXECUTE, NOT_FOUND)  # refusals that every trial would meet
FINISH, STOP, LEAVE = 1, 2, 3


class Interrupts:
    """Ctrl-C: first, nothing more is started; again, what runs is stopped in order; a third time we leave it running."""

    def __init__(self) -> None:
        self.level = 0
        self.number = 0  # of the last signal
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: object) -> None:
        self.number = number
        least = {signal.SIGINT: FINISH, signal.SIGTERM: STOP, signal.SIGHUP: LEAVE}[signal.Signals(number)]
        self.level = max(least, min(LEAVE, self.level + 1))


class SweepLoop:
    def __init__(
        self,
        sweep: Sweep,
        log: SweepLog,
        tell: Callable[[str], None],
        interrupts: Interrupts,
        words: tuple[str, ...] | None = None,
    ) -> None:
        """The caller holds the sweep's lock. ``words``: the command, where it could not be stored."""
        self._sweep, self.log, self._tell, self._interrupts = sweep, log, tell, interrupts
        order = order_of(sweep, log)
        self.order = order = replace(order, words=words) if words is not None else order
        self.reason = ""  # why it ended before its own end
        self._processes: dict[int, TrialProcess] = {}
        self._phases: dict[int, Phase] = {}
        self._stops: dict[int, subprocess.Popen[bytes]] = {}
        self._told: set[str] = set()
        self._exhausted = False
        self._level = 0
        self._budget = budget_of(order.settings)
        flags: list[str] = []
        for name in RUN_FLAGS:
            if value := order.settings.get(name):
                flags += [f"--{name.replace('_', '-')}", str(value)]
        self._template = Template(
            order.words, order.space.parameters, order.cwd, order.by_config, tuple(flags)
        )
        self._engine = engine_of(sweep, order.space, log.trials.values(), order.seed, tell)

    def _record(self, event: str, **fields: Any) -> None:
        """On disk first: what is not written down has not happened."""
        take(self.log, self._sweep.record(event, **fields))

    # --- the loop ---------------------------------------------------------------------------------------------

    def run(self, first_only: float | None = None) -> bool:
        """Whether it came to its own end. ``first_only``: one trial, for at most so many seconds, for an estimate."""
        begun, pause = time.monotonic(), _SOONEST
        for trial in self.log.running:  # when the sweep was killed
            assert trial.last is not None
            self._processes[trial.number] = TrialProcess(
                self._sweep, trial.number, trial.last.number, trial.last.name
            )
        while True:
            changed = self._look()
            self._listen()
            if self._level >= LEAVE:
                return False
            if first_only is not None and self._one_is_over(begun, first_only):
                return True
            action = next_action(self._view())
            if action.why and action.step == "wait":
                self._once(f"{action.why}; no further trial is started")
            if action.step == "finish":
                self.reason = action.why
                return action.ok
            if action.step != "wait":
                pause = _SOONEST
                self._act(action)
                continue
            pause = _SOONEST if changed else min(_LATEST, pause * 1.5)
            time.sleep(pause)

    def _view(self) -> SweepView:
        order = self.order
        return SweepView(
            order.space,
            self.log,
            order.knobs,
            self._budget,
            order.parallel,
            order.settings.get("need"),
            stopping=self._level > 0,
            exhausted=self._exhausted,
            queueing="waiting" in self._phases.values(),
            try_all=bool(order.settings.get("try_all")),
            named=any(attempt.metric_source for attempt in self.log.tries),
        )

    def _one_is_over(self, begun: float, seconds: float) -> bool:
        if not self.log.tries:
            return False
        if self.log.running and time.monotonic() - begun > seconds:
            self._stop_all()
        return not self.log.running

    def _listen(self) -> None:
        """To Ctrl-C and to `oomproof sweep stop`."""
        asked = self._interrupts.level
        try:
            asked = max(asked, FINISH if "finish" in self._sweep.stop_file.read_text() else STOP)
        except OSError:
            pass
        if asked >= STOP and self._level >= STOP:
            self._stop_all()  # one may just have got its run
        if asked <= self._level:
            return
        self._level = asked
        if not (count := len(self.log.running)):
            return
        name, them = self._sweep.name, count_of(count)
        if asked == FINISH:
            left = seconds_left(self.log, 1, time.time(), running_only=True)
            about = f" (about {format_duration(left)})" if left is not None else ""
            self._tell(
                f"no further trial is started; waiting for {them} to finish{about}. Ctrl-C again stops in order, a third "
                "time leaves it running"
            )
        elif asked == STOP:
            self._tell(f"stopping {them} in order; oomproof sweep resume {name} runs it again")
            self._stop_all()
        else:
            self._tell(f"left; {them} continues, and oomproof sweep resume {name} takes it over")

    def _stop_all(self) -> None:
        for number, process in self._processes.items():
            attempt = self.log.trials[number].last
            if attempt is not None and not attempt.stopping:
                self._record(STOPPING, trial=number)
            if number not in self._stops and (stopping := process.stop()) is not None:
                self._stops[number] = stopping

    def _once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(text)

    def _once_for(self, number: int, text: str) -> None:
        """The figures in it change every second: said once for each try."""
        attempt = self.log.trials[number].last
        key = f"{number}.{attempt.number if attempt is not None else 0}"
        if key not in self._told:
            self._told.add(key)
            self._tell(text)

    # --- the plan's steps -------------------------------------------------------------------------------------

    def _act(self, action: Action) -> None:
        if action.step == "ask":
            self._ask()
            return
        assert action.trial is not None
        trial = self.log.trials[action.trial]
        if action.step == "skip":
            self._record(
                SKIPPED, trial=trial.number, why=action.why, predicted=action.predicted, over=action.over
            )
            self._engine.tell(trial)
            self._tell(f"trial {trial.number}: {shown(trial.values)}: skipped: {action.why}")
        elif action.step == "size":
            self._size(trial, action)
        else:
            self._start(trial, action)

    def _ask(self) -> None:
        number = max(self.log.trials, default=0) + 1
        point = self._engine.ask(number, {key_of(trial.values) for trial in self.log.trials.values()})
        if point is None:
            self._exhausted = True
        else:
            self._record(ASKED, trial=number, values=point)

    def _size(self, trial: Trial, action: Action) -> None:
        """--need auto, once for each size."""
        words, parameters = self._template.words, self._template.parameters
        command = command_of(words, parameters, action.values, self._further(trial, action), os.devnull)
        need_auto = island_part("sizing", "need_auto")
        predicted = need_auto.find(command, self.order.cwd, None, self._tell, self._tell).predicted or {}
        figures = {place: predicted[place] for place in ("host", "gpu") if predicted.get(place)}
        self._record(SIZED, shape=shape_json(shape_of({**action.values, **action.further})), **figures)

    def _further(self, trial: Trial, action: Action) -> dict[str, str]:
        return {"trial": str(trial.number), "sweep": self._sweep.name, **action.further}

    def _start(self, trial: Trial, action: Action) -> None:
        number = len(trial.tries) + 1
        name = f"sweep:{self._sweep.name}:{trial.number}" + (f".{number}" if number > 1 else "")
        values = {**action.values, **action.further}
        self._record(
            STARTING, trial=trial.number, **{"try": number}, name=name, values=values, need=action.need
        )
        process = self._processes[trial.number] = TrialProcess(self._sweep, trial.number, number, name)
        process.start(self._template, action.values, self._further(trial, action), self._needs(action))
        assert trial.last is not None
        first, further = next(plans_of(trial.values, self.order.knobs))
        self._tell(start_line(trial, trial.last, {**first, **further}, self.order.total))

    def _needs(self, action: Action) -> list[str]:
        given, gpu_given = self.order.settings.get("need"), self.order.settings.get("gpu_need")
        need = given if given not in (None, SIZE_FIRST) else action.need
        gpu_need = gpu_given or (action.gpu_need if "gpu" in self._budget else None)
        return [
            *(["--need", str(need)] if need else []),
            *(["--gpu-need", str(gpu_need)] if gpu_need else []),
        ]

    # --- what became of them ----------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Whether any of them is over."""
        self._phases = {number: process.look() for number, process in self._processes.items()}
        for number, process in self._processes.items():
            if (
                self._phases[number] == "waiting"
                and process.run is not None
                and (reasons := process.run.waits_for())
            ):
                self._once_for(number, f"trial {number} waits for memory: {'; '.join(reasons)}")
        over = [number for number, phase in self._phases.items() if phase in _OVER]
        for number in over:
            trial, process, phase = (
                self.log.trials[number],
                self._processes.pop(number),
                self._phases.pop(number),
            )
            self._stops.pop(number, None)
            assert trial.last is not None
            if phase == "missing":
                why = "its run vanished" if process.run else "it had not begun when the sweep was killed"
                self._end(trial, trial.last, End(None, None), Ending("failed", why, again=True))
            else:
                self._conclude(trial, trial.last, process.end(self.order.space.metric))
        return bool(over)

    def _conclude(self, trial: Trial, attempt: Try, end: End) -> None:
        if end.verdict is not None:
            beside = len(self._processes)
            ending = ending_of(
                end.verdict, asked_to_stop=attempt.stopping, beside=beside, at_own_limit=end.at_own_limit
            )
            self._end(trial, attempt, end, ending)
            return
        status, message, hint = end.refused or (1, "its run did not start", "")
        why = "stopped with the sweep" if attempt.stopping else message
        self._end(trial, attempt, end, Ending("stopped" if attempt.stopping else "failed", why, again=True))
        if status in _FATAL and not attempt.stopping:
            raise OomproofError(message, hint, status)

    def _end(self, trial: Trial, attempt: Try, end: End, ending: Ending) -> None:
        again, why = ending.again, ending.why
        if end.not_loaded:
            why += "; it was still loading, and a smaller batch does not make that smaller"
        if again and not attempt.stopping and trial.lost + 1 >= MOST_LOST:
            again, why = False, f"{why} ({MOST_LOST} times)"
        fields: dict[str, Any] = {
            "trial": trial.number, "try": attempt.number, **describe(end), "outcome": ending.outcome, "again": again, "why": why,
            "where": ending.where, "bound": ending.bound, "budget": self._budget, "beside": len(self._processes),
        }  # fmt: skip
        if ending.where:
            held = end.peak if ending.where == "host" else end.gpu_peak
            fields["over"] = max(0.05, (held or 0) / self._budget.get(ending.where, 1 << 62) - 1)
        if ending.outcome == "out-of-memory" and not again and self._has_smaller(trial, attempt, fields):
            fields["again"] = fields["shrunk"] = True
        self._record(ENDED, **fields)
        if trial.state != "waiting":
            self._engine.tell(trial)
        metric = self.order.space.metric
        self._tell(end_line(trial, attempt, metric))
        if metric is not None and end.metric is not None:
            self._once(source_line(metric, end.metric))
        elif metric is not None and ending.outcome == "done" and "no metric" not in self._told:
            self._told.add("no metric")
            self._tell(missing_metric_line(trial.number, metric, end.others))

    def _has_smaller(self, trial: Trial, attempt: Try, fields: dict[str, Any]) -> bool:
        """Whether a smaller plan of the same effective batch is left, once this death is known."""
        if sum(earlier.shrunk for earlier in trial.tries) >= MOST_SHRUNK:
            return False
        known = deepcopy(self.log)
        take(known, {"event": ENDED, **fields})
        action = choose_plan(replace(self._view(), log=known), known.trials[trial.number])
        return action.step != "skip" and {**action.values, **action.further} != attempt.values
