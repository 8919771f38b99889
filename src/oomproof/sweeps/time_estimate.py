"""How long a sweep takes: hours a trial, days in all, and what fewer epochs would save. Pure.

Time knobs (epochs, steps) stand apart from memory knobs (batch, workers): fewer epochs save hours and no byte."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from oomproof.diagnosis.smaller_command import bare_name
from oomproof.leaf.command_lines import options
from oomproof.records import dataclass
from oomproof.sweeps.search_space import SearchSpace
from oomproof.sweeps.sweep_trials import OVER, SweepLog

_EPOCHS = re.compile(
    r"^(?:num_|n_|max_|total_)?(?:train_)?(?:epochs?|steps|iters|iterations|updates)$", re.IGNORECASE
)
_SHARES = (1.0, 0.5, 0.25)


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
        attempt.seconds
        for trial in log.trials.values()
        for attempt in trial.tries
        if attempt.outcome == "done" and attempt.seconds is not None
    ]


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def seconds_left(
    log: SweepLog, parallel: int, now: float, left: int | None = 0, *, running_only: bool = False
) -> float | None:
    """To the end: what runs, and ``left`` further trials. None where no trial is done yet."""
    known = durations(log)
    if not known or left is None:
        return None
    each = _middle(known)
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
) -> TimeEstimate | None:
    """``startup``: seconds before a trial trains. ``so_far``: what the first trial will take in all, by its own progress,
    where none is done. None where nothing is known."""
    known = durations(log)
    basis = f"{len(known)} trials" if len(known) > 1 else "one trial"
    if not known and so_far is None:
        return None
    if not known and so_far is not None:
        known, basis = [so_far], "the first trial's own progress"
    each = _middle(known)
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
        for trial in log.trials.values()
        for attempt in trial.tries
        if attempt.outcome == "done"
        and attempt.seconds
        and (value := str(attempt.values.get(knob, ""))).isdecimal()
    ]
    if len({epochs for epochs, _ in points}) > 1:
        mean_x = sum(epochs for epochs, _ in points) / len(points)
        mean_y = sum(seconds for _, seconds in points) / len(points)
        slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum(
            (x - mean_x) ** 2 for x, _ in points
        )
        slope = max(0.0, slope)
        return max(0.0, mean_y - slope * mean_x), slope
    epochs = count or (points[0][0] if points else 0)
    return (min(startup, each), max(0.0, each - startup) / epochs) if epochs else (each, 0.0)


def _fewer(
    line: tuple[float, float], count: int | None, log: SweepLog, knob: str, total: int | None, parallel: int
) -> list[Fewer]:
    startup, each = line
    values = [
        int(value)
        for trial in log.trials.values()
        for attempt in trial.tries
        if (value := str(attempt.values.get(knob, ""))).isdecimal()
    ]
    most = count or max(values, default=0)
    rows: list[Fewer] = []
    for share in _SHARES:
        epochs = max(1, round(most * share)) if most else 0
        if epochs and each and all(epochs != row.count for row in rows):
            seconds = startup + each * epochs
            rows.append(Fewer(epochs, seconds, seconds * (total or 1) / parallel))
    return rows
