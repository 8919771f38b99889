"""What a trial will hold, from what earlier trials held: the same size before, a line through several sizes, and deaths as
lower bounds. Pure.

Parameters tell by their names how they matter: a learning rate takes no memory, a batch takes more the larger it is, and of
any other only the same value can be compared. Live memory is the largest of several lines in the batch, one per phase, so a
line through small batches is rather too low for large ones: a point is called too large only where even that is clear."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from oomproof.diagnosis.smaller_command import bare_name
from oomproof.leaf.command_lines import is_incidental
from oomproof.plans.knobs import kind_of
from oomproof.records import dataclass
from oomproof.sweeps.memory_lines import Line, fitted
from oomproof.units import format_size

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
