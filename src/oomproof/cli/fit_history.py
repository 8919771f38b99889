"""What is known of a command before `oomproof fit` runs it: the batch it has by itself, and how long its steps took."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.cli.command_knobs import script_text
from oomproof.plans.command_template import Template
from oomproof.plans.knobs import kind_of
from oomproof.plans.step_times import Pace, plan_in
from oomproof.recording.attempt import Attempt
from oomproof.recording.phase_spans import seconds_per_step
from oomproof.recording.run_folders import newest_runs, to_type
from oomproof.remedies.config_formats.python_scalars import python_scalars
from oomproof.remedies.config_formats.scalars import Unreadable

_RUNS = 200  # that are looked through


def usual_batch(argv: Sequence[str], folder: str) -> int | None:
    """Samples of one step by the script's own default, where its source has one number for the batch and nothing else accumulates."""
    try:
        scalars = python_scalars(script_text(argv, folder), lambda name: kind_of(name) in ("batch", "accum"))
    except Unreadable:
        return None
    values: dict[str, set[str]] = {"batch": set(), "accum": set()}
    for scalar in scalars:
        values[str(kind_of(scalar.name))].add(scalar.value)
    accum = values["accum"] or {"1"}
    if len(values["batch"]) != 1 or len(accum) != 1:
        return None
    batch, passes = values["batch"].pop(), accum.pop()
    return int(batch) * int(passes) if batch.isdecimal() and passes.isdecimal() else None


def paces_of(template: Template, folder: str) -> tuple[Pace, ...]:
    """Of the newest runs of this command that told their steps."""
    paces = []
    for run in newest_runs(_RUNS):
        if run.info.get("cwd") != folder:
            continue
        attempts = run.attempts()
        for attempt in reversed(attempts):
            seen = run.at(attempt.number) if len(attempts) > 1 else run
            plan = plan_in(template, seen.argv)
            if plan is not None and (seconds := _step_seconds(attempt)):
                paces.append(Pace(plan, seconds, to_type(seen)))
    return tuple(paces)


def _step_seconds(attempt: Attempt) -> float | None:
    with attempt.recording().series() as series:
        return seconds_per_step(series.phase_marks())
