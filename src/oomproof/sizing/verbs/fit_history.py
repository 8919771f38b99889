"""What is known of a command before `oomproof fit` runs it: the batch it has by itself, and how long its steps took."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.errors import OomproofError
from oomproof.plans.command_template import Template
from oomproof.plans.knobs import Kind, kind_of
from oomproof.recording.attempt import Attempt
from oomproof.recording.phase_spans import seconds_per_step
from oomproof.recording.run_folders import newest_runs, to_type
from oomproof.remedies.config_formats.format_choice import scalars_of
from oomproof.remedies.config_formats.scalars import Unreadable
from oomproof.remedies.fix_files import settings_files
from oomproof.sizing.planning.step_times import Pace, plan_in

_RUNS = 200  # that are looked through


def usual_batch(template: Template, argv: Sequence[str], folder: str) -> int | None:
    """Samples of one step as the template counts them, by the defaults of the script and of the files that the command names; None where
    those have no number, or several."""
    batch = _only_number("batch", argv, folder)
    if template.knob("accum") is None:
        return batch
    passes = _only_number("accum", argv, folder)
    return batch * passes if batch is not None and passes is not None else None


def _only_number(kind: Kind, argv: Sequence[str], folder: str) -> int | None:
    values: set[str] = set()
    for file in settings_files(argv, folder, None):
        try:
            scalars = scalars_of(file.path, file.text, lambda name: kind_of(name) == kind)
        except (Unreadable, OomproofError):  # OomproofError: its format needs a package that is not there
            return None
        values.update(scalar.value for scalar in scalars)
    value = values.pop() if len(values) == 1 else ""
    return int(value) if value.isdecimal() and len(value) < 10 else None


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
