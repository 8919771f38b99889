"""The order of the experiments, and that they end."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from oomproof.sweeps.experiments.experiment_conclusion import DOES_NOT, FOLLOWS, eliminate
from oomproof.sweeps.experiments.experiment_plan import (
    DIED,
    FAILED,
    LIVED,
    Experiment,
    Factor,
    Outcome,
    Values,
    baseline,
    most_experiments,
    next_experiment,
)

MIB = 1 << 20
BS, ACCUM = Factor("bs", ("32", "8", "4")), Factor("accum", ("16", "1"))


def played(
    factors: list[Factor],
    truth: Callable[[Values], Outcome],
    everything: bool = False,
    peak: Callable[[Values], int] = lambda values: 100 * MIB,
) -> list[Experiment]:
    """What would be run if jobs ended as ``truth`` says."""
    done: list[Experiment] = []
    while (values := next_experiment(factors, done, everything)) is not None:
        assert values not in [experiment.values for experiment in done], "nothing is run twice"
        done.append(Experiment(values, truth(values), "", peak=peak(values)))
        assert len(done) <= most_experiments(factors, everything)
    return done


def order(done: list[Experiment]) -> list[str]:
    return [" ".join(experiment.values) for experiment in done]


def test_one_factor_at_a_time_from_the_baseline() -> None:
    done = played([BS, ACCUM], lambda values: DIED if values[0] == "32" else LIVED)
    assert order(done) == ["32 16", "8 16", "4 16", "32 1"]


def test_pairs_only_when_no_single_change_turns_it() -> None:
    done = played([BS, ACCUM], lambda values: LIVED if values == ("4", "1") else DIED)
    assert order(done) == ["32 16", "8 16", "4 16", "32 1", "4 1"]
    workers = Factor("workers", ("8", "0"))
    done = played([BS, ACCUM, workers], lambda values: DIED)
    assert order(done)[5:] == ["4 1 8", "4 16 0", "32 1 0"]


def test_a_baseline_that_failed_otherwise_ends_it() -> None:
    assert order(played([BS, ACCUM], lambda values: FAILED)) == ["32 16"]
    assert len(played([BS, ACCUM], lambda values: FAILED, everything=True)) == 6, "--all was asked for"


def test_a_value_that_failed_otherwise_is_in_no_pair() -> None:
    done = played([BS, ACCUM], lambda values: FAILED if values[0] == "4" else DIED)
    assert order(done)[4:] == ["8 1"]


def test_pairs_of_a_baseline_that_lived_are_of_what_raises_the_peak() -> None:
    small = [Factor("bs", ("4", "8", "32")), Factor("accum", ("1", "16")), Factor("seed", ("1", "2"))]
    peaks = {"4": 10, "8": 20, "32": 90}

    def peak(values: Values) -> int:
        return (peaks[values[0]] + (50 if values[1] == "16" else 0)) * MIB

    done = played(small, lambda values: LIVED if peak(values) < 100 * MIB else DIED, peak=peak)
    assert order(done)[5:] == ["32 16 1"], "the seed changes no peak"
    assert order(played([BS, ACCUM], lambda values: LIVED)) == ["32 16", "8 16", "4 16", "32 1"]


def test_all_begins_with_the_smallest_changes() -> None:
    done = played([BS, ACCUM], lambda values: LIVED, everything=True)
    assert order(done) == ["32 16", "32 1", "8 16", "4 16", "8 1", "4 1"]


FACTORS = st.lists(st.integers(2, 4), min_size=1, max_size=3).map(
    lambda sizes: [Factor(f"f{i}", tuple(str(v) for v in range(size))) for i, size in enumerate(sizes)]
)


@given(FACTORS, st.booleans(), st.randoms(use_true_random=False))
def test_it_ends_and_says_something_whatever_comes_out(factors, everything, random) -> None:  # type: ignore[no-untyped-def]
    done = played(
        factors,
        lambda values: random.choice((DIED, LIVED, FAILED)),
        everything,
        lambda values: random.randrange(1 << 30),
    )
    assert done[0].values == baseline(factors)
    for count in range(len(done) + 1):  # also what a Ctrl-C leaves
        assert eliminate(factors, done[:count]).sentence


@given(FACTORS, st.booleans(), st.data())
def test_a_death_that_follows_one_factor_is_told_so(factors, everything, data) -> None:  # type: ignore[no-untyped-def]
    index = data.draw(st.integers(0, len(factors) - 1))
    values = factors[index].values
    dying = data.draw(st.sets(st.sampled_from(values), min_size=1, max_size=len(values) - 1))
    done = played(factors, lambda values: DIED if values[index] in dying else LIVED, everything)
    told = eliminate(factors, done)
    assert told.follows == [factors[index].name]
    assert all(finding.answer in (FOLLOWS, DOES_NOT) for finding in told.findings)
    assert told.sentence.endswith(f": {factors[index].name} is what it follows")


@given(FACTORS, st.randoms(use_true_random=False))
def test_nothing_is_blamed_that_the_truth_does_not_depend_on(factors, random) -> None:  # type: ignore[no-untyped-def]
    """And with every combination run, everything it depends on is."""
    every = list(product(*(factor.values for factor in factors)))
    truth = {values: random.choice((DIED, LIVED)) for values in every}
    depends = {
        factor.name
        for index, factor in enumerate(factors)
        for left, right in product(every, every)
        if [i for i in range(len(factors)) if left[i] != right[i]] == [index] and truth[left] != truth[right]
    }
    assert set(eliminate(factors, played(factors, truth.__getitem__)).follows) <= depends
    assert set(eliminate(factors, played(factors, truth.__getitem__, everything=True)).follows) == depends
