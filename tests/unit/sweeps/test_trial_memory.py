"""What trials will hold, from those that ran: sizes, lines, deaths as lower bounds; and what must not be called too large."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.sweeps.trial_memory import Measured, fitted, predict, shape_of, too_large
from oomproof.units import GIB, MIB


def ran(peak: float, **values: object) -> Measured:
    return Measured(shape_of(values), int(peak * MIB), said=f"trial {values}")


def died(peak: float, budget: float, **values: object) -> Measured:
    return Measured(shape_of(values), int(peak * MIB), True, int(budget * MIB), "trial 1")


def test_which_parameters_matter() -> None:
    shape = shape_of(
        {
            "batch_size": 64, "num_workers": "8", "seq_len": 512, "hidden_dim": 256, "lr": 0.1, "seed": 3, "epochs": 4, "dropout": 0.5,
            "weight_decay": 0.01, "gradient_accumulation_steps": 8, "optimizer": "adam", "noise": 0.37, "run_name": "x", "flag": True,
            "warmup_steps": 100, "max_steps": 5000, "base_lr": 1,
        }
    )  # fmt: skip
    assert dict(shape.sizes) == {"batch_size": 64, "num_workers": 8, "seq_len": 512, "hidden_dim": 256}
    assert dict(shape.others) == {"optimizer": "adam", "flag": "True"}


def test_the_same_size_again() -> None:
    known = [ran(100, batch=8, lr=0.1), ran(104, batch=8, lr=0.2)]
    told = predict(shape_of({"batch": "8", "lr": 0.7}), known)
    assert (
        told is not None and (told.low, told.expected) == (100 * MIB, 104 * MIB) and "2 trials" in told.basis
    )
    assert predict(shape_of({"batch": 16, "lr": 0.7}), known) is None, "one size tells nothing of another"


def test_a_line_through_two_sizes() -> None:
    known = [ran(100 + 10 * batch, batch=batch) for batch in (2, 8)]
    told = predict(shape_of({"batch": 16}), known)
    assert told is not None and told.expected == pytest.approx(260 * MIB, rel=0.01)
    assert told.low < told.expected < told.high
    assert too_large(shape_of({"batch": 64}), known, 400 * MIB).startswith(
        "would need about 740 MiB, by a line through 2 sizes"
    )
    assert not too_large(shape_of({"batch": 16}), known, 250 * MIB), "260 may be 234: tried"
    assert not too_large(shape_of({"batch": 16}), known, GIB)


def test_batch_times_workers() -> None:
    """A loader's queue holds workers × prefetch batches: a product, which sums of both would miss."""
    known = [
        ran(200 + 3 * b * w + 20 * w + b, batch=b, workers=w)
        for b, w in ((4, 1), (8, 1), (4, 4), (8, 4), (16, 2))
    ]
    told = predict(shape_of({"batch": 64, "workers": 16}), known)
    assert told is not None and told.expected == pytest.approx(
        (200 + 3 * 64 * 16 + 20 * 16 + 64) * MIB, rel=0.1
    )


def test_what_never_varied_tells_nothing() -> None:
    known = [ran(100, batch=2, workers=4), ran(200, batch=8, workers=4)]
    assert predict(shape_of({"batch": 4, "workers": 8}), known) is None
    other = [ran(100, batch=2, model="small"), ran(200, batch=8, model="small")]
    assert predict(shape_of({"batch": 64, "model": "large"}), other) is None
    assert not too_large(shape_of({"batch": 64, "model": "large"}), other, 150 * MIB)


def test_a_death_is_a_lower_bound_for_what_is_no_smaller() -> None:
    known = [died(590, 600, batch=64, lr=0.1)]
    assert (
        too_large(shape_of({"batch": 64, "lr": 0.5}), known, 600 * MIB)
        == "trial 1 died at 590 MiB, and this one is no smaller"
    )
    assert too_large(shape_of({"batch": 128, "lr": 0.5}), known, 500 * MIB)
    assert not too_large(shape_of({"batch": 32, "lr": 0.5}), known, 600 * MIB), "a smaller one may live"
    assert not too_large(shape_of({"batch": 64, "lr": 0.5}), known, 700 * MIB), (
        "with a larger limit it may, too"
    )
    assert predict(shape_of({"batch": 64}), known) is None, "a death is no observation"


def test_a_slope_of_chance_skips_nothing() -> None:
    """nanoGPT at 4 and 8 held 237 and 254 MiB, another time 237 and 249: for 200 lines through them tell 1.0 GiB and 819 MiB."""
    near = [ran(237, batch=4), ran(254, batch=8)]
    assert not too_large(shape_of({"batch": 200}), near, 700 * MIB)
    assert too_large(shape_of({"batch": 200}), near, 400 * MIB)
    assert too_large(shape_of({"batch": 200}), [*near, ran(454, batch=64)], 700 * MIB)


def test_a_limit_that_was_lowered() -> None:
    known = [ran(500, batch=32)]
    assert "held 500 MiB, and it may hold 400 MiB" in too_large(shape_of({"batch": 64}), known, 400 * MIB)
    assert not too_large(shape_of({"batch": 16}), known, 400 * MIB)


def test_a_larger_one_that_fitted_bounds_it_from_above() -> None:
    told = predict(shape_of({"batch": 8}), [ran(300, batch=32)])
    assert told is not None and told.expected == 300 * MIB and told.basis == "a larger trial fitted"


@given(st.integers(0, 2**32 - 1))
def test_of_true_lines_nothing_that_fits_is_called_too_large(seed: int) -> None:
    """Peaks with 1 % of noise, convex in the batch as live memory is (the largest of two lines): whatever is skipped, would die."""
    rng = random.Random(seed)
    fixed, slope, kink = rng.uniform(50, 3000), rng.uniform(0.1, 60), rng.uniform(2, 200)

    def need(batch: int) -> float:
        return max(
            fixed + slope * batch, fixed * 0.5 + 1.6 * slope * (batch - kink) + slope * kink
        ) * rng.uniform(0.995, 1.005)

    sizes = rng.sample(range(1, 65), rng.randint(2, 5))
    known = [ran(need(batch), batch=batch) for batch in sizes]
    candidate = rng.randint(1, 512)
    budget = rng.uniform(0.3, 3) * need(candidate)
    if too_large(shape_of({"batch": candidate}), known, int(budget * MIB)):
        assert need(candidate) > budget * 0.98


@given(st.dictionaries(st.integers(1, 100), st.integers(1, 10**12), min_size=2, max_size=6))
def test_a_line_never_falls(peaks: dict[int, int]) -> None:
    line = fitted((("batch", 1.0),), {(("batch", float(batch)),): peak for batch, peak in peaks.items()})
    assert line is not None and all(factor >= 0 for _, factor in line.terms)
