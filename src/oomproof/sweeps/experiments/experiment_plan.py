"""Which experiments tell what a death follows: factors and what is known so far in, the next experiment out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Literal

from oomproof.diagnosis.verdict import Verdict
from oomproof.records import dataclass

Values = tuple[str, ...]  # one of each factor, in the order of the factors
Outcome = Literal["died", "lived", "failed"]
DIED: Outcome = "died"  # of memory
LIVED: Outcome = "lived"  # finished, or had not died when its time was over
FAILED: Outcome = "failed"  # ended for another reason: says nothing about memory

# Six runs of one plain job differed by 0.01 MiB in their peaks. Threads, allocators and the moment of a sample make that
# more; a difference below this is not worth a sentence.
_SAME_SHARE, _SAME_BYTES = 0.05, 4 << 20


@dataclass(frozen=True, slots=True)
class Factor:
    """What is varied. The first value is the baseline's."""

    name: str
    values: Values
    is_env: bool = False  # an environment variable, of which the value "unset" is none


@dataclass(frozen=True, slots=True)
class Experiment:
    """One that was run, and how it ended."""

    values: Values
    outcome: Outcome
    end: str  # in words: "finished", "kernel: cgroup limit", "exited with code 2"
    cause: str | None = None  # of causes.py
    headline: str = ""
    seconds: float | None = None
    peak: int | None = None
    gpu_peak: int | None = None
    run: str = ""  # its id
    name: str = ""
    timed_out: bool = False  # it lived, and was ended when its time was over
    earlier: bool = False  # taken from an earlier bisect


def next_experiment(
    factors: Sequence[Factor], done: Sequence[Experiment], everything: bool = False
) -> Values | None:
    """None: there is nothing more to learn by this plan."""
    tried = {experiment.values: experiment for experiment in done}
    return next((values for values in _wanted(factors, tried, everything) if values not in tried), None)


def baseline(factors: Sequence[Factor]) -> Values:
    return tuple(factor.values[0] for factor in factors)


def with_value(values: Values, index: int, value: str) -> Values:
    return (*values[:index], value, *values[index + 1 :])


def same_peak(left: int, right: int) -> bool:
    """Whether two peaks may be those of one job, run twice."""
    return abs(left - right) <= max(_SAME_SHARE * max(left, right), _SAME_BYTES)


def most_experiments(factors: Sequence[Factor], everything: bool = False) -> int:
    if everything:
        count = 1
        for factor in factors:
            count *= len(factor.values)
        return count
    pairs = len(factors) * (len(factors) - 1) // 2
    return 1 + sum(len(factor.values) - 1 for factor in factors) + pairs


def _wanted(
    factors: Sequence[Factor], tried: Mapping[Values, Experiment], everything: bool
) -> Iterator[Values]:
    """In the order of their turn; what comes later depends on what came out before."""
    base = baseline(factors)
    if everything:
        every = product(*(factor.values for factor in factors))
        # sorting keeps the order of the values among those that change equally many
        yield from sorted(every, key=lambda values: sum(a != b for a, b in zip(values, base, strict=True)))
        return
    yield base
    first = tried.get(base)
    if first is None or first.outcome == FAILED:
        return  # without a baseline there is nothing to compare with
    singles = [
        with_value(base, index, value) for index, factor in enumerate(factors) for value in factor.values[1:]
    ]
    yield from singles
    if any(tried[values].outcome not in (first.outcome, FAILED) for values in singles if values in tried):
        return  # one factor is enough
    yield from _pairs(factors, tried, first)


def _pairs(
    factors: Sequence[Factor], tried: Mapping[Values, Experiment], first: Experiment
) -> Iterator[Values]:
    """Two factors changed at once, each by the value that is most likely to turn the outcome."""
    changes = []
    for index, factor in enumerate(factors):
        singles = [
            single
            for value in factor.values[1:]
            if (single := tried.get(with_value(first.values, index, value))) and single.outcome != FAILED
        ]
        if first.outcome == DIED and singles:
            changes.append((index, singles[-1].values[index]))  # all at the limit: peaks tell nothing
        elif first.outcome == LIVED and (higher := [s for s in singles if _is_higher(s, first)]):
            top = max(higher, key=lambda single: single.peak or 0)
            changes.append((index, top.values[index]))
    for (left, left_value), (right, right_value) in combinations(changes, 2):
        yield with_value(with_value(first.values, left, left_value), right, right_value)


def _is_higher(single: Experiment, first: Experiment) -> bool:
    if single.peak is None or first.peak is None:
        return False
    return single.peak > first.peak and not same_peak(single.peak, first.peak)


def outcome_of(verdict: Verdict, timed_out: bool) -> tuple[Outcome, str]:
    """(outcome, in words). ``timed_out``: ended by us, because its time was over."""
    kind = verdict.kind
    if kind.memory and verdict.culprit is not None:
        return FAILED, f"{kind.title}, but {verdict.culprit.called} filled the machine"
    if kind.memory:
        return DIED, kind.title
    if verdict.cause == "finished" and not verdict.all_well:
        return DIED, "finished, but the kernel killed one of its processes"
    if timed_out:
        return LIVED, "alive when --max-time was over"
    if verdict.cause == "finished":
        return LIVED, kind.title
    return FAILED, verdict.headline
