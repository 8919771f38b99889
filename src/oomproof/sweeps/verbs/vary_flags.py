"""`--vary bs=32,8,4` and `--env NAME=a,b` as factors, and a command with {placeholders} filled with their values."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from oomproof.errors import USAGE, OomproofError, did_you_mean
from oomproof.plans import command_template
from oomproof.plans.knobs import NAME
from oomproof.sweeps.experiments.experiment_plan import Factor, Values

UNSET = "unset"
_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"


def factors_of(vary: Sequence[str], env: Sequence[str], command: Sequence[str]) -> list[Factor]:
    """Checked, also against the command. Raises OomproofError."""
    factors = [_factor(text, "--vary") for text in vary] + [_factor(text, "--env") for text in env]
    if not factors:
        raise OomproofError("nothing to vary", "add --vary bs=32,8 and put {bs} into the command", USAGE)
    names = [factor.name for factor in factors]
    for name in names:
        if names.count(name) > 1:
            raise OomproofError(f"{name} is given twice", f"give all its values at once: {name}=a,b,c", USAGE)
    _check_placeholders([factor.name for factor in factors if not factor.is_env], command)
    return factors


def _factor(text: str, flag: str) -> Factor:
    is_env = flag == "--env"
    example = "--env OMP_NUM_THREADS=1" if is_env else "--vary bs=32,8"
    name, equals, listed = text.partition("=")
    if not equals or not re.fullmatch(NAME, name):
        raise OomproofError(f"cannot read {flag} {text!r}", f"write NAME=VALUE,VALUE: {example}", USAGE)
    # a comma inside a value is written \,
    values = tuple(value.replace("\\,", ",") for value in re.split(r"(?<!\\),", listed))
    if is_env and len(values) == 1 and values != (UNSET,):
        values = (UNSET, *values)
    if len(values) == 1:
        raise OomproofError(
            f"{flag} {text} has one value: nothing is varied",
            f"add others: {name}={values[0]},VALUE; a value that stays belongs into the command",
            USAGE,
        )
    if len(set(values)) < len(values):
        raise OomproofError(f"{flag} {text} has a value twice", "give each value once", USAGE)
    return Factor(name, values, is_env)


def _check_placeholders(names: Sequence[str], command: Sequence[str]) -> None:
    used = command_template.placeholders(command)
    for name in used:
        if name not in names:
            near = did_you_mean(name, names)
            hint = f"add --vary {name}=VALUE,VALUE; for braces as they stand write {{{{{name}}}}}"
            raise OomproofError(f"nothing varies {{{name}}}{near}", hint, USAGE)
    for name in names:
        if name not in used:
            hint = f"put {{{name}}} where its value belongs: python train.py --{name} {{{name}}}"
            raise OomproofError(f"the command does not use {{{name}}}", hint, USAGE)


def filled(command: Sequence[str], factors: Sequence[Factor], values: Values) -> list[str]:
    known = {factor.name: value for factor, value in zip(factors, values, strict=True) if not factor.is_env}
    return command_template.filled(command, known)


def environment_of(factors: Sequence[Factor], values: Values, environment: dict[str, str]) -> dict[str, str]:
    changed = dict(environment)
    for factor, value in zip(factors, values, strict=True):
        if factor.is_env and value == UNSET:
            changed.pop(factor.name, None)
        elif factor.is_env:
            changed[factor.name] = value
    return changed


def run_name(factors: Sequence[Factor], values: Values, identity: Sequence[str]) -> str:
    """``bisect:bs=8,accum=16:k3f2``: what was tried, and four letters of all that makes it the same experiment."""
    shown = [
        f"{factor.name}={re.sub(r'[^A-Za-z0-9._+-]', '_', value)[-20:]}"
        for factor, value in zip(factors, values, strict=True)
    ]
    exact = "\0".join([*identity, *(factor.name for factor in factors), *values])
    digest = hashlib.sha256(exact.encode(errors="surrogateescape")).digest()
    return f"bisect:{','.join(shown)}:{''.join(_LETTERS[byte % 31] for byte in digest[:4])}"
