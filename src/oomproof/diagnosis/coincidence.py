"""How likely a coincidence is: small exact probabilities, so that five deaths never prove more than five can."""

from __future__ import annotations

import math


def at_least(hits: int, of: int, chance: float) -> float:
    """The binomial tail: ``hits`` or more of ``of``, when each has this chance by accident."""
    chance = min(1.0, max(0.0, chance))
    if hits <= 0:
        return 1.0
    if hits > of:
        return 0.0
    return min(1.0, sum(math.comb(of, k) * chance**k * (1 - chance) ** (of - k) for k in range(hits, of + 1)))


def none_of(of: int, share: float) -> float:
    """That a cause behind this share of the deaths shows in none of them."""
    return (1.0 - min(1.0, max(0.0, share))) ** max(0, of)


def range_within(width: float, of: int) -> float:
    """That ``of`` points, each anywhere in 0..1, lie within ``width`` of each other."""
    if of < 2 or width >= 1.0:
        return 1.0
    width = max(0.0, width)
    return min(1.0, of * width ** (of - 1) - (of - 1) * width**of)


def alike_lifetimes(shortest: float, longest: float, mean: float, of: int) -> float:
    """That ``of - 1`` more lifetimes fall between the two, when a death is as likely at any moment as at
    any other (exponential, with the mean that was seen)."""
    if of < 2 or mean <= 0:
        return 1.0
    single = math.exp(-shortest / mean) - math.exp(-longest / mean)
    return min(1.0, max(0.0, single)) ** (of - 1)


def more_after(died_before: int, of_before: int, died_after: int, of_after: int) -> float:
    """Fisher's exact test, one-sided: as many deaths or more after a change, if it made no difference."""
    died, total = died_before + died_after, of_before + of_after
    if not of_before or not of_after:
        return 1.0
    ways = math.comb(total, died)
    likely = sum(
        math.comb(of_after, k) * math.comb(of_before, died - k)
        for k in range(died_after, min(of_after, died) + 1)
        if 0 <= died - k <= of_before
    )
    return likely / ways
