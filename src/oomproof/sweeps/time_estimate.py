"""How long a sweep takes: hours a trial, days in all, and what fewer epochs would save.

Time knobs (epochs, steps) stand apart from memory knobs (batch, workers): fewer epochs save hours and no byte."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from statistics import fmean, linear_regression, median
from typing import Any

from oomproof.diagnosis.smaller_command import bare_name
from oomproof.evidence.job_output import tail_text
from oomproof.evidence.planned_end import planned_end
from oomproof.evidence.texts.progress import ANCHORS, read_sign
from oomproof.leaf.command_lines import options, script_of
from oomproof.plans.knobs import filled
from oomproof.recording.phase_spans import spans_of
from oomproof.recording.run_folders import Run, list_runs, newest_runs
from oomproof.recording.sqlite_files import UNREADABLE
from oomproof.records import dataclass
from oomproof.sweeps.search_space import SearchSpace, text_of
from oomproof.sweeps.sweep_folder import SweepOrder
from oomproof.sweeps.sweep_trials import OVER, SweepLog, Try
from oomproof.sweeps.trial_plans import has_macros
from oomproof.sweeps.trial_process import run_of
from oomproof.units import format_duration

_EPOCHS = re.compile(
    r"^(?:num_|n_|max_|total_)?(?:train_)?(?:epochs?|steps|iters|iterations|updates)$", re.IGNORECASE
)
_STEPS = re.compile(r"(?:steps|iters|iterations|updates)$", re.IGNORECASE)
_SHARES = (1.0, 0.5, 0.25)
OWN_PROGRESS = "the first trial's own progress"


@dataclass(frozen=True, slots=True)
class Fewer:
    """The same sweep with another number of epochs."""

    count: int
    trial_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    trial_seconds: float  # in the middle
    low: float
    high: float
    basis: str  # "4 trials", "the first trial so far"
    trials: int | None  # in all
    left: int | None
    parallel: int
    total_seconds: float | None
    left_seconds: float | None
    knob: str = ""  # what counts epochs
    fewer: tuple[Fewer, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "trial_seconds": {"low": self.low, "expected": self.trial_seconds, "high": self.high},
            "basis": self.basis,
            "trials": self.trials,
            "trials_left": self.left,
            "parallel": self.parallel,
            "total_seconds": self.total_seconds,
            "left_seconds": self.left_seconds,
            "time_knob": self.knob or None,
            "fewer": [
                {"value": row.count, "trial_seconds": row.trial_seconds, "total_seconds": row.total_seconds}
                for row in self.fewer
            ],
        }


def durations(log: SweepLog) -> list[float]:
    """Of the trials that are done, in their order."""
    return [
        attempt.seconds for attempt in log.tries if attempt.outcome == "done" and attempt.seconds is not None
    ]


def seconds_left(
    log: SweepLog, parallel: int, now: float, left: int | None = 0, *, running_only: bool = False
) -> float | None:
    """To the end: what runs, and ``left`` further trials. None where no trial is done yet."""
    known = durations(log)
    if not known or left is None:
        return None
    each = median(known)
    running = [
        max(0.0, each - max(0.0, now - trial.last.wall)) for trial in log.running if trial.last is not None
    ]
    if running_only:
        return max(running, default=0.0)
    return (sum(running) + left * each) / max(1, parallel)


def trials_left(space: SearchSpace, log: SweepLog, total: int | None) -> int | None:
    """Those that have not begun."""
    if total is None:
        return None
    counted = [trial for trial in log.trials.values() if space.method == "grid" or trial.state != "skipped"]
    return max(0, total - sum(trial.state in OVER or trial.state == "running" for trial in counted))


def time_knob(space: SearchSpace, words: Sequence[str]) -> tuple[str, int | None]:
    """(its name, its value where that is the same for all); an empty name where there is none."""
    for parameter in space.parameters:
        if _EPOCHS.match(bare_name(parameter.name)):
            value = str(parameter.values[0]) if parameter.is_constant else ""
            return parameter.name, int(value) if value.isdecimal() else None
    found = [
        (name, int(value))
        for name, value in options(words[1:])
        if name and value and value.isdecimal() and int(value) > 0 and _EPOCHS.match(bare_name(name))
    ]
    return found[-1] if found else ("", None)


def counts_steps(knob: str) -> bool:
    """Of the optimizer, rather than epochs."""
    return _STEPS.search(knob) is not None


def estimate(
    space: SearchSpace,
    words: Sequence[str],
    log: SweepLog,
    total: int | None,
    parallel: int,
    now: float,
    *,
    startup: float = 0.0,
    so_far: float | None = None,
    basis: str = OWN_PROGRESS,
) -> TimeEstimate | None:
    """``startup``: seconds before a trial trains. ``so_far``: what a trial will take in all where none is done, by its own progress or by
    what ``basis`` says. None where nothing is known."""
    known = durations(log)
    if not known and so_far is None:
        return None
    if not known and so_far is not None:
        known = [so_far]
    else:
        basis = f"{len(known)} trials" if len(known) > 1 else "one trial"
    each = median(known)
    left = trials_left(space, log, total)
    knob, count = time_knob(space, words)
    all_seconds = each * total / parallel if total is not None else None
    rest = seconds_left(log, parallel, now, left) if durations(log) else all_seconds
    return TimeEstimate(
        each, min(known), max(known), basis, total, left, parallel, all_seconds, rest, knob,
        tuple(_fewer(_line(log, knob, count, each, startup), count, log, knob, total, parallel)) if knob else (),
    )  # fmt: skip


def _line(log: SweepLog, knob: str, count: int | None, each: float, startup: float) -> tuple[float, float]:
    """(seconds before the first epoch, seconds an epoch)."""
    points = [
        (int(value), attempt.seconds)
        for attempt in log.tries
        if attempt.outcome == "done"
        and attempt.seconds
        and (value := str(attempt.values.get(knob, ""))).isdecimal()
    ]
    if len({epochs for epochs, _ in points}) > 1:
        counts, seconds = zip(*points, strict=True)
        slope = max(0.0, linear_regression(counts, seconds).slope)
        return max(0.0, fmean(seconds) - slope * fmean(counts)), slope
    epochs = count or (points[0][0] if points else 0)
    return (min(startup, each), max(0.0, each - startup) / epochs) if epochs else (each, 0.0)


def _fewer(
    line: tuple[float, float], count: int | None, log: SweepLog, knob: str, total: int | None, parallel: int
) -> list[Fewer]:
    startup, each = line
    values = [int(value) for attempt in log.tries if (value := str(attempt.values.get(knob, ""))).isdecimal()]
    most = count or max(values, default=0)
    rows: list[Fewer] = []
    for share in _SHARES:
        epochs = max(1, round(most * share)) if most else 0
        if epochs and each and all(epochs != row.count for row in rows):
            seconds = startup + each * epochs
            rows.append(Fewer(epochs, seconds, seconds * (total or 1) / parallel))
    return rows


def nothing_told(
    name: str, space: SearchSpace, words: Sequence[str], log: SweepLog, total: int | None, now: float
) -> tuple[str, str]:
    """(what is missing, how to get it) where `estimate` has nothing to go by: a script that prints nothing and makes no known steps."""
    tries = log.tries
    lasted = max((attempt.seconds or max(0.0, now - attempt.wall) for attempt in tries), default=0.0)
    told = "no trial is done, and none shows its progress: no bar, no epochs, no steps of a known number"
    if lasted >= 1.0:
        all_of_them = f", all {total} more than {format_duration(lasted * total)}" if total else ""
        told += f"; one takes more than {format_duration(lasted)}{all_of_them}"
    knob, count = time_knob(space, words)
    short = _short_command(words, tries[-1].values if tries else {}, knob) if knob and count != 1 else None
    if short is None:
        return told, f"let one end: oomproof sweep resume {name}"
    return (
        told,
        f"time a short run, it counts for the estimate: oomproof run -- {short}; then oomproof sweep estimate {name}",
    )


def _short_command(words: Sequence[str], values: Mapping[str, Any], knob: str) -> str | None:
    """A trial's command with one epoch; None where its arguments are made in another way than by placeholders."""
    if has_macros(words):
        return None
    known = {**{key: text_of(value) for key, value in values.items()}, knob: "1"}
    try:
        command = filled(words, known)
    except KeyError:  # a placeholder that no trial had a value for yet
        return None
    for at, word in enumerate(command):
        bare = word.lstrip("-+~")
        if bare == knob and at + 1 < len(command):
            command[at + 1] = "1"
        elif bare.startswith(f"{knob}="):
            command[at] = word.partition("=")[0] + "=1"
    return shlex.join(command)


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
    tries = log.tries
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
