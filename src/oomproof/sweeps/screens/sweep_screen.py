"""A sweep as people and programs read it: how far it is, each trial, what it will take. Needs nothing but the sweep's log."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from oomproof.reports.table_text import folded, table
from oomproof.sweeps.metric_sources import shown_metric
from oomproof.sweeps.search_space import shown, text_of
from oomproof.sweeps.sweep_folder import SweepOrder
from oomproof.sweeps.sweep_plan import SweepView, is_number, next_action
from oomproof.sweeps.sweep_trials import State, SweepLog, Trial, best_trial
from oomproof.sweeps.time_estimate import TimeEstimate, seconds_left, trials_left
from oomproof.sweeps.trial_plans import Knobs, plans_of
from oomproof.units import format_duration, format_size

SCHEMA = 1
RUNNING, UNFINISHED, FINISHED, GIVEN_UP = "running", "unfinished", "finished", "given up"
_ORDER: tuple[State, ...] = ("done", "running", "waiting", "skipped", "out-of-memory", "failed", "stopped")


def state_of(order: SweepOrder, log: SweepLog, driven: bool) -> str:
    if driven:
        return RUNNING
    action = next_action(SweepView(order.space, log, order.knobs))
    if action.step != "finish":
        return UNFINISHED
    return FINISHED if action.ok else GIVEN_UP


def as_text(name: str, order: SweepOrder, log: SweepLog, driven: str, width: int, now: float) -> str:
    """``driven``: by whom, in words; empty: by nobody."""
    state = state_of(order, log, bool(driven))
    head = f"sweep {name}: {state}{f', by {driven}' if driven else ''}; {order.space.method} search with {shlex.join(order.words)}"
    lines = folded("", head, width)
    lines.append(counts_line(order, log, now, state))
    best = best_trial(log, order.space.goal)
    if best is not None:
        lines += folded("best: ", _best(best, order), width)
    elif order.space.metric is None:
        lines.append("no --metric: none of them is called the best")
    lines.append("")
    lines += _table(order, log, width) if log.trials else ["no trial yet"]
    if state == UNFINISHED:
        lines += ["", f"continue: oomproof sweep resume {name}"]
    return "\n".join(lines)


def counts_line(order: SweepOrder, log: SweepLog, now: float, state: str = UNFINISHED) -> str:
    """Of one that was given up the rest is not waited for."""
    counted = Counter(trial.state for trial in log.trials.values())
    left = trials_left(order.space, log, order.total)
    unasked = max(0, (left or 0) - counted["waiting"])
    given_up = state == GIVEN_UP
    shown_counts = {**counted, "waiting": counted["waiting"] + (0 if given_up else unasked)}
    parts = [
        f"{shown_counts.get(kind, 0)} {kind.replace('-', ' ')}" for kind in _ORDER if shown_counts.get(kind)
    ]
    if given_up and unasked:
        parts.append(f"{unasked} not run")
    seconds = seconds_left(log, order.parallel, now, left)
    if seconds is not None and (left or log.running) and not given_up:
        parts.append(f"about {format_duration(seconds)} left")
    total = f" of {order.total}" if order.total is not None else ""
    return f"{len(log.trials)}{total} trials: {', '.join(parts)}" if parts else "no trial yet"


def _best(best: Trial, order: SweepOrder) -> str:
    return f"{order.space.metric} {shown_metric(best.metric)} with {shown(best.values)} (trial {best.number})"


def _table(order: SweepOrder, log: SweepLog, width: int) -> list[str]:
    names = [
        parameter.name for parameter in order.space.parameters if not parameter.is_constant
    ] or order.space.names
    trials = list(log.trials.values())
    on_card = any(attempt.gpu_peak for attempt in log.tries)
    metric = [order.space.metric] if order.space.metric is not None else []
    head = ["trial", *names, "state", *metric, "peak", *(["on the card"] if on_card else []), "time", "why"]
    rows = [head]
    for trial in trials:
        last = trial.last
        card = [format_size(last.gpu_peak) if last is not None and last.gpu_peak else ""] if on_card else []
        rows.append(
            [
                str(trial.number),
                *(_cell(trial, name) for name in names),
                trial.state.replace("-", " "),
                *([shown_metric(trial.metric)] if metric else []),
                format_size(last.peak) if last is not None and last.peak else "",
                *card,
                format_duration(last.seconds) if last is not None and last.seconds is not None else "",
                _note(trial, order.knobs),
            ]
        )
    why = len(head) - 1
    return table(rows, width, shrink={why: 20, **dict.fromkeys(range(1, len(names) + 1), 6)}, drop=(why - 1,))


def _cell(trial: Trial, name: str) -> str:
    value = trial.values.get(name)
    return f"{value:.4g}" if isinstance(value, float) else text_of(value)


def _note(trial: Trial, knobs: Knobs) -> str:
    last = trial.last
    first, further = next(plans_of(trial.values, knobs))
    plain = {**first, **further}
    changed = (
        {name: value for name, value in last.values.items() if str(plain.get(name)) != str(value)}
        if last
        else {}
    )
    parts = [f"run as {shown(changed)}"] if changed else []
    parts += [f"{len(trial.tries)} tries"] if len(trial.tries) > 1 else []
    return "; ".join([*parts, *([trial.why] if trial.why else [])])


def as_json(name: str, order: SweepOrder, log: SweepLog, driven: bool, now: float) -> dict[str, Any]:
    best = best_trial(log, order.space.goal)
    left = trials_left(order.space, log, order.total)
    counted = Counter(trial.state for trial in log.trials.values())
    return {
        "schema": SCHEMA,
        "sweep": name,
        "state": state_of(order, log, driven),
        "command": list(order.words),
        "method": order.space.method,
        "metric": order.space.metric,
        "goal": order.space.goal,
        "trials_in_all": order.total,
        "counts": {state: counted.get(state, 0) for state in _ORDER},
        "trials_left": left,
        "seconds_left": seconds_left(log, order.parallel, now, left),
        "best": best.number if best is not None else None,
        "trials": [_trial_json(trial) for trial in log.trials.values()],
    }


def _trial_json(trial: Trial) -> dict[str, Any]:
    last = trial.last
    return {
        "trial": trial.number,
        "values": trial.values,
        "run_as": last.values if last is not None else None,
        "state": trial.state,
        "why": trial.why or None,
        "metric": trial.metric if is_number(trial.metric) else None,
        "metric_source": (last.metric_source or None) if last is not None else None,
        "peak_bytes": last.peak if last is not None else None,
        "peak_gpu_bytes": last.gpu_peak if last is not None else None,
        "predicted_bytes": trial.predicted,
        "seconds": last.seconds if last is not None else None,
        "cause": last.cause if last is not None else None,
        "tries": [
            {
                "run": attempt.run,
                "name": attempt.name,
                "outcome": attempt.outcome or "running",
                "again": attempt.again,
            }
            for attempt in trial.tries
        ],
    }


def list_text(rows: Sequence[tuple[str, SweepOrder, SweepLog, bool]], width: int, now: float) -> str:
    head = ["sweep", "state", "trials", "best", "command"]
    cells = [head]
    for name, order, log, driven in rows:
        best = best_trial(log, order.space.goal)
        told = f"{order.space.metric} {shown_metric(best.metric)}" if best is not None else ""
        cells.append(
            [
                name,
                state := state_of(order, log, driven),
                counts_line(order, log, now, state),
                told,
                shlex.join(order.words),
            ]
        )
    return "\n".join(table(cells, width, shrink={4: 12, 2: 20}, drop=(4, 3)))


def estimate_text(name: str, told: TimeEstimate, width: int) -> str:
    spread = (
        f" ({format_duration(told.low)} to {format_duration(told.high)})"
        if told.high > told.low * 1.05
        else ""
    )
    lines = [f"a trial takes {format_duration(told.trial_seconds)}{spread}, by {told.basis}"]
    if told.trials is not None and told.total_seconds is not None:
        beside = f", {told.parallel} at once" if told.parallel > 1 else ""
        lines.append(f"{told.trials} trials{beside}: {format_duration(told.total_seconds)} in all")
    if told.left_seconds is not None and told.left and told.left != told.trials:
        lines.append(f"{told.left} left: about {format_duration(told.left_seconds)}")
    if told.fewer:
        rows = [[told.knob, "a trial", "all trials", "saves"]]
        most = told.fewer[0].total_seconds
        for row in told.fewer:
            saved = format_duration(most - row.total_seconds) if row is not told.fewer[0] else ""
            rows.append(
                [
                    str(row.count),
                    format_duration(row.trial_seconds),
                    format_duration(row.total_seconds),
                    saved,
                ]
            )
        lines += ["", *table(rows, width), ""]
        lines += folded(
            "", f"fewer {told.knob} save time and no memory; batch and workers are what takes memory", width
        )
    if told.left != 0:
        lines.append(f"continue: oomproof sweep resume {name}")
    return "\n".join(lines)
