"""How long an optimizer step will take with a plan, by recorded runs of the same command: at that batch, or on the line of two. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import median

from oomproof.plans.command_template import PLACEHOLDER, Template
from oomproof.plans.plan import Plan, number
from oomproof.records import dataclass

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
