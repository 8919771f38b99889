"""What of a command may change: its placeholders, arguments that tell what they are, and what a Hydra program's configs say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from oomproof.leaf.command_lines import script_of
from oomproof.plans.knobs import Template, least_workers, parse_knob, template_of
from oomproof.records import replace


def knobs_of(argv: Sequence[str], described: Sequence[str], folder: str) -> Template:
    """``described``: as ``--knob`` has them. Raises OomproofError."""
    knobs = [parse_knob(text) for text in described]
    template = template_of(argv, knobs, folder=folder)
    template = _with_workers(template, script_text(argv, folder), {knob.name for knob in knobs})
    if not template.typed:
        from oomproof.remedies.hydra_program import hydra_program, with_overrides

        template = with_overrides(template, hydra_program(argv, folder))
    return template


def hydra_problem(argv: Sequence[str], folder: str) -> str:
    """Why nothing was taken from a Hydra program's configs; empty where it is none, or all was."""
    from oomproof.remedies.hydra_program import hydra_program

    program = hydra_program(argv, folder)
    return f"its Hydra configs were not followed: {program.problem}" if program and program.problem else ""


def script_text(argv: Sequence[str], folder: str) -> str:
    """Empty where it cannot be read."""
    script = script_of(argv, folder)
    try:
        return Path(script).read_text(errors="replace") if script is not None else ""
    except OSError:
        return ""


def _with_workers(template: Template, text: str, described: set[str]) -> Template:
    """One worker is kept where the script's own text says that it cannot do without, or where batches ahead are asked for; a user who
    names or types 0 means it."""
    least = 1 if template.knob("prefetch") is not None else least_workers(text)
    knobs = [
        replace(knob, least=max(knob.least, least))
        if knob.kind == "workers" and knob.name not in described and knob.first != 0
        else knob
        for knob in template.knobs
    ]
    return replace(template, knobs=tuple(knobs))
