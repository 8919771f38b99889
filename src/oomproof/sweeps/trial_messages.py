"""What is said of a trial as it begins and ends: one line each. Pure."""

from __future__ import annotations

from oomproof.sweeps.metric_sources import Metric, shown_metric
from oomproof.sweeps.search_space import Point, shown
from oomproof.sweeps.sweep_trials import Trial, Try
from oomproof.units import format_duration, format_size


def start_line(trial: Trial, attempt: Try, first: Point, total: int | None) -> str:
    """``first``: the values it has when nothing is made smaller."""
    of = f" of {total}" if total else ""
    smaller = {name: value for name, value in attempt.values.items() if str(first.get(name)) != str(value)}
    with_them = f", run as {shown(smaller)}" if smaller else ""
    again = f" (try {attempt.number})" if attempt.number > 1 else ""
    return f"trial {trial.number}{of}: {shown(trial.values)}{with_them}{again}"


def end_line(trial: Trial, attempt: Try, metric: str | None) -> str:
    figures = [f"held {format_size(attempt.peak)}"] if attempt.peak else []
    figures += [f"{format_size(attempt.gpu_peak)} on the card"] if attempt.gpu_peak else []
    figures += [format_duration(attempt.seconds)] if attempt.seconds is not None else []
    if attempt.outcome == "done":
        told = (
            f"{metric} {shown_metric(attempt.metric)}"
            if metric is not None and attempt.metric is not None
            else "done"
        )
    elif trial.state == "waiting" and not attempt.shrunk:  # its end says nothing of the trial
        told = trial.why + ("" if attempt.stopping else "; it is tried again")
    else:
        told = f"{attempt.outcome.replace('-', ' ')}: {trial.why}"
        told += "; a smaller plan is tried" if attempt.shrunk else ""
    beside = f" ({', '.join(figures)})" if figures else ""
    return f"trial {trial.number}: {told}{beside}"


def source_line(metric: str, told: Metric) -> str:
    return f"metric {metric}: from {told.source}"


def missing_metric_line(number: int, metric: str, others: tuple[str, ...]) -> str:
    printed = f"; it printed {', '.join(others)}" if others else ""
    name = metric if metric.isidentifier() else "NAME"
    return (
        f"trial {number} is done, but reported no {metric}{printed}. A script reports it by printing {metric}=0.5, or with "
        f"oomproof.report_metric({name}=0.5)"
    )


def count_of(trials: int) -> str:
    return "the trial" if trials == 1 else f"the {trials} trials"
