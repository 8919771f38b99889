"""What a trial will hold, from what earlier trials held: the same size before, a line through several sizes, and deaths as
lower bounds. Pure.

Parameters tell by their names how they matter: a learning rate takes no memory, a batch takes more the larger it is, and of
any other only the same value can be compared. Live memory is the largest of several lines in the batch, one per phase, so a
line through small batches is rather too low for large ones: a point is called too large only where even that is clear."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Literal

from oomproof.diagnosis.smaller_command import bare_name
from oomproof.leaf.command_lines import is_incidental
from oomproof.plans.knobs import kind_of
from oomproof.records import dataclass
from oomproof.units import format_size

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


Where = Literal["host", "gpu"]
PLACES: tuple[Where, ...] = ("host", "gpu")
# Time, results, names: nothing of it is held in memory. Accumulation adds to gradients that are there already.
_WEIGHTLESS = re.compile(
    r"^(?:base_|max_|min_|peak_|init(?:ial)?_|final_)?(?:lr|learning_rate|alpha|beta\d?|betas|gamma|tau|eps(?:ilon)?|lambda\w*|l1|l2|wd"
    r"|momentum|temperature|seed|epochs?|steps|iters|iterations|patience|clip|threshold)$"
    r"|(?:^|_)(?:lr|learning_rate|dropout|drop_?(?:path|rate|prob)?|weight_decay|decay|momentum|seed|epochs?|warm_?up\w*|smoothing|margin|coef\w*"
    r"|prob(?:ability)?|schedul\w*|patience|clip\w*|penalty|ratio|rate|mixup|cutmix|noise|temperature|weight)$"
    r"|^(?:num|n|max|total|train)_(?:train_)?(?:epochs?|steps|iters|iterations|updates)$|^(?:activation|nesterov|shuffle|early_stop\w*)$"
)
_GROWS = re.compile(
    r"(?:^|_)(?:seq\w*|len|length|tokens|context|ctx|image|img|resolution|res|hidden|width|depth|layers?|heads?|dim|dims|embed\w*"
    r"|channels|units|size|blocks|filters|features|experts|vocab\w*|rank|r|frames|crops?|beams)(?:$|_)|batch|workers"
)
_SAME = 1.02  # times: peaks of the same trial differ by less than that
_BAND, _FAR_BAND = 0.10, 0.25  # share by which a line may be wrong, within what was measured and beyond it
_FAR = 2.0  # times the largest that was measured


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a trial's values matters for memory: ``sizes`` make it larger, ``others`` must be equal to compare."""

    sizes: tuple[tuple[str, float], ...]
    others: tuple[tuple[str, str], ...]

    def at_most(self, other: Shape) -> bool:
        """Whether it needs no more than the other one, surely."""
        if self.others != other.others or len(self.sizes) != len(other.sizes):
            return False
        return all(mine <= theirs for (_, mine), (_, theirs) in zip(self.sizes, other.sizes, strict=True))

    def without(self, kinds: Sequence[str]) -> Shape:
        return Shape(tuple(size for size in self.sizes if kind_of(size[0]) not in kinds), self.others)


@dataclass(frozen=True, slots=True)
class Measured:
    """What one trial held at most. ``died``: for want of memory there; it may then have needed any amount more."""

    shape: Shape
    peak: int
    died: bool = False
    budget: int = 0  # what it might have held, where it died
    said: str = ""  # which one: "batch=64 (trial 3)"
    not_loaded: tuple[str, ...] = ()  # it died while loading: kinds of settings that take no part in that


@dataclass(frozen=True, slots=True)
class Prediction:
    low: int
    expected: int
    high: int
    basis: str  # "what trial 3 held", "a line through 4 sizes"


def shape_of(values: Mapping[str, Any]) -> Shape:
    """Of a trial's values as it runs, knobs included."""
    sizes: list[tuple[str, float]] = []
    others: list[tuple[str, str]] = []
    for name, value in sorted(values.items()):
        key = bare_name(name)
        number = _as_number(value)
        kind = kind_of(key)
        if kind == "accum" or (kind is None and (is_incidental(name) or _WEIGHTLESS.search(key))):
            continue
        if number is not None and (kind is not None or _GROWS.search(key)):
            sizes.append((name, number))
        elif not (isinstance(value, float) and not value.is_integer()):  # 0.37 is a strength, seldom a size
            others.append((name, str(value)))
    return Shape(tuple(sizes), tuple(others))


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number < 1e15 else None


def predict(shape: Shape, measured: Sequence[Measured]) -> Prediction | None:
    """None where nothing comparable was measured."""
    alike = [trial for trial in measured if trial.shape.others == shape.others and not trial.died]
    same = [trial.peak for trial in alike if trial.shape == shape]
    if same:
        times = f"in {len(same)} trials of this size" if len(same) > 1 else "in a trial of this size"
        return Prediction(min(same), max(same), round(max(same) * _SAME), f"measured {times}")
    below = max((trial.peak for trial in alike if trial.shape.at_most(shape)), default=0)
    above = min((trial.peak for trial in alike if shape.at_most(trial.shape)), default=None)
    line = _line(shape, alike)
    if line is None:
        return (
            None if above is None else Prediction(below, above, round(above * _SAME), "a larger trial fitted")
        )
    expected = max(line.at(shape.sizes), below)
    band = _FAR_BAND if line.is_far(shape.sizes, _FAR) else _BAND
    band = max(band, 2 * line.error)
    # two peaks that differ by little more than chance make a slope of chance: 4 and 8 tell nothing certain of 200
    off = max(band * expected, 2 * (_SAME - 1) * line.highest * line.reach(shape.sizes))
    high = round(expected + off)
    if above is not None:
        expected, high = min(expected, above), min(high, round(above * _SAME))
    return Prediction(
        max(below, round(expected - off)), round(expected), high, f"a line through {line.points} sizes"
    )


def _line(shape: Shape, alike: Sequence[Measured]) -> Line | None:
    """Through the highest peak of each size. None where it would have to tell of something that never varied."""
    highest: dict[tuple[tuple[str, float], ...], int] = {}
    for trial in alike:
        highest[trial.shape.sizes] = max(trial.peak, highest.get(trial.shape.sizes, 0))
    return fitted(shape.sizes, highest)


def too_large(shape: Shape, measured: Sequence[Measured], budget: int) -> str:
    """Why it cannot fit into so many bytes; nothing where it may."""
    for trial in measured:
        least = trial.shape.without(trial.not_loaded)
        if trial.died and trial.budget >= budget and least.at_most(shape.without(trial.not_loaded)):
            held = format_size(trial.peak or trial.budget)
            if trial.not_loaded:
                return f"{trial.said} died at {held} while loading, before its first batch, and this one loads no less"
            return f"{trial.said} died at {held}, and this one is no smaller"
    for trial in measured:
        if not trial.died and trial.peak > budget and trial.shape.at_most(shape):
            return f"{trial.said} held {format_size(trial.peak)}, and it may hold {format_size(budget)}"
    prediction = predict(shape, measured)
    if prediction is not None and prediction.low > budget:
        about = format_size(prediction.expected)
        return f"would need about {about}, by {prediction.basis}; it may hold {format_size(budget)}"
    return ""
