"""A sweep file of Weights & Biases read as a search space: method, metric, parameters with their distributions, command."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from oomproof.errors import NOT_FOUND, USAGE, OomproofError, did_you_mean
from oomproof.plans.knobs import NAME
from oomproof.records import dataclass
from oomproof.remedies.config_formats.yaml_scalars import ALIASES_TOO_LARGE, aliases_expand_too_far
from oomproof.sweeps.search_space import METHODS, Goal, Method, Parameter, checked_range

_DEFAULT = ("${env}", "${interpreter}", "${program}", "${args}")
# What stands for the values of a trial, each in its own form
ARGS = (
    "args", "args_no_equals", "args_no_hyphens", "args_no_boolean_flags", "args_json", "args_json_file",
    "args_append_hydra", "args_override_hydra",
)  # fmt: skip
MACRO = re.compile(r"\$\{(\w+)\}")
ENVIRONMENT = re.compile(r"\$\{envvar:([A-Za-z0-9_]*)\}")
_FIXED = {"env": "/usr/bin/env", "interpreter": "python"}
# said nothing of: they name the sweep or where wandb shows it
_SILENT = {
    "program",
    "method",
    "metric",
    "parameters",
    "command",
    "run_cap",
    "name",
    "description",
    "project",
    "entity",
}
_UNIFORM = {
    "uniform": (False, False), "q_uniform": (False, True), "log_uniform": (True, False), "log_uniform_values": (True, False),
    "q_log_uniform": (True, True), "q_log_uniform_values": (True, True), "inv_log_uniform": (True, False),
    "inv_log_uniform_values": (True, False),
}  # fmt: skip
_NORMAL = {
    "normal": (False, False),
    "q_normal": (False, True),
    "log_normal": (True, False),
    "q_log_normal": (True, True),
}
_CHOICES = ("constant", "categorical", "categorical_w_probabilities")
DISTRIBUTIONS = (*_CHOICES, "int_uniform", *_UNIFORM, *_NORMAL)
_MOST = 4 << 20  # bytes of such a file
_EXPONENT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


@dataclass(frozen=True, slots=True)
class SweepFile:
    """What it says; None and nothing where it does not."""

    parameters: tuple[Parameter, ...]
    words: tuple[str, ...] = ()  # the command, with ${args}; empty: neither program nor command
    method: Method | None = None
    metric: str | None = None
    goal: Goal | None = None
    target: float | None = None
    trials: int | None = None
    name: str | None = None
    notes: tuple[str, ...] = ()  # what of it is ignored


def read_sweep_file(path: Path) -> SweepFile:
    """Raises OomproofError."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST + 1)
    except FileNotFoundError as error:
        raise OomproofError(f"{path}: no such file", "give a sweep file, or --param", NOT_FOUND) from error
    except OSError as error:
        raise OomproofError(f"{path}: {error.strerror}", "give a sweep file, or --param", USAGE) from error
    if len(data) > _MOST:
        raise OomproofError(f"{path} is no sweep file: larger than 4 MiB", "give another file", USAGE)
    return sweep_of(_parsed(data, path), str(path))


def _parsed(data: bytes, path: Path) -> object:
    try:
        import yaml  # only for who brings a file
    except ImportError as error:
        raise OomproofError("reading a sweep file needs PyYAML", "pip install 'oomproof[sweep]'") from error
    try:
        loader = _loader()(data)
        document = loader.get_single_node()
        if document is None:
            return None
        if aliases_expand_too_far(document):
            raise OomproofError(f"{path}: {ALIASES_TOO_LARGE}", "write out what the sweep needs", USAGE)
        return loader.construct_document(document)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        what = getattr(error, "problem", None) or "cannot be read"
        raise OomproofError(f"{path} is no YAML{line}: {what}", "correct that line", USAGE) from error
    except (ValueError, RecursionError) as error:  # a date of February 30th, a thousand levels
        raise OomproofError(f"{path} is no YAML: {error}", "correct it", USAGE) from error


@cache
def _loader() -> Any:
    """PyYAML's safe one, where 1e-3 is a number as in YAML 1.2 (in quotes it stays text) and no key stands twice."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[object] = set()
            for key, _ in node.value:
                if key.tag != "tag:yaml.org,2002:merge" and key.value.__hash__ is not None:
                    if key.value in seen:
                        raise yaml.constructor.ConstructorError(
                            None, None, f"{key.value} is there twice", key.start_mark
                        )
                    seen.add(key.value)
            return dict(super().construct_mapping(node, deep))

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
    return Loader


def sweep_of(value: object, where: str) -> SweepFile:
    """Of what stands in the file. Raises OomproofError."""
    if (
        not isinstance(value, dict)
        or not isinstance(value.get("parameters"), dict)
        or not value["parameters"]
    ):
        raise OomproofError(
            f"{where} has no parameters",
            "a sweep file has method, metric and parameters: docs/sweep.md",
            USAGE,
        )
    notes: list[str] = []
    parameters = tuple(_parameters(value["parameters"], (), where, notes))
    method = value.get("method")
    if method is not None and method not in METHODS:
        raise OomproofError(
            f"{where}: unknown method {method!r}{did_you_mean(str(method), METHODS)}",
            f"known: {', '.join(METHODS)}",
            USAGE,
        )
    metric, goal, target = _metric(value.get("metric"), where)
    cap = value.get("run_cap")
    if cap is not None and (isinstance(cap, bool) or not isinstance(cap, int) or cap < 1):
        raise OomproofError(f"{where}: run_cap {cap!r} is no number of trials", "give a whole number", USAGE)
    if "early_terminate" in value:
        notes.append("early_terminate is ignored: every trial runs to its own end")
    rest = sorted(str(name) for name in value if name not in _SILENT and name != "early_terminate")
    if rest:
        notes.append(f"ignored in {where}: {', '.join(rest)}")
    name = value.get("name")
    words = tuple(_without_env(list(_words(value, where))))
    return SweepFile(
        parameters,
        words,
        method,
        metric,
        goal,
        target,
        cap,
        name if isinstance(name, str) else None,
        tuple(notes),
    )


def _metric(value: object, where: str) -> tuple[str | None, Goal | None, float | None]:
    if value is None:
        return None, None, None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise OomproofError(f"{where}: metric has no name", "metric: {name: loss, goal: minimize}", USAGE)
    goal: Goal = value.get("goal") or "minimize"
    if goal not in ("minimize", "maximize"):
        near = did_you_mean(str(goal), ("minimize", "maximize"))
        raise OomproofError(f"{where}: unknown goal {goal!r}{near}", "known: minimize, maximize", USAGE)
    target = value.get("target")
    return value["name"], goal, None if target is None else _number(target, f"{where}: metric.target")


def _parameters(
    listed: Mapping[Any, Any], outer: tuple[str, ...], where: str, notes: list[str]
) -> Iterator[Parameter]:
    for key, config in listed.items():
        path = (*outer, str(key))
        name = ".".join(path)
        place = f"{where}: parameter {name}"
        if not re.fullmatch(NAME, name.replace("/", "_")):
            raise OomproofError(
                f"{place}: not a name", "letters, digits, dots, dashes and underscores", USAGE
            )
        if not isinstance(config, dict):
            raise OomproofError(f"{place} says neither value nor range", f"{key}: {{values: [1, 2]}}", USAGE)
        if "parameters" in config:
            if not isinstance(config["parameters"], dict) or len(path) > 8:
                raise OomproofError(f"{place}: parameters are names with values", "see docs/sweep.md", USAGE)
            yield from _parameters(config["parameters"], path, where, notes)
            continue
        if "probabilities" in config:
            notes.append(f"the probabilities of {name} are ignored: each value is as likely")
        yield _parameter(name, path if outer else (), config, place)


def _parameter(name: str, path: tuple[str, ...], config: Mapping[str, Any], place: str) -> Parameter:
    kind = config.get("distribution") or _implied(config, place)
    if kind not in DISTRIBUTIONS:
        raise OomproofError(
            f"{place}: unknown distribution {kind!r}{did_you_mean(str(kind), DISTRIBUTIONS)}",
            f"known: {', '.join(DISTRIBUTIONS)}",
            USAGE,
        )
    if kind in _CHOICES:
        values = config["values"] if "values" in config else [config["value"]] if "value" in config else []
        if not isinstance(values, list) or not values:
            raise OomproofError(f"{place} has no values", f"{name}: {{values: [1, 2]}}", USAGE)
        return Parameter(name, "values", tuple(_plain(value, place) for value in values), path=path)
    if kind in _NORMAL:
        log, quantized = _NORMAL[kind]
        mean, deviation = (
            _number(config.get("mu", 0.0), f"{place}: mu"),
            _number(config.get("sigma", 1.0), f"{place}: sigma"),
        )
        if deviation <= 0:
            raise OomproofError(f"{place}: sigma must be above 0", "give the standard deviation", USAGE)
        step, whole = _step(config, quantized, place)
        return Parameter(name, "normal", (), mean, deviation, log, step, whole, path)
    low, high = (_number(config.get(end), f"{place}: {end}") for end in ("min", "max"))
    if kind == "int_uniform":
        if low != int(low) or high != int(high):
            raise OomproofError(
                f"{place}: int_uniform has whole ends", f"min: {low:.0f}, max: {high:.0f}", USAGE
            )
        return _range(Parameter(name, "int", (), low, high, path=path), place)
    log, quantized = _UNIFORM[kind]
    if log and not kind.endswith("_values"):
        low, high = (-high, -low) if kind.startswith("inv_") else (low, high)
        if max(abs(low), abs(high)) > 700:
            raise OomproofError(
                f"{place}: {kind} takes exponents, and e to the {high:g} is no number",
                f"distribution: {kind}_values",
                USAGE,
            )
        low, high = math.exp(low), math.exp(high)
    step, whole = _step(config, quantized, place)
    return _range(Parameter(name, "float", (), low, high, log, step, whole, path), place)


def _plain(value: object, place: str, depth: int = 0) -> object:
    """As JSON can hold it: YAML knows dates too, and lists that hold themselves."""
    if depth > 8:
        raise OomproofError(f"{place}: a value is nested too deeply", "give plain values", USAGE)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_plain(item, place, depth + 1) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item, place, depth + 1) for key, item in value.items()}
    return str(value)


def _range(parameter: Parameter, place: str) -> Parameter:
    """A range of one number is that number."""
    if parameter.low == parameter.high:
        return Parameter(parameter.name, "values", (parameter.clean(parameter.low),), path=parameter.path)
    return checked_range(parameter, place)


def _implied(config: Mapping[str, Any], place: str) -> str:
    """What wandb takes it for where nothing is said."""
    if "values" in config:
        return "categorical"
    if "value" in config:
        return "constant"
    if "min" in config and "max" in config:
        ends = (config["min"], config["max"])
        return (
            "int_uniform"
            if all(isinstance(end, int) and not isinstance(end, bool) for end in ends)
            else "uniform"
        )
    raise OomproofError(
        f"{place} says neither value, values nor min and max", "values: [1, 2], or min: 0, max: 1", USAGE
    )


def _step(config: Mapping[str, Any], quantized: bool, place: str) -> tuple[float | None, bool]:
    if not quantized:
        return None, False
    step = config.get("q", 1)
    number = _number(step, f"{place}: q")
    if number <= 0:
        raise OomproofError(f"{place}: q must be above 0", "q: 1", USAGE)
    return number, isinstance(step, int)


def _number(value: object, place: str) -> float:
    """YAML reads 1e-5 as text; wandb's own files are full of it."""
    number = math.nan
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with suppress(ValueError):
            number = float(value)
    if not math.isfinite(number):
        raise OomproofError(f"{place} is no number: {value!r}", "give a number, such as 0.001", USAGE)
    return number


def _words(value: Mapping[str, Any], where: str) -> Iterator[str]:
    """The command; empty where the file names none."""
    program, command = value.get("program"), value.get("command")
    if program is not None and not isinstance(program, str):
        raise OomproofError(f"{where}: program {program!r} is no file", "program: train.py", USAGE)
    if command is None:
        command = list(_DEFAULT) if program else []
    elif isinstance(command, str):
        command = shlex.split(command)
    elif not isinstance(command, list):
        raise OomproofError(f"{where}: command is a list of words", "see docs/sweep.md", USAGE)
    for chunk in command:
        word = str(chunk)
        macro = MACRO.fullmatch(word)
        if macro is None or macro[1] in ARGS:
            yield word
        elif macro[1] == "program":
            if not program:
                raise OomproofError(f"{where}: ${{program}} stands for nothing", "program: train.py", USAGE)
            yield program
        elif macro[1] in _FIXED:
            yield _FIXED[macro[1]]
        else:
            near = did_you_mean(macro[1], (*ARGS, *_FIXED, "program"))
            raise OomproofError(f"{where}: unknown {word} in command{near}", "see docs/sweep.md", USAGE)


def _without_env(words: list[str]) -> list[str]:
    """``/usr/bin/env python`` is python; what runs is then told by its own name. With VARIABLE=value it does more."""
    is_plain = (
        words[:1] == [_FIXED["env"]]
        and len(words) > 1
        and "=" not in words[1]
        and not words[1].startswith("-")
    )
    return words[1:] if is_plain else words


def with_environment(word: str) -> str:
    """``${envvar:NAME}`` by its value, as wandb does; the name itself where it is not set."""
    return ENVIRONMENT.sub(lambda match: os.environ.get(match[1], match[1]), word)
