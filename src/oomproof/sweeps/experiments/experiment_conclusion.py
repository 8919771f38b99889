"""Which factor a death follows and which it does not: experiments that were run in, an answer for each factor out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Literal, TypeVar

from oomproof.causes import cause_of
from oomproof.records import dataclass
from oomproof.sweeps.experiments.experiment_plan import (
    DIED,
    FAILED,
    LIVED,
    Experiment,
    Factor,
    Outcome,
    Values,
    baseline,
    same_peak,
)
from oomproof.units import format_duration, format_size

Answer = Literal["follows", "does not follow", "unknown"]
FOLLOWS: Answer = "follows"
DOES_NOT: Answer = "does not follow"
UNKNOWN: Answer = "unknown"  # no two experiments that could be compared
SAME_PEAK = "same peak"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FactorFinding:
    factor: Factor
    answer: Answer
    outcomes: tuple[tuple[str, Outcome], ...]  # of each value, the other factors being equal
    others: str = ""  # what the other factors were then, where it is not the baseline
    peak: str = ""  # what it does to the peak of those that lived


@dataclass(frozen=True, slots=True)
class Elimination:
    sentence: str
    notes: tuple[str, ...]  # peaks, kinds of death, what does not count, how long "lived" was
    findings: tuple[FactorFinding, ...]

    @property
    def follows(self) -> list[str]:
        """The factors the death follows; none: it could not be told."""
        return [finding.factor.name for finding in self.findings if finding.answer == FOLLOWS]


def eliminate(factors: Sequence[Factor], done: Sequence[Experiment]) -> Elimination:
    findings = tuple(_finding(index, factors, done) for index in range(len(factors)))
    notes = (
        *_peak_notes(findings),
        *_kinds_note(factors, done),
        *_failure_notes(factors, done),
        *_time_note(done),
    )
    return Elimination(_main_sentence(factors, done, findings), notes, findings)


def setting(factor: Factor, value: str) -> str:
    """``bs=8``, ``OMP_NUM_THREADS unset``."""
    if factor.is_env and value == "unset":
        return f"{factor.name} unset"
    return f"{factor.name}={value or '(empty)'}"


def settings(factors: Sequence[Factor], values: Values) -> str:
    return ", ".join(setting(factor, value) for factor, value in zip(factors, values, strict=True))


def _finding(index: int, factors: Sequence[Factor], done: Sequence[Experiment]) -> FactorFinding:
    pairs = list(_alike_but_for(index, done))
    turned = next((left for left, right in pairs if left.outcome != right.outcome), None)
    answer = FOLLOWS if turned else DOES_NOT if pairs else UNKNOWN
    base = baseline(factors)
    shown = _others(index, turned.values if turned else base)
    outcomes = {
        experiment.values[index]: experiment.outcome
        for experiment in done
        if _others(index, experiment.values) == shown
    }
    ordered = tuple((value, outcomes[value]) for value in factors[index].values if value in outcomes)
    at = "" if shown == _others(index, base) else settings(_others(index, tuple(factors)), shown)
    return FactorFinding(factors[index], answer, ordered, at, _peak_effect(index, factors[index], pairs))


def _others(index: int, values: tuple[T, ...]) -> tuple[T, ...]:
    return (*values[:index], *values[index + 1 :])


def _alike_but_for(index: int, done: Iterable[Experiment]) -> Iterator[tuple[Experiment, Experiment]]:
    """Pairs that differ in this factor alone, and of which both tell something about memory."""
    clear = (experiment for experiment in done if experiment.outcome != FAILED)
    for left, right in combinations(clear, 2):
        if [number for number, _ in _changes(left, right)] == [index]:
            yield left, right


def _changes(first: Experiment, other: Experiment) -> list[tuple[int, str]]:
    pairs = zip(first.values, other.values, strict=True)
    return [(index, value) for index, (before, value) in enumerate(pairs) if before != value]


def _peak_effect(index: int, factor: Factor, pairs: Iterable[tuple[Experiment, Experiment]]) -> str:
    """Of a pair that lived: one that died was cut off by its limit. The largest difference."""
    peaks = [
        (left.peak, left.values[index], right.peak, right.values[index])
        for left, right in pairs
        if left.outcome == right.outcome == LIVED and left.peak is not None and right.peak is not None
    ]
    differing = [pair for pair in peaks if not same_peak(pair[0], pair[2])]
    if not differing:
        return SAME_PEAK if peaks else ""
    left, left_value, right, right_value = max(differing, key=lambda pair: abs(pair[0] - pair[2]))
    return (
        f"peak {format_size(left)} with {setting(factor, left_value)}, "
        f"{format_size(right)} with {setting(factor, right_value)}"
    )


def _main_sentence(
    factors: Sequence[Factor], done: Sequence[Experiment], findings: Sequence[FactorFinding]
) -> str:
    first = next((experiment for experiment in done if experiment.values == baseline(factors)), None)
    if first is None:
        return "nothing is known yet: the first experiment did not end"
    follows = [index for index, finding in enumerate(findings) if finding.answer == FOLLOWS]
    if not follows:
        return _nothing_turned(factors, first, done, findings)
    if len(follows) == 1:
        factor, index = factors[follows[0]], follows[0]
        if all(len(ends) == 1 for ends in _ends_by_value(factor, index, done).values()):
            return _one_factor(factor, index, done, findings)
    return _several_factors(factors, first, done, follows)


def _nothing_turned(
    factors: Sequence[Factor],
    first: Experiment,
    done: Sequence[Experiment],
    findings: Sequence[FactorFinding],
) -> str:
    if first.outcome == FAILED:
        return (
            f"the baseline ({settings(factors, first.values)}) did not die of memory: {first.end}; "
            "correct that first, then compare"
        )
    ruled_out = [finding.factor.name for finding in findings if finding.answer == DOES_NOT]
    if not ruled_out:
        return (
            f"it {first.outcome} with {settings(factors, first.values)}, and nothing else could be compared"
        )
    if first.outcome == LIVED:
        return f"it lived whatever was changed ({_listed(ruled_out)}): nothing here causes a death"
    if len(ruled_out) == 1:
        return f"it died whatever was changed: the death does not follow {ruled_out[0]}"
    return f"it died whatever was changed: the death follows neither {_listed(ruled_out, 'nor')}"


def _ends_by_value(factor: Factor, index: int, done: Sequence[Experiment]) -> dict[str, set[Outcome]]:
    """In the order of the values; without those that only failed."""
    ends = {
        value: {e.outcome for e in done if e.values[index] == value and e.outcome != FAILED}
        for value in factor.values
    }
    return {value: outcomes for value, outcomes in ends.items() if outcomes}


def _one_factor(
    factor: Factor, index: int, done: Sequence[Experiment], findings: Sequence[FactorFinding]
) -> str:
    ends = _ends_by_value(factor, index, done)
    sides = []
    for outcome, verb in ((DIED, "dies"), (LIVED, "lives")):
        values = [value for value, outcomes in ends.items() if outcome in outcomes]
        others = [
            other.factor.name
            for number, other in enumerate(findings)
            if number != index and any(left.outcome == outcome for left, _ in _alike_but_for(number, done))
        ]
        text = f"it {verb} with {_range_of(factor, values, list(ends))}"
        sides.append(
            f"{text} whatever {_listed(others)} {'is' if len(others) == 1 else 'are'}" if others else text
        )
    return f"{'; '.join(sides)}: {factor.name} is what it follows"


def _range_of(factor: Factor, values: Sequence[str], tried: Sequence[str]) -> str:
    """``bs=8 and less`` where the values are numbers, and the others all lie on the other side of them."""
    numbers = {value: number for value in tried if (number := _number(value)) is not None}
    if len(values) > 1 and len(numbers) == len(tried) > len(values):
        outside = [number for value, number in numbers.items() if value not in values]
        top, bottom = max(values, key=numbers.__getitem__), min(values, key=numbers.__getitem__)
        if numbers[top] < min(outside):
            return f"{setting(factor, top)} and less"
        if numbers[bottom] > max(outside):
            return f"{setting(factor, bottom)} and more"
    return _listed(setting(factor, value) for value in values)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _several_factors(
    factors: Sequence[Factor], first: Experiment, done: Sequence[Experiment], follows: Sequence[int]
) -> str:
    """Told from the baseline: what turns its outcome, in the fewest changes."""
    names = _listed(factors[index].name for index in follows)
    if first.outcome == FAILED:
        return f"it follows {names}: the table shows which died"
    turned = [
        changes
        for experiment in done
        if experiment.outcome not in (first.outcome, FAILED) and (changes := _changes(first, experiment))
    ]
    fewest = min((len(changes) for changes in turned), default=0)
    ways = [
        " and ".join(setting(factors[index], value) for index, value in changes)
        for changes in turned
        if len(changes) == fewest
    ]
    begin = f"it {'dies' if first.outcome == DIED else 'lives'} with {settings(factors, first.values)}, and "
    verb = "lives" if first.outcome == DIED else "dies"
    if fewest > 1:
        return f"{begin}{verb} only with {_listed(ways, 'or')} together: it follows {names} together"
    return f"{begin}{verb} with {_listed(ways, 'or')} instead: it follows {names}"


def _peak_notes(findings: Sequence[FactorFinding]) -> Iterator[str]:
    for finding in findings:
        if finding.answer == DOES_NOT and finding.peak not in ("", SAME_PEAK):
            peaks = finding.peak.removeprefix("peak ")
            yield f"{finding.factor.name} changes the peak, not the outcome: {peaks}"


def _kinds_note(factors: Sequence[Factor], done: Sequence[Experiment]) -> Iterator[str]:
    """A full GPU and a full machine are two deaths, which may follow two factors."""
    deaths = [experiment for experiment in done if experiment.outcome == DIED]
    gpu = next((death for death in deaths if cause_of(death.cause or "").gpu), None)
    host = next((death for death in deaths if not cause_of(death.cause or "").gpu), None)
    if gpu and host:
        first, second = settings(factors, gpu.values), settings(factors, host.values)
        yield f"not all deaths are alike: of GPU memory with {first}; of the machine's with {second}"


def _failure_notes(factors: Sequence[Factor], done: Sequence[Experiment]) -> Iterator[str]:
    for experiment in done:
        if experiment.outcome == FAILED:
            what = f"{settings(factors, experiment.values)} ({experiment.end})"
            yield f"does not count: {what}; see: oomproof why {experiment.run}"


def _time_note(done: Sequence[Experiment]) -> Iterator[str]:
    """What lived only as long as it was watched may die later."""
    watched = [e.seconds or 0.0 for e in done if e.timed_out and e.outcome == LIVED]
    if watched:
        yield f"lived means: for {format_duration(min(watched))} at least; slow growth would end it later"


def _listed(names: Iterable[str], word: str = "and") -> str:
    *before, last = names
    return f"{', '.join(before)} {word} {last}" if before else last
