"""A sum of few terms, none of them negative, through measured peaks: a fixed part, sizes, and products of two sizes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from oomproof.records import dataclass

Sizes = tuple[tuple[str, float], ...]
Term = tuple[str, ...]  # the sizes that are multiplied; none: the fixed part

_GOOD = 0.01  # a line that is off by less needs no further term
_ROUNDS = 2000
_STILL = 1e-9


@dataclass(frozen=True, slots=True)
class Line:
    terms: tuple[tuple[Term, float], ...]  # with bytes a unit
    error: float  # the largest share by which it misses what was measured
    points: int
    largest: tuple[tuple[str, float], ...]  # of each size that was measured
    least: tuple[tuple[str, float], ...]
    highest: int  # bytes that were measured

    def at(self, sizes: Sizes) -> float:
        values = dict(sizes)
        return sum(factor * _value(term, values) for term, factor in self.terms)

    def is_far(self, sizes: Sizes, times: float) -> bool:
        """Whether one of the sizes is that much larger than any that was measured."""
        largest = dict(self.largest)
        return any(value > times * largest.get(name, 0.0) for name, value in sizes)

    def reach(self, sizes: Sizes) -> float:
        """How many times what was measured, from the least to the largest of a size, lies between the least and these."""
        least, largest = dict(self.least), dict(self.largest)
        spans = [(value - least[name], largest[name] - least[name]) for name, value in sizes]
        return max((far / span for far, span in spans if span > 0), default=0.0)


def fitted(wanted: Sizes, peaks: Mapping[Sizes, int]) -> Line | None:
    """None with fewer than two sizes, or where ``wanted`` differs in a size that never varied."""
    if len(peaks) < 2 or any(len(sizes) != len(wanted) for sizes in peaks):
        return None
    names = [name for name, _ in wanted]
    seen = {name: {dict(sizes)[name] for sizes in peaks} for name in names}
    for name, value in wanted:
        if len(seen[name]) < 2 and value not in seen[name]:
            return None
    varying = [name for name in names if len(seen[name]) > 1]
    candidates: list[Term] = [(name,) for name in varying] + list(combinations(varying, 2))
    chosen: list[Term] = [()]
    factors, error = _best(chosen, peaks)
    # one term fewer than points: a line through everything would fit noise as well
    while candidates and error > _GOOD and len(chosen) < len(peaks):
        trials = [(*_best([*chosen, term], peaks), term) for term in candidates]
        better, new_error, term = min(trials, key=lambda trial: trial[1])
        if new_error >= error:
            break
        factors, error = better, new_error
        chosen.append(term)
        candidates.remove(term)
    largest = tuple((name, max(seen[name])) for name in names)
    least = tuple((name, min(seen[name])) for name in names)
    terms = tuple(zip(chosen, factors, strict=True))
    return Line(terms, error, len(peaks), largest, least, max(peaks.values()))


def _value(term: Term, values: Mapping[str, float]) -> float:
    product = 1.0
    for name in term:
        product *= values[name]
    return product


def _best(terms: Sequence[Term], peaks: Mapping[Sizes, int]) -> tuple[list[float], float]:
    """(factors, largest relative error): least squares, none below zero, by going over the terms in turn."""
    rows = [[_value(term, dict(sizes)) for term in terms] for sizes in peaks]
    scales = [max(abs(row[at]) for row in rows) or 1.0 for at in range(len(terms))]
    rows = [[value / scale for value, scale in zip(row, scales, strict=True)] for row in rows]
    wanted = [float(peak) for peak in peaks.values()]
    factors = [0.0] * len(terms)
    left = list(wanted)
    for _ in range(_ROUNDS):
        moved = 0.0
        for at in range(len(terms)):
            column = [row[at] for row in rows]
            square = sum(value * value for value in column)
            if not square:
                continue
            new = max(
                0.0,
                factors[at] + sum(value * rest for value, rest in zip(column, left, strict=True)) / square,
            )
            change = new - factors[at]
            if change:
                left = [rest - change * value for rest, value in zip(left, column, strict=True)]
                factors[at] = new
                moved = max(moved, abs(change))
        if moved <= _STILL * max(wanted):
            break
    error = (
        max(abs(rest) / peak for rest, peak in zip(left, wanted, strict=True) if peak) if any(wanted) else 0.0
    )
    return [factor / scale for factor, scale in zip(factors, scales, strict=True)], error
