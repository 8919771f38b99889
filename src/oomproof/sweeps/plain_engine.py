"""Points of a grid or by chance, where Optuna is not installed: it is needed to learn from trials, not to go through a list."""

from __future__ import annotations

import math
import random
from typing import Any, Protocol

from oomproof.sweeps.search_space import Parameter, Point, SearchSpace, key_of
from oomproof.sweeps.sweep_trials import Trial

_AGAIN = 1000  # points in a row that were tried already


class Engine(Protocol):
    """Where the points of a sweep come from."""

    def ask(self, number: int, tried: set[str]) -> Point | None: ...

    def tell(self, trial: Trial) -> None: ...


class PlainEngine:
    def __init__(self, space: SearchSpace, seed: int) -> None:
        self._space, self._seed = space, seed

    def ask(self, number: int, tried: set[str]) -> Point | None:
        """The next point, for our trial of that number; None where every point was tried. ``tried``: keys of all before."""
        if self._space.method == "grid":
            return next((point for point in self._space.grid() if key_of(point) not in tried), None)
        rng = random.Random(f"{self._seed} {number}")  # the same for a trial whatever was killed before it
        for _ in range(_AGAIN):
            point = {parameter.name: drawn(parameter, rng) for parameter in self._space.parameters}
            if key_of(point) not in tried:
                return point
        return None

    def tell(self, trial: Trial) -> None:
        """Nothing is learnt from it."""


def drawn(parameter: Parameter, rng: random.Random) -> Any:
    """A value of it by chance."""
    if parameter.kind == "values":
        return rng.choice(parameter.values)
    if parameter.kind == "normal":
        return parameter.clean(rng.random())
    low, high = parameter.low, parameter.high
    if parameter.kind == "int" and not parameter.log:
        return rng.choice(range(int(low), int(high) + 1, int(parameter.step or 1)))
    sample = math.exp(rng.uniform(math.log(low), math.log(high))) if parameter.log else rng.uniform(low, high)
    return parameter.clean(min(high, max(low, round(sample) if parameter.kind == "int" else sample)))
