"""What a sweep varies: parameters with their values or ranges, as typed with --param or read from a file. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import NormalDist
from typing import Any, Literal

from oomproof.errors import USAGE, OomproofError, did_you_mean
from oomproof.plans.knobs import NAME, listed_values
from oomproof.records import dataclass

Method = Literal["grid", "random", "bayes"]
METHODS: tuple[Method, ...] = ("grid", "random", "bayes")
Goal = Literal["minimize", "maximize"]
Kind = Literal["values", "int", "float", "normal"]
Point = dict[str, Any]  # name → value, of each parameter

MOST_POINTS = 100_000  # of a grid: more than anybody runs on one machine
_TAIL = 0.001  # of a normal distribution, cut off on both sides
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})((?::[a-z]+(?:={_NUMBER})?)*)")
_EXAMPLES = "--param lr=1e-5..1e-3:log, --param batch=16,32,64, --param layers=2..8"


@dataclass(frozen=True, slots=True)
class Parameter:
    """``values``: a choice of these. Else a range, with ``step`` where only multiples of it count, or a normal distribution
    (``low`` its mean, ``high`` its standard deviation; ``log``: of the logarithm)."""

    name: str
    kind: Kind
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    whole: bool = False  # what comes of a step is a whole number
    path: tuple[str, ...] = ()  # its names from outside in, where a file nests it

    @property
    def is_constant(self) -> bool:
        return self.kind == "values" and len(self.values) == 1

    @property
    def count(self) -> int | None:
        """How many values it can have; None: any number."""
        if self.kind == "values":
            return len(self.values)
        if self.kind == "int":
            return int(self.high - self.low) // int(self.step or 1) + 1
        if self.kind == "float" and self.step and not self.log:
            return round((self.high - self.low) / self.step) + 1
        return None

    def all_values(self) -> list[Any]:
        """In their order. Only of one that has a ``count``."""
        if self.kind == "values":
            return list(self.values)
        step = self.step or 1
        return [self.clean(self.low + at * step) for at in range(self.count or 0)]

    def clean(self, sample: float) -> Any:
        """The value that a sampler's number stands for."""
        if self.kind == "normal":
            number = NormalDist(self.low, self.high).inv_cdf(min(1 - _TAIL, max(_TAIL, sample)))
            sample = math.exp(number) if self.log else number
        if self.kind == "int":
            return int(sample)
        if self.step:
            multiple = round(sample / self.step) * self.step
            # 0.1 * 3 is 0.30000000000000004: nobody typed that
            return round(multiple) if self.whole else float(f"{multiple:.12g}")
        return float(sample)

    def sample_of(self, value: float) -> float:
        """The sampler's number for a value of a normal distribution."""
        return NormalDist(self.low, self.high).cdf(math.log(value) if self.log and value > 0 else value)


@dataclass(frozen=True, slots=True)
class SearchSpace:
    parameters: tuple[Parameter, ...]
    method: Method = "bayes"
    metric: str | None = None
    goal: Goal = "minimize"
    target: float | None = None  # a metric that is good enough: no trial is started after it
    trials: int | None = None  # how many; None: every point of a grid

    @property
    def names(self) -> list[str]:
        return [parameter.name for parameter in self.parameters]

    @property
    def points(self) -> int | None:
        """How many there are; None: without end."""
        counts = [parameter.count for parameter in self.parameters]
        return None if None in counts else math.prod(count or 0 for count in counts)

    def grid(self) -> Iterator[Point]:
        """Every point; the last parameter changes first."""
        for combination in product(*(parameter.all_values() for parameter in self.parameters)):
            yield dict(zip(self.names, combination, strict=True))


def space_from_json(value: Mapping[str, Any]) -> SearchSpace:
    """Raises KeyError, TypeError or ValueError for what is damaged."""
    parameters = tuple(
        Parameter(**{**parameter, "values": tuple(parameter["values"]), "path": tuple(parameter["path"])})
        for parameter in value["parameters"]
    )
    rest = {name: value[name] for name in ("method", "metric", "goal", "target", "trials")}
    if rest["method"] not in METHODS:
        raise ValueError(rest["method"])
    return SearchSpace(parameters, **rest)


def text_of(value: Any) -> str:
    """As it stands on a command line."""
    return value if isinstance(value, str) else str(value)


def key_of(point: Mapping[str, Any]) -> str:
    """The same for the same point."""
    return json.dumps(dict(point), sort_keys=True, default=str)


def distance(parameters: Sequence[Parameter], first: Mapping[str, Any], second: Mapping[str, Any]) -> float:
    """How far apart two points are: 1 for another choice, a part of it for another number of the same range."""
    total = 0.0
    for parameter in parameters:
        here, there = first[parameter.name], second[parameter.name]
        if here == there:
            continue
        is_range = parameter.kind in ("int", "float") and parameter.high > parameter.low
        total += abs(here - there) / (parameter.high - parameter.low) if is_range else 1.0
    return total


def shown(point: Mapping[str, Any]) -> str:
    """``lr=0.0012 batch=64``: for people, floats with few digits."""
    return " ".join(f"{name}={_short(value)}" for name, value in point.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else text_of(value)


def parse_param(text: str) -> Parameter:
    """``lr=1e-5..1e-3:log``, ``batch=16,32,64``, ``layers=2..8``, ``dropout=0.0..0.5:step=0.1``. Raises OomproofError."""
    name, equals, listed = text.partition("=")
    if not equals or not listed or not re.fullmatch(NAME, name):
        raise OomproofError(f"cannot read --param {text!r}", f"write {_EXAMPLES}", USAGE)
    if match := _RANGE.fullmatch(listed):
        return _range_of(name, match, f"--param {text}")
    if ".." in listed and "," not in listed:
        raise OomproofError(f"cannot read --param {text!r} as a range", f"write {_EXAMPLES}", USAGE)
    values = listed_values(listed)
    if len(set(values)) < len(values):
        raise OomproofError(f"--param {text} has a value twice", "give each value once", USAGE)
    return Parameter(name, "values", values)


def _range_of(name: str, match: re.Match[str], where: str) -> Parameter:
    words = dict(part.partition("=")[::2] for part in match[3].split(":") if part)
    for word in words:
        if word not in ("log", "step"):
            known = did_you_mean(word, ("log", "step"))
            raise OomproofError(f"{where}: unknown word {word!r}{known}", f"write {_EXAMPLES}", USAGE)
    whole = not any(set(bound) & set(".eE") for bound in match.group(1, 2))
    step = float(words["step"]) if words.get("step") else None
    kind: Kind = "int" if whole and (step is None or step == int(step)) else "float"
    return checked_range(
        Parameter(name, kind, (), float(match[1]), float(match[2]), "log" in words, step), where
    )


def checked_range(parameter: Parameter, where: str) -> Parameter:
    """The same, or OomproofError where nothing can come of it."""
    low, high, step = parameter.low, parameter.high, parameter.step
    if not (math.isfinite(low) and math.isfinite(high)):
        raise OomproofError(f"{where}: a range has two ends", "give numbers", USAGE)
    if low >= high:
        hint = "write the smaller number first" if low > high else "give it as one value"
        raise OomproofError(f"{where}: from {low:g} to {high:g} is no range", hint, USAGE)
    if parameter.log and low <= 0:
        raise OomproofError(
            f"{where}: a logarithmic range begins above 0", "such as 1e-6, or leave out log", USAGE
        )
    if step is not None and not 0 < step <= high - low:
        raise OomproofError(f"{where}: no step of {step:g} fits in it", "give a smaller step", USAGE)
    if parameter.kind == "int" and parameter.log and step not in (None, 1.0):
        raise OomproofError(
            f"{where}: log and step exclude each other for whole numbers", "leave out one of the two", USAGE
        )
    return parameter


def checked_space(space: SearchSpace) -> SearchSpace:
    """The same, or OomproofError where it cannot be searched."""
    names = space.names
    if not space.parameters:
        raise OomproofError("nothing to sweep", f"add {_EXAMPLES}, or a file with parameters", USAGE)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise OomproofError(f"--param {twice} is given twice", "give all its values at once", USAGE)
    if space.method == "bayes" and space.metric is None:
        raise OomproofError(
            "method bayes needs a metric to learn from", "add --metric loss, or --method random", USAGE
        )
    points = space.points
    if space.method == "grid":
        _check_grid(space, points)
    if space.trials is None and points is None:
        raise OomproofError("how many trials? the values have no end", "add --trials 20", USAGE)
    if space.trials is not None and space.trials < 1:
        raise OomproofError("--trials 0 runs nothing", "give at least 1", USAGE)
    return space


def _check_grid(space: SearchSpace, points: int | None) -> None:
    endless = [parameter.name for parameter in space.parameters if parameter.count is None]
    if endless:
        hint = f"give {endless[0]} a list of values or a step, or take --method random"
        raise OomproofError(f"method grid needs a list: {', '.join(endless)} can be any number", hint, USAGE)
    if points is not None and points > MOST_POINTS:
        raise OomproofError(
            f"a grid of {points:,} points", "give fewer values, or --method random --trials 100", USAGE
        )


def default_method(parameters: Sequence[Parameter], metric: str | None, trials: int | None) -> Method:
    """A grid where that is what was typed: lists, and nothing that says how many."""
    finite = all(parameter.count is not None for parameter in parameters)
    points = math.prod(parameter.count or 0 for parameter in parameters) if finite else None
    if points is not None and (trials is None or trials >= points):
        return "grid"
    return "bayes" if metric is not None else "random"
