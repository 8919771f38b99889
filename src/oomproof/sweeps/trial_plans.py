"""How a trial may be made smaller without becoming another one: fewer workers, the batch in more pieces. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from oomproof.errors import USAGE, OomproofError
from oomproof.plans.command_template import Template
from oomproof.plans.knobs import Knob, kind_of, sacrifice_order
from oomproof.plans.plan import Plan, batches_at_most, check_effective, effective_batch
from oomproof.records import dataclass, replace
from oomproof.sweeps.search_space import Parameter, Point
from oomproof.sweeps.trial_command import names_used


@dataclass(frozen=True, slots=True)
class Knobs:
    """What may move in each trial beside the sampler's choice. ``declared``: by --knob; ``accum``: the name of what
    accumulates, where anything does; ``effective``: the batch of one optimizer step, where it is given."""

    declared: tuple[Knob, ...] = ()
    accum: str | None = None
    effective: int | None = None

    @property
    def names(self) -> list[str]:
        return [*(knob.name for knob in self.declared), *([self.accum] if self.accum else [])]


def knobs_of(
    words: Sequence[str], parameters: Sequence[Parameter], declared: Sequence[Knob], effective: int | None
) -> Knobs:
    """Checked against the command. Raises OomproofError."""
    names = {parameter.name for parameter in parameters}
    used = names_used(words)
    for knob in declared:
        if sum(other.name == knob.name for other in declared) > 1:
            raise OomproofError(f"--knob {knob.name} is given twice", "give all its values at once", USAGE)
        if knob.name in names:
            raise OomproofError(
                f"{knob.name} is given with --param and with --knob",
                "--param searches it, --knob only makes it smaller",
                USAGE,
            )
        if knob.name not in used:
            hint = (
                f"put {{{knob.name}}} where its value belongs: python train.py --{knob.name} {{{knob.name}}}"
            )
            raise OomproofError(f"the command does not use {{{knob.name}}}", hint, USAGE)
    # an accumulation that is searched is the user's; one that stands fixed in a file may move
    fixed = [parameter.name for parameter in parameters if parameter.is_constant]
    candidates = [
        name for name in (*used, *fixed) if kind_of(name) == "accum" and (name not in names or name in fixed)
    ]
    accum = next((name for name in candidates if all(knob.name != name for knob in declared)), None)
    knobs = Knobs(tuple(declared), accum, effective)
    if effective is not None:
        _check_effective(knobs, parameters)
    return knobs


def _check_effective(knobs: Knobs, parameters: Sequence[Parameter]) -> None:
    effective = knobs.effective
    batch = next((parameter for parameter in parameters if kind_of(parameter.name) == "batch"), None)
    micro: Knob | None
    if batch is not None and batch.kind == "values":
        micro = Knob(batch.name, "batch", tuple(str(value) for value in batch.values))
    elif batch is not None and batch.kind == "int":
        micro = Knob(batch.name, "batch", first=int(batch.high), least=int(batch.low))
    else:
        micro = next((knob for knob in knobs.declared if knob.kind == "batch"), None)
    both = [knob for knob in (micro, Knob(knobs.accum, "accum") if knobs.accum else None) if knob is not None]
    check_effective(Template((), tuple(both)), effective)
    for value in batch.values if batch is not None else ():
        if effective is not None and str(value).isdecimal() and effective % int(value):
            raise OomproofError(
                f"--effective {effective} cannot be made of batches of {value}",
                f"leave out the batch of {value}",
                USAGE,
            )


def plans_of(point: Point, knobs: Knobs) -> Iterator[tuple[Point, dict[str, str]]]:
    """(the point as it runs, values of placeholders that are no parameters): as asked, then smaller and smaller.

    Workers and what else was declared give way first; then the batch is split, where accumulation makes up for it, so that
    the effective batch stays. A batch that is searched and has no accumulation is never split: it would be another trial."""
    template, plan = _template(point, knobs)
    effective = knobs.effective or effective_batch(template, plan)
    if knobs.effective is not None:
        plan = next(iter(_split(template, plan, effective)), plan)
    seen = [plan]
    yield _applied(point, plan)
    for knob in sacrifice_order([knob for knob in template.knobs if knob.kind != "accum"]):
        if knob.kind == "batch":
            if template.knob("accum") is None and knob.name in point:
                continue
            smaller = _split(template, seen[-1], effective)
        else:
            smaller = (
                seen[-1].with_values(**{knob.name: value})
                for value in knob.smaller(seen[-1].get(knob.name) or "")
            )
        for candidate in smaller:
            if candidate not in seen:
                seen.append(candidate)
                yield _applied(point, candidate)


def _split(template: Template, plan: Plan, effective: int | None) -> Iterator[Plan]:
    batch = template.knob("batch")
    most = plan.get(batch.name) if batch is not None else None
    if most is None or not most.isdecimal():
        return iter(())
    if template.knob("accum") is None:  # the user lets it move: by halves
        assert batch is not None
        return (plan.with_values(**{batch.name: value}) for value in batch.smaller(most))
    return batches_at_most(template, plan, int(most), effective)


def _template(point: Point, knobs: Knobs) -> tuple[Template, Plan]:
    made: list[Knob] = []
    values: dict[str, str] = {}
    for knob in knobs.declared:
        first = knob.values[0] if knob.values else str(knob.first)
        made.append(knob)
        values[knob.name] = first
    for name, value in point.items():
        if kind_of(name) == "batch" and str(value).isdecimal() and all(knob.kind != "batch" for knob in made):
            made.append(Knob(name, "batch", first=int(str(value))))
            values[name] = str(value)
    if knobs.accum is not None:
        given = str(point.get(knobs.accum, "1"))
        steps = int(given) if given.isdecimal() and int(given) else 1
        made.append(Knob(knobs.accum, "accum", first=steps))
        values[knobs.accum] = str(steps)
    return Template((), tuple(made)), Plan.of(values)


def _applied(point: Point, plan: Plan) -> tuple[Point, dict[str, str]]:
    changed = {**point}
    further: dict[str, str] = {}
    for name, value in plan.values:
        if name in point:
            changed[name] = value if isinstance(point[name], str) else int(value)
        else:
            further[name] = value
    return changed, further


def knobs_as_json(knobs: Knobs) -> dict[str, Any]:
    declared = [
        {
            "name": knob.name,
            "kind": knob.kind,
            "values": list(knob.values),
            "first": knob.first,
            "least": knob.least,
        }
        for knob in knobs.declared
    ]
    return {"declared": declared, "accum": knobs.accum, "effective": knobs.effective}


def knobs_from_json(value: Mapping[str, Any]) -> Knobs:
    """Raises KeyError or TypeError for what is damaged."""
    declared = tuple(replace(Knob(**knob), values=tuple(knob["values"])) for knob in value["declared"])
    return Knobs(declared, value["accum"], value["effective"])
