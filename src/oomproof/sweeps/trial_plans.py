"""The command of a trial, and which smaller plans remain the same trial: fewer workers, the batch in more pieces. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from oomproof.errors import USAGE, OomproofError, did_you_mean
from oomproof.plans.knobs import Knob, Template, filled, kind_of, placeholders, unused
from oomproof.plans.plan import Plan, check_effective, effective_batch
from oomproof.plans.smaller_plans import batches_down, plans_down
from oomproof.records import dataclass, replace
from oomproof.sweeps.search_space import Parameter, Point, text_of
from oomproof.sweeps.wandb_sweep import ARGS, MACRO, with_environment

OURS = ("trial", "sweep")  # {trial} is its number, for an output folder of its own
JSON_FILE = "args_json_file"


def has_macros(words: Iterable[str]) -> bool:
    """Whether ${args} or one of its forms stands there: then every value reaches the script."""
    return any((match := MACRO.fullmatch(word)) and match[1] in ARGS for word in words)


def names_used(words: Iterable[str]) -> list[str]:
    """Of the placeholders; ${args} is none."""
    return placeholders([word for word in words if not MACRO.fullmatch(word)])


def check_words(
    words: Sequence[str], parameters: Sequence[Parameter], knobs: Iterable[str], *, by_config: bool
) -> None:
    """Every placeholder has values and every value a place. ``knobs``: further names that may stand there. ``by_config``: a
    script of wandb's may read its values from wandb.config. Raises OomproofError."""
    names = [parameter.name for parameter in parameters]
    used = names_used(words)
    known = [*names, *knobs, *OURS]
    for name in used:
        if name not in known:
            hint = f"add --param {name}=VALUE,VALUE; for braces as they stand write {{{{{name}}}}}"
            raise OomproofError(
                f"nothing says what {{{name}}} may be{did_you_mean(name, known)}", hint, USAGE
            )
    if has_macros(words) or (by_config and not used):
        return
    for name in names:
        if name not in used:
            raise unused(name, did_you_mean(name, used))


def arguments_of(parameters: Sequence[Parameter], point: Mapping[str, Any]) -> dict[str, Any]:
    """As wandb hands them to a script: nested ones as one value that holds them."""
    arguments: dict[str, Any] = {}
    for parameter in parameters:
        inner, path = arguments, parameter.path or (parameter.name,)
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = point[parameter.name]
    return arguments


def command_of(
    words: Sequence[str],
    parameters: Sequence[Parameter],
    point: Mapping[str, Any],
    further: Mapping[str, str],
    json_file: str,
) -> list[str]:
    """``further``: values of placeholders that are no parameters. ``json_file``: where the values stand as JSON."""
    texts = {**{name: text_of(value) for name, value in point.items()}, **further}
    command: list[str] = []
    for word in words:
        match = MACRO.fullmatch(word)
        if match and match[1] in ARGS:
            command += _expanded(match[1], arguments_of(parameters, point), json_file)
        else:
            command += filled([with_environment(word)], texts)
    return command


def _expanded(form: str, arguments: Mapping[str, Any], json_file: str) -> list[str]:
    """The forms of wandb's agent (create_sweep_command_args)."""
    if form == JSON_FILE:
        return [json_file]
    if form == "args_json":
        return [json.dumps(arguments)]
    if form == "args_no_equals":
        return [word for name, value in arguments.items() for word in (f"--{name}", text_of(value))]
    if form == "args_no_boolean_flags":
        return [
            f"--{name}" if value is True else f"--{name}={text_of(value)}"
            for name, value in arguments.items()
            if value is not False
        ]
    prefix = {"args": "--", "args_no_hyphens": "", "args_append_hydra": "+", "args_override_hydra": "++"}[
        form
    ]
    return [f"{prefix}{name}={text_of(value)}" for name, value in arguments.items()]


def wandb_config(arguments: Mapping[str, Any]) -> str:
    """The file from which wandb.init() has its config (WANDB_SWEEP_PARAM_PATH). Not JSON: YAML reads its 1e-05 as text."""
    import yaml  # there: the parameters came from such a file

    return str(
        yaml.safe_dump({"wandb_version": 1, **{name: {"value": value} for name, value in arguments.items()}})
    )


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
            raise unused(knob.name)
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
        plan = next(batches_down(template, plan, effective), plan)
    for smaller in plans_down(template, plan, effective):
        yield _applied(point, smaller)


def _template(point: Point, knobs: Knobs) -> tuple[Template, Plan]:
    made: list[Knob] = []
    values: dict[str, str] = {}
    for knob in knobs.declared:
        first = knob.values[0] if knob.values else str(knob.first)
        made.append(knob)
        values[knob.name] = first
    for name, value in point.items():
        if kind_of(name) == "batch" and str(value).isdecimal() and all(knob.kind != "batch" for knob in made):
            made.append(Knob(name, "batch", first=int(str(value)), described=False))
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


def knobs_from_json(value: Mapping[str, Any]) -> Knobs:
    """Raises KeyError or TypeError for what is damaged."""
    declared = tuple(replace(Knob(**knob), values=tuple(knob["values"])) for knob in value["declared"])
    return Knobs(declared, value["accum"], value["effective"])
