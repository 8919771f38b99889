"""What a sweep does next: its trials, what they held and what the machine may give in, one step out. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from oomproof.records import dataclass, field, replace
from oomproof.sweeps.search_space import Point, SearchSpace
from oomproof.sweeps.sweep_trials import SweepLog, Trial, best_trial
from oomproof.sweeps.trial_memory import PLACES, Measured, Shape, Where, predict, shape_of, too_large
from oomproof.sweeps.trial_plans import Knobs, plans_of
from oomproof.units import format_size

Step = Literal["start", "skip", "size", "ask", "wait", "finish"]
SIZE_FIRST = "auto"

MOST_LOST = 3  # tries of one trial that ended for reasons outside of it
MOST_SHRUNK = 6  # smaller plans of one trial that are tried, each after a death
_FAILURES = 3  # of the first trials, all of them: then it is the script, not the point
_SILENT = 3  # trials that were done without the metric, all of them
_SKIPS = 50  # points in a row that would not fit


@dataclass(frozen=True, slots=True)
class SweepView:
    """Everything a decision is made of. ``budget``: what a trial may hold, host and gpu; not there: not known."""

    space: SearchSpace
    log: SweepLog
    knobs: Knobs = field(default_factory=Knobs)
    budget: Mapping[str, int] = field(default_factory=dict)
    parallel: int = 1
    need: str | None = None  # as given: a size, auto, or None
    stopping: bool = False  # start nothing more
    exhausted: bool = False  # the engine has no further point
    queueing: bool = False  # a trial that was started still waits for memory
    named: bool = False  # its metric was found at least once
    try_all: bool = False  # nothing is skipped or made smaller for what other trials held


@dataclass(frozen=True, slots=True)
class Action:
    step: Step
    trial: int | None = None
    values: Point = field(default_factory=dict)  # as it runs
    further: Mapping[str, str] = field(default_factory=dict)  # placeholders that are no parameters
    need: int | None = None
    gpu_need: int | None = None
    why: str = ""
    predicted: int | None = None
    over: float | None = None
    ok: bool = True  # of finish: whether it came to its own end


def next_action(view: SweepView) -> Action:
    running, waiting = view.log.running, view.log.by_state("waiting")
    if view.stopping:
        return Action("wait") if running else Action("finish", why="stopped", ok=False)
    if reason := _hopeless(view):
        return Action("wait", why=reason) if running else Action("finish", why=reason, ok=False)
    if reached := _reached(view):
        return Action("wait") if running else Action("finish", why=reached)
    if waiting:
        return _start(view, waiting[0], running)
    if view.exhausted or _asked_enough(view):
        return Action("wait") if running else Action("finish")
    if _full(view, running):
        return Action("wait")  # asked for as late as can be: the sampler then knows more
    return Action("ask")


def _full(view: SweepView, running: Sequence[Trial]) -> bool:
    """A trial that waits for memory says that no further one fits; one of unknown need has the machine for itself."""
    return (
        len(running) >= view.parallel or view.queueing or any(_need_unknown(view, trial) for trial in running)
    )


def _need_unknown(view: SweepView, trial: Trial) -> bool:
    return view.need in (None, SIZE_FIRST) and trial.last is not None and trial.last.need is None


def _start(view: SweepView, trial: Trial, running: Sequence[Trial]) -> Action:
    fit = choose_plan(view, trial)
    if fit.step == "skip":
        return fit
    if _full(view, running):
        return Action("wait")
    alone = fit.need is None and view.need in (None, SIZE_FIRST)
    alone = alone or any(attempt.where and not attempt.bound for attempt in trial.tries)
    if alone and running:
        return Action("wait")
    return fit


def choose_plan(view: SweepView, trial: Trial) -> Action:
    """The largest plan of this trial that is not known to be too large, or why there is none."""
    if view.try_all:
        view = replace(view, log=SweepLog({trial.number: trial}, sized=view.log.sized))
    reason, predicted, over = "", None, None
    for values, further in plans_of(trial.values, view.knobs):
        shape = shape_of({**values, **further})
        refused = _refusal(view, shape)
        if refused is None:
            if (
                view.need == SIZE_FIRST
                and not _known(view, shape)
                and sized_of(view.log.sized, shape) is None
            ):
                return Action("size", trial.number, values, further)
            need, gpu_need = need_of(view, shape)
            return Action("start", trial.number, values, further, need, gpu_need)
        if not reason:
            reason, predicted, over = refused
    return Action("skip", trial.number, trial.values, why=reason, predicted=predicted, over=over)


def _refusal(view: SweepView, shape: Shape) -> tuple[str, int | None, float] | None:
    """(why it does not fit, what it is taken to need, by which share that is too much); None where it may."""
    for where in PLACES:
        if (budget := view.budget.get(where)) is None:
            continue
        known = measured_in(view.log, where)
        prediction = predict(shape, known)
        expected = prediction.expected if prediction is not None else None
        on_card = " of GPU memory" if where == "gpu" else ""
        if why := too_large(shape, known, budget):
            return why + on_card, expected, max(0.05, (expected or budget) / budget - 1)
        sized = sized_of(view.log.sized, shape)
        low = (sized or {}).get(where, {}).get("low")
        if prediction is None and isinstance(low, int) and low > budget:
            figure = (sized or {})[where]["expected"]
            why = f"would need about {format_size(figure)}{on_card}, as sized; it may hold {format_size(budget)}"
            return why, figure, max(0.05, figure / budget - 1)
    return None


def _known(view: SweepView, shape: Shape) -> bool:
    return predict(shape, measured_in(view.log, "host")) is not None


def need_of(view: SweepView, shape: Shape) -> tuple[int | None, int | None]:
    """What to reserve of RAM and of a card: measured or predicted; else sized; None where nothing is known."""
    needs: list[int | None] = []
    for where in PLACES:
        prediction = predict(shape, measured_in(view.log, where))
        sized = (sized_of(view.log.sized, shape) or {}).get(where)
        figure = (
            prediction.high
            if prediction is not None
            else (sized or {}).get("expected" if where == "host" else "high")
        )
        budget = view.budget.get(where)
        needs.append(min(figure, budget) if figure and budget else figure or None)
    return needs[0], needs[1]


def sized_of(sized: Sequence[Mapping[str, Any]], shape: Shape) -> dict[str, Any] | None:
    """The sizing of that shape; {} where it could not be sized."""
    wanted = shape_json(shape)
    for event in reversed(sized):
        if event.get("shape") == wanted:
            return {where: figures for where in PLACES if isinstance(figures := event.get(where), dict)}
    return None


def shape_json(shape: Shape) -> list[list[Any]]:
    return [[name, value] for name, value in (*shape.sizes, *shape.others)]


def measured_in(log: SweepLog, where: Where) -> list[Measured]:
    """Of every trial that ran to its end, or died of that memory by its own doing."""
    measured = []
    for trial in log.trials.values():
        for attempt in trial.tries:
            peak = attempt.peak if where == "host" else attempt.gpu_peak
            shape = shape_of(attempt.values)
            if attempt.outcome == "done" and peak:
                measured.append(Measured(shape, peak, said=f"trial {trial.number}"))
            elif attempt.where == where and attempt.bound:
                budget = attempt.budget.get(where) or peak or 0
                said = f"trial {trial.number}"
                measured.append(Measured(shape, peak or 0, True, budget, said, attempt.not_loaded))
    return measured


def _asked_enough(view: SweepView) -> bool:
    """What was skipped cost nothing: of a grid it counts, of a search another point takes its place."""
    trials = list(view.log.trials.values())
    points = view.space.points
    if points is not None and len(trials) >= points:
        return True
    wanted = view.space.trials
    if view.space.method == "grid":
        return wanted is not None and len(trials) >= wanted
    return wanted is not None and sum(trial.state != "skipped" for trial in trials) >= wanted


def _reached(view: SweepView) -> str:
    best, target = best_trial(view.log, view.space.goal), view.space.target
    if best is None or best.metric is None or target is None:
        return ""
    good = best.metric <= target if view.space.goal == "minimize" else best.metric >= target
    return f"trial {best.number} reached the target {target:g}" if good else ""


def _hopeless(view: SweepView) -> str:
    """Why it would be a waste to start another trial; nothing where it would not."""
    over = [trial for trial in view.log.trials.values() if trial.state in ("done", "failed")]
    last = sorted(
        (trial for trial in over if trial.last is not None),
        key=lambda trial: trial.last.wall if trial.last else 0.0,
    )
    if len(last) >= _FAILURES and all(trial.state == "failed" for trial in last):
        return f"the first {len(last)} trials failed, none for memory: {last[-1].why}"
    if view.space.method == "bayes" and len(last) >= _SILENT and not view.named:
        silent = [
            trial
            for trial in last
            if trial.state == "done" and trial.last is not None and not trial.last.metric_source
        ]
        if len(silent) >= _SILENT:
            return f"{len(silent)} trials are done and none reported {view.space.metric}: there is nothing to learn from"
    skipped = 0
    for trial in reversed(view.log.trials.values()):
        if trial.state != "skipped":
            break
        skipped += 1
    if skipped >= _SKIPS and view.space.method != "grid":
        return f"{skipped} points in a row would not fit"
    return ""


def is_number(metric: float | None) -> bool:
    return metric is not None and math.isfinite(metric)
