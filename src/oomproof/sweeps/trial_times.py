"""How long a sweep takes, with what recordings of its trials tell: the time before training, the progress of one that runs."""

from __future__ import annotations

from oomproof.evidence.job_output import tail_text
from oomproof.evidence.planned_end import planned_end
from oomproof.evidence.texts.progress import ANCHORS, read_sign
from oomproof.recording.phase_spans import spans_of
from oomproof.recording.run_folders import Run, list_runs
from oomproof.recording.sqlite_files import UNREADABLE
from oomproof.sweeps.script_history import earlier_runs, expected_seconds
from oomproof.sweeps.sweep_order import SweepOrder
from oomproof.sweeps.sweep_trials import SweepLog, Try
from oomproof.sweeps.time_estimate import OWN_PROGRESS, TimeEstimate, counts_steps, estimate, time_knob
from oomproof.sweeps.trial_process import run_of

_LOOKED_AT = 5  # trials whose start is looked at
_TEXT = 4 << 20  # bytes of a job's output


def measured_estimate(order: SweepOrder, log: SweepLog, folder: str, now: float) -> TimeEstimate | None:
    """By trials that are done, by the progress of the one that runs, by earlier runs of the script in ``folder``; None where nothing tells."""
    tries = [attempt for trial in log.trials.values() for attempt in trial.tries]
    done = [attempt for attempt in tries if attempt.outcome == "done" and attempt.run]
    startups = sorted(
        seconds
        for attempt in done[-_LOOKED_AT:]
        if (seconds := _startup(run_of(attempt.run or ""))) is not None
    )
    knob, count = time_knob(order.space, order.words)
    so_far = next(
        (
            seconds
            for attempt in reversed(tries)
            if not done and (seconds := _progress(attempt, knob, count)) is not None
        ),
        None,
    )
    startup, basis = startups[len(startups) // 2] if startups else 0.0, OWN_PROGRESS
    if so_far is None and not done:
        told = expected_seconds(earlier_runs(order.words, folder, knob, _startup), knob, count)
        so_far, basis = told if told is not None else (None, basis)
    return estimate(
        order.space, order.words, log, order.total, order.parallel, now, startup=startup, so_far=so_far, basis=basis
    )  # fmt: skip


def _startup(run: Run) -> float | None:
    """Seconds from its start to its first step; None where the job tells no phases."""
    begin = run.started().get("boottime")
    try:
        with run.attempt.recording().series() as series:
            first = next((span.begin for span in spans_of(series) if span.name == "train"), None)
    except UNREADABLE:
        return None
    return max(0.0, first - begin) if first is not None and isinstance(begin, float) else None


def _progress(attempt: Try, knob: str, count: int | None) -> float | None:
    """What it will take in all, by the steps it has planned or its command asks for, or by the epochs that its bars show, of ``count``."""
    run = (
        run_of(attempt.run)
        if attempt.run
        else next((run for run in list_runs() if run.info.get("name") == attempt.name), None)
    )
    begin = run.started().get("boottime") if run is not None else None
    if run is None or not isinstance(begin, float):
        return None
    try:
        with run.attempt.recording().series() as series:
            end = series.end()
            if end is None:
                return None
            asked = count if counts_steps(knob) else None
            planned = planned_end(series, series.phase_marks(), end, run.attempt.outputs, asked)
    except UNREADABLE:
        return None
    if planned is not None and planned.seconds is not None:
        return end - begin + planned.seconds
    share = share_of_epochs(tail_text(run.attempt, _TEXT), None if counts_steps(knob) else count)
    return (end - begin) / share if share else None


def share_of_epochs(text: str, epochs: int | None) -> float | None:
    """How much of the training the output shows as made: epochs, and the newest bar's part of one."""
    signs = [
        sign
        for line in text.replace("\r", "\n").split("\n")
        if any(mark in line for mark in ANCHORS)
        and (sign := read_sign(line[-2000:])) is not None
        and sign.epoch is not None
    ]
    if not signs:
        return None
    last, total = signs[-1], epochs or signs[-1].epochs
    if not total or last.epoch is None:
        return None
    first = 0 if any(sign.epoch is not None and sign.epoch < 1 for sign in signs) else 1
    part = last.step / last.total if last.step is not None and last.total else 0.0
    share = (int(last.epoch) - first + min(1.0, part)) / total
    return share if 0.0 < share <= 1.0 else None
