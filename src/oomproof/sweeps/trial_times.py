"""How long a sweep takes, with what recordings of its trials tell: the time before training, the progress of one that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from statistics import median

from oomproof.evidence.job_output import tail_text
from oomproof.evidence.planned_end import planned_end
from oomproof.evidence.texts.progress import ANCHORS, read_sign
from oomproof.leaf.command_lines import options, script_of
from oomproof.recording.phase_spans import spans_of
from oomproof.recording.run_folders import Run, list_runs, newest_runs
from oomproof.recording.sqlite_files import UNREADABLE
from oomproof.records import dataclass
from oomproof.sweeps.sweep_order import SweepOrder
from oomproof.sweeps.sweep_trials import SweepLog, Try
from oomproof.sweeps.time_estimate import OWN_PROGRESS, TimeEstimate, counts_steps, estimate, time_knob
from oomproof.sweeps.trial_process import run_of

_RUNS = 200  # that are looked through
_TAKEN = 20  # of the same script: newer ones tell more


@dataclass(frozen=True, slots=True)
class EarlierRun:
    seconds: float
    count: int | None  # its epochs or steps; None: its command names none
    startup: float = 0.0  # of the seconds, those before its first step


def expected_seconds(runs: Sequence[EarlierRun], knob: str, count: int | None) -> tuple[float, str] | None:
    """(of one trial, by what). ``count``: the epochs of a trial, None where they differ or nobody knows."""
    if not runs:
        return None
    same = [run.seconds for run in runs if count is None or run.count == count]
    if same:
        return median(same), _said(len(same), f" with {knob} {count}" if count is not None else "")
    counted = [(run, run.count) for run in runs if run.count]
    if count is None or not counted:
        return None
    numbers = sorted({epochs for _, epochs in counted})
    if len(numbers) > 1:
        low, high = (
            median([run.seconds for run, epochs in counted if epochs == end])
            for end in (numbers[0], numbers[-1])
        )
        pace = max(0.0, (high - low) / (numbers[-1] - numbers[0]))
        startup = max(0.0, low - pace * numbers[0])
        return startup + pace * count, _said(
            len(counted), f" with {knob} {numbers[0]} to {numbers[-1]}, made {count}"
        )
    startup = median([run.startup for run, _ in counted])
    pace = max(0.0, median([run.seconds for run, _ in counted]) - startup) / numbers[0]
    about = "" if startup else " (at most: its start is in each)"
    return startup + pace * count, _said(len(counted), f" with {knob} {numbers[0]}, made {count}{about}")


def _said(count: int, more: str) -> str:
    return ("an earlier run" if count == 1 else f"{count} earlier runs") + " of its script" + more


def earlier_runs(
    words: Sequence[str], folder: str, knob: str, startup: Callable[[Run], float | None]
) -> list[EarlierRun]:
    """Newest first; of any sweep, or of none. ``startup``: seconds before a run's first step."""
    script = script_of(words, folder)
    if script is None:
        return []
    return list(islice(_ended_well(script, knob, startup), _TAKEN))


def _ended_well(script: str, knob: str, startup: Callable[[Run], float | None]) -> Iterator[EarlierRun]:
    for run in newest_runs(_RUNS):
        ended, started = run.exit(), run.started()
        begin, end = started.get("boottime"), ended.get("boottime")
        if ended.get("code") != 0 or run.elsewhere() or run.info.get("adopted") is True:
            continue
        if script_of(run.argv, str(run.info.get("cwd") or "")) != script:
            continue
        if isinstance(begin, float) and isinstance(end, float) and end > begin:
            yield EarlierRun(end - begin, _count(run.argv, knob), startup(run) or 0.0)


def _count(argv: Sequence[str], knob: str) -> int | None:
    values = [value for name, value in options(argv[1:]) if name == knob and value and value.isdecimal()]
    return int(values[-1]) if values and int(values[-1]) > 0 else None


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
