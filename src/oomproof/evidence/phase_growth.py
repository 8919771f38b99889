"""Growth by phase and step: when loading was over, how many steps were made, and the phase that keeps memory. Facts only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from oomproof.recording.phase_spans import spans_of
from oomproof.recording.series import PhaseMark, Series
from oomproof.trend import growth
from oomproof.trend.leaks import GROWS, Trend

_VISITS, _VISIT_SLICES = 200, 8  # visits of phases that are looked at, the last ones, and slices of each
_ONE_PHASE = 0.8  # of all growth: then it is that phase's


def warm_since(marks: Iterable[PhaseMark]) -> float:
    """When loading and the first steps were over, or will be. A job that tells no phase has none to wait for; one that only
    evaluates, or never uses its model, tells one and is silent."""
    warm_up = growth.WarmUp()
    for mark in marks:
        if warm_up.phase and warm_up.is_over(mark.t):
            break
        warm_up.note(mark.name, mark.step, mark.t)
        if warm_up.is_over(mark.t):
            return mark.t
    return warm_up.over_at()


def steps_between(marks: Iterable[PhaseMark], begin: float, end: float) -> int:
    told = [mark.step for mark in marks if begin <= mark.t <= end and mark.step is not None]
    return max(told) - min(told) if told else 0


def growth_per_step(
    trend: Trend, marks: Iterable[PhaseMark], end: float
) -> tuple[float | None, float | None]:
    """(bytes, seconds) of one step since it grows; None, None where it does not, or too few steps were made."""
    if trend.kind not in GROWS or trend.since is None or trend.rate is None:
        return None, None
    made = steps_between(marks, trend.since, end)
    if made <= 1:
        return None, None
    seconds = (end - trend.since) / made
    return trend.rate.expected * seconds, seconds


def growing_phase(series: Series, marks: Sequence[PhaseMark], begin: float, end: float) -> str:
    """The phase in which nearly all of it grew; empty where it grew in several, or none was told."""
    grown: dict[str, float] = {}
    for name, rise in _told_rises(marks, begin, end) or _sampled_rises(series, begin, end):
        grown[name] = grown.get(name, 0.0) + rise
    total = sum(max(0.0, rise) for rise in grown.values())
    most = max(grown, key=lambda name: grown[name], default="")
    return most if most != "unknown" and total > 0 and grown[most] >= total * _ONE_PHASE else ""


def _told_rises(marks: Sequence[PhaseMark], begin: float, end: float) -> list[tuple[str, float]]:
    """By what the job itself held where each phase began: an evaluation may be shorter than a sample is apart."""
    told = [mark for mark in marks if begin <= mark.t <= end and mark.anon is not None]
    return [(mark.name, (after.anon or 0) - (mark.anon or 0)) for mark, after in pairwise(told)]


def _sampled_rises(series: Series, begin: float, end: float) -> list[tuple[str, float]]:
    """Along the line through each phase's lowest points: what a phase takes and gives back is no growth of it. What changes
    from training to another phase and back is the other's."""
    spans = [(span.name, max(span.begin, begin), min(span.end, end)) for span in spans_of(series)]
    lines = [(name, *_ends(series, first, last)) for name, first, last in spans[-_VISITS:] if last > first]
    rises = [(name, left - entered) for name, entered, left in lines]
    for (name, _, left), (next_name, entered, _) in pairwise(lines):
        rises.append((next_name if name == "train" else name, entered - left))
    return rises


def _ends(series: Series, begin: float, end: float) -> tuple[float, float]:
    """What was held where a phase began and where it ended, by the line through the lowest points of its slices."""
    width = (end - begin) / _VISIT_SLICES
    points: list[tuple[float, float]] = []
    for number in range(_VISIT_SLICES):
        at = begin + number * width
        if (found := series.use.between(at, at + width * 0.999)) is not None:
            points.append((at + width / 2, found[0]))
    if not points:
        return series.use.at(begin), series.use.at(end)
    rate = growth.slope(points)
    levels = sorted(value - rate * (t - begin) for t, value in points)
    entered = levels[len(levels) // 2]
    return entered, entered + rate * (end - begin)
