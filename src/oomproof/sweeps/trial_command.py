"""The command of one trial: a template with {placeholders} or wandb's ${args}, filled with a point's values. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oomproof.errors import USAGE, OomproofError, did_you_mean
from oomproof.plans.command_template import filled, placeholders
from oomproof.sweeps.search_space import Parameter, text_of
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
            hint = f"put {{{name}}} where its value belongs: python train.py --{name} {{{name}}}"
            raise OomproofError(f"the command does not use {{{name}}}{did_you_mean(name, used)}", hint, USAGE)


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
