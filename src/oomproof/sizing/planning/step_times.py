"""How long an optimizer step will take with a plan, by recorded runs of the same command: at that batch, or on the line of two. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import median

from oomproof.errors import OomproofError
from oomproof.plans.knobs import PLACEHOLDER, Kind, Template, kind_of
from oomproof.plans.plan import Plan, number
from oomproof.recording.attempt import Attempt
from oomproof.recording.phase_spans import seconds_per_step
from oomproof.recording.run_folders import newest_runs, to_type
from oomproof.records import dataclass
from oomproof.remedies.config_formats.format_choice import scalars_of
from oomproof.remedies.config_formats.scalars import Unreadable
from oomproof.remedies.fix_files import settings_files

# They change how fast batches come, not what a step does; a loader that is waited for is slow in each of them.
_OF_THE_LOADER = ("workers", "prefetch")
_BEYOND = 2.0  # times the batches that were measured, a line still tells


@dataclass(frozen=True, slots=True)
class Pace:
    """Of one recorded run: what it ran with, and the seconds of a step."""

    plan: Plan
    seconds: float
    said: str  # which run


@dataclass(frozen=True, slots=True)
class StepTime:
    seconds: float
    measured: bool  # with that very batch


def plan_in(template: Template, argv: Sequence[str]) -> Plan | None:
    """What a recorded command has in the places of the placeholders; None where it is another command."""
    if len(argv) != len(template.words) or template.overrides:
        return None
    values: dict[str, str] = {}
    for word, typed in zip(template.words, argv, strict=True):
        names = [match[2] for match in PLACEHOLDER.finditer(word) if match[2]]
        match = re.fullmatch("(.*)".join(map(re.escape, _between(word))), typed, re.DOTALL)
        if match is None:
            return None
        values.update(zip(names, match.groups(), strict=True))
    known = {knob.name: values[knob.name] for knob in template.knobs if knob.name in values}
    return Plan.of(known) if len(known) == len(template.knobs) else None


def _between(word: str) -> list[str]:
    """The text around the placeholders; ``{{name}}`` is {name} as it stands."""
    parts, begin, text = [], 0, ""
    for match in PLACEHOLDER.finditer(word):
        text += word[begin : match.start()]
        begin = match.end()
        if match[2]:
            parts.append(text)
            text = ""
        else:
            text += f"{{{match[1]}}}"
    return [*parts, text + word[begin:]]


def step_time(template: Template, paces: Sequence[Pace], plan: Plan) -> StepTime | None:
    """None where no run tells."""
    batch, accum = number(template, plan, "batch"), number(template, plan, "accum") or 1
    passes: dict[int, list[float]] = {}
    for pace in paces:
        size = number(template, pace.plan, "batch")
        if size is not None and _same_work(template, pace.plan) == _same_work(template, plan):
            passes.setdefault(size, []).append(pace.seconds / (number(template, pace.plan, "accum") or 1))
    if batch is None or not passes:
        return None
    if batch in passes:
        return StepTime(accum * median(passes[batch]), True)
    sizes = sorted(passes)
    if len(sizes) < 2 or not sizes[0] / _BEYOND <= batch <= sizes[-1] * _BEYOND:
        return None
    low, high = sorted(sorted(sizes, key=lambda size: abs(size - batch))[:2])
    first, second = median(passes[low]), median(passes[high])
    seconds = first + (second - first) * (batch - low) / (high - low)
    return StepTime(accum * seconds, False) if seconds > 0 else None


def _same_work(template: Template, plan: Plan) -> Mapping[str, str]:
    """Settings that change what is computed: a length, a precision."""
    beside = (*_OF_THE_LOADER, "batch", "accum", "eval_batch")
    return {knob.name: plan.get(knob.name) or "" for knob in template.knobs if knob.kind not in beside}


def pace_note(template: Template, paces: Sequence[Pace], plan: Plan) -> str:
    """What the plan costs beside the newest run of the same effective batch; nothing where that is not known."""
    expected = step_time(template, paces, plan)
    if expected is None:
        return ""
    effective = _effective(template, plan)
    before = next((pace for pace in paces if _effective(template, pace.plan) == effective), None)
    if before is None or before.plan == plan:
        return ""
    about = "" if expected.measured else "about "
    return (
        f"a step is expected to take {about}{step_text(expected.seconds)}, × {expected.seconds / before.seconds:.2g} of the "
        f"{step_text(before.seconds)} of {before.said} ({before.plan})"
    )


def _effective(template: Template, plan: Plan) -> int:
    return (number(template, plan, "batch") or 0) * (number(template, plan, "accum") or 1)


def step_text(seconds: float) -> str:
    return (
        f"{seconds * 1000:.3g} ms"
        if seconds < 1
        else f"{seconds:.2g} s"
        if seconds < 100
        else f"{seconds:.0f} s"
    )


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
