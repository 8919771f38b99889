"""How long a sweep takes: hours a trial, days in all, and what fewer epochs would save. Pure.

Time knobs (epochs, steps) stand apart from memory knobs (batch, workers): fewer epochs save hours and no byte."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from oomproof.diagnosis.smaller_command import bare_name
from oomproof.leaf.command_lines import options
from oomproof.plans.command_template import filled
from oomproof.records import dataclass
from oomproof.sweeps.search_space import SearchSpace, text_of
from oomproof.sweeps.sweep_trials import OVER, SweepLog
from oomproof.sweeps.trial_command import has_macros
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


def nothing_told(
    name: str, space: SearchSpace, words: Sequence[str], log: SweepLog, total: int | None, now: float
) -> tuple[str, str]:
    """(what is missing, how to get it) where `estimate` has nothing to go by: a script that prints nothing and makes no known steps."""
    tries = [attempt for trial in log.trials.values() for attempt in trial.tries]
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
