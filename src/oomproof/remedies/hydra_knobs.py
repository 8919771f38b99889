"""Settings of a Hydra program that its command line does not name: found in its configs, changed by an override behind the command."""

from __future__ import annotations

from oomproof.plans.command_template import Template
from oomproof.plans.knobs import Kind, Knob, kind_of, least_of, least_workers
from oomproof.records import replace
from oomproof.remedies.hydra_program import HydraProgram, Path

_KINDS: tuple[Kind, ...] = ("workers", "prefetch", "batch", "accum", "eval_batch")
_ACCUMULATION = "accumulate_grad_batches"


def with_overrides(template: Template, program: HydraProgram | None) -> Template:
    """The same command, with knobs for what stands once in the configs that applied. What stands there twice is nobody's guess."""
    if program is None or program.problem:
        return template
    knobs, overrides = list(template.knobs), list(template.overrides)
    texts = {value.layer for value in program.values.values()}
    for kind in _KINDS:
        if template.knob(kind) is not None:
            continue
        paths = paths_of(program, kind)
        if len(paths) != 1:
            continue
        least = least_of(kind)
        if kind == "workers":
            least = max(least_workers(program.text_of(layer) or "") for layer in texts)
        first = int(program.values[paths[0]].scalar.value)
        knobs.append(Knob(kind, kind, first=first, least=least, described=False))
        overrides.append((kind, f"{'.'.join(paths[0])}="))
    known = replace(template, knobs=tuple(knobs), overrides=tuple(overrides))
    key = implied_accumulation(program)
    return with_accumulation(known, key) if key and known.knob("accum") is None else known


def with_accumulation(template: Template, key: str) -> Template:
    """``key``: of a Trainer's argument that is not in the configs, and 1 for that."""
    knob = Knob("accum", "accum", first=1, described=False)
    return replace(
        template, knobs=(*template.knobs, knob), overrides=(*template.overrides, ("accum", f"+{key}="))
    )


def paths_of(program: HydraProgram, kind: Kind) -> list[Path]:
    return [
        path
        for path, applied in program.values.items()
        if kind_of(applied.scalar.name) == kind
        and not applied.doubt
        and _is_count(applied.scalar.value, kind)
    ]


def implied_accumulation(program: HydraProgram) -> str:
    """``trainer.accumulate_grad_batches``, where Lightning's Trainer is described without it; else empty."""
    found = program.trainers()
    if len(found) != 1 or (*found[0], _ACCUMULATION) in program.values:
        return ""
    key = ".".join((*found[0], _ACCUMULATION))
    return "" if key in program.typed else key


def _is_count(value: str, kind: Kind) -> bool:
    return value.isdecimal() and len(value) < 10 and int(value) >= least_of(kind)
