"""Series of memory over time whose truth is known: jobs that leak and jobs that only look like it.

``series(kind, seed)`` is the same everywhere for a kind and a seed. Seeds below 1,000 are for tuning; published figures come
from seeds of 100,000 and above, which nobody tunes with.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

GB, MB = 1e9, 1e6
WINDOW = 3600  # seconds that are shown to a method, one sample a second
PUBLISHED = 100_000  # the first seed of published figures

Shape = Callable[[random.Random], Callable[[int], float]]


@dataclass(frozen=True)
class Known:
    """What a method is shown, and what it does not see."""

    samples: list[tuple[float, float]]
    limit: float
    leaks: bool
    full_at: float | None  # seconds from the start of the series; None: never


def _noise(dice: random.Random) -> Iterator[float]:
    width = dice.uniform(5, 40) * MB
    while True:
        yield dice.gauss(0, width)


def _wander(dice: random.Random) -> Iterator[float]:
    """AR(1): a cache that fills and empties, requests that come and go."""
    memory = math.exp(-1 / dice.uniform(30, 300))
    width = dice.uniform(100, 200) * MB
    value = dice.gauss(0, width)
    while True:
        yield value
        value = memory * value + dice.gauss(0, width * math.sqrt(1 - memory * memory))


def _flat(dice: random.Random) -> Callable[[int], float]:
    return lambda t: 0.0


def _warm_up(dice: random.Random) -> Callable[[int], float]:
    height, seconds = dice.uniform(1, 6) * GB, dice.uniform(60, 500)
    return lambda t: height * (1 - math.exp(-t / seconds))


def _sawtooth(dice: random.Random) -> Callable[[int], float]:
    height, period, phase = dice.uniform(0.5, 3) * GB, dice.uniform(120, 900), dice.random()
    return lambda t: height * ((t / period + phase) % 1.0)


def _bumps(dice: random.Random) -> Callable[[int], float]:
    height, every, lasts = dice.uniform(0.5, 3) * GB, dice.uniform(400, 1200), dice.uniform(20, 120)
    return lambda t: height if t % every > every - lasts else 0.0


def _second_load(dice: random.Random) -> Callable[[int], float]:
    """A second data set is loaded once, somewhere in the window."""
    height, at, takes = dice.uniform(1, 4) * GB, dice.uniform(600, 3000), dice.uniform(5, 60)
    return lambda t: height * min(1.0, max(0.0, (t - at) / takes))


def _copy_on_read(dice: random.Random) -> Callable[[int], float]:
    """Workers touch the objects they inherited: it rises until every page is a copy."""
    height, seconds = dice.uniform(3, 7) * GB, dice.uniform(900, 1800)
    return lambda t: height * (1 - math.exp(-t / seconds))


def _linear(dice: random.Random) -> Callable[[int], float]:
    rate = dice.uniform(0.4, 3) * MB
    return lambda t: rate * t


def _staircase(dice: random.Random) -> Callable[[int], float]:
    """A step an epoch, under the sawtooth of the epoch itself."""
    period, step, tooth = dice.uniform(200, 600), dice.uniform(0.1, 0.5) * GB, dice.uniform(0.5, 2.5) * GB
    return lambda t: step * (t // period) + tooth * ((t / period) % 1.0)


def _late_onset(dice: random.Random) -> Callable[[int], float]:
    rate, begin = dice.uniform(0.8, 3) * MB, dice.uniform(900, 2400)
    return lambda t: rate * max(0.0, t - begin)


def _hidden(dice: random.Random) -> Callable[[int], float]:
    rate = dice.uniform(0.4, 1.0) * MB
    return lambda t: rate * t


def _warm_up_and_leak(dice: random.Random) -> Callable[[int], float]:
    warm, leak = _warm_up(dice), _linear(dice)
    return lambda t: warm(t) + leak(t)


# kind: (its shape, whether it leaks, the noise around it)
KINDS: dict[str, tuple[Shape, bool, Callable[[random.Random], Iterator[float]]]] = {
    "flat": (_flat, False, _noise),
    "warm-up": (_warm_up, False, _noise),
    "wander": (_flat, False, _wander),
    "sawtooth": (_sawtooth, False, _noise),
    "eval bumps": (_bumps, False, _noise),
    "second load": (_second_load, False, _noise),
    "copy on read": (_copy_on_read, False, _noise),
    "linear": (_linear, True, _noise),
    "staircase": (_staircase, True, _noise),
    "late onset": (_late_onset, True, _noise),
    "in wander": (_hidden, True, _wander),
    "warm-up, leak": (_warm_up_and_leak, True, _noise),
}
NO_LEAK = [kind for kind, (_, leaks, _) in KINDS.items() if not leaks]
LEAKS = [kind for kind, (_, leaks, _) in KINDS.items() if leaks]


def series(kind: str, seed: int) -> Known:
    """An hour, one sample a second. The limit of a leak is what it reaches after two: it is asked at half the time."""
    shape, leaks, noise = KINDS[kind]
    dice = random.Random(f"{kind} {seed}")
    base = dice.uniform(6, 16) * GB
    of, around = shape(dice), noise(dice)
    hours = 3 if leaks else 1
    values = [base + of(t) + next(around) for t in range(hours * WINDOW)]
    samples = [(float(t), value) for t, value in enumerate(values[:WINDOW])]
    if not leaks:
        return Known(samples, 32 * GB, False, None)
    tooth = max(of(t) for t in range(WINDOW, 2 * WINDOW)) - of(
        2 * WINDOW
    )  # a step has its own height at its end
    limit = base + of(2 * WINDOW) + max(0.0, tooth)
    full_at = next((t for t, value in enumerate(values) if t >= WINDOW and value >= limit), None)
    return Known(samples, limit, True, None if full_at is None else float(full_at))
