"""Micro-batch, accumulation and the effective batch they keep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.errors import OomproofError
from oomproof.plans.knobs import Template, parse_knob, template_of
from oomproof.plans.plan import (
    Plan,
    batches_at_most,
    check_effective,
    divisors,
    effective_batch,
    learning_rate_note,
    split_note,
    with_batch,
)


def of(text: str = "python t.py --bs {batch} --accum {accum}", *knobs: str) -> Template:
    return template_of(text.split(), [parse_knob(knob) for knob in knobs])


START = Plan.of({"batch": "64", "accum": "2"})


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_every_smaller_plan_keeps_the_effective_batch(effective: int, most: int) -> None:
    template = of()
    plans = list(batches_at_most(template, START, most, effective))
    assert plans and all(effective_batch(template, plan) == effective for plan in plans)
    sizes = [int(plan.get("batch") or 0) for plan in plans]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] <= most and sizes[-1] == 1


@given(st.integers(1, 10_000))
def test_divisors_are_all_of_them(number: int) -> None:
    assert divisors(number) == [size for size in range(number, 0, -1) if number % size == 0]


def test_without_accumulation_every_batch_is_a_plan() -> None:
    template = of("python t.py --bs {batch}")
    plans = list(batches_at_most(template, Plan.of({"batch": "8"}), 3, 8))
    assert [plan.get("batch") for plan in plans] == ["3", "2", "1"]


def test_a_batch_outside_its_values_is_no_plan() -> None:
    template = of("python t.py --bs {batch} --accum {accum}", "batch=64,32,16")
    assert with_batch(template, START, 24, 128) is None
    assert with_batch(template, START, 32, 128) == Plan.of({"batch": "32", "accum": "4"})
    assert with_batch(template, START, 32, 100) is None


@pytest.mark.parametrize(
    ("template", "effective", "says"),
    [
        (
            of("python t.py --bs {batch} --accum {accum}", "batch=64,32,16"),
            100,
            "no micro-batch of batch divides",
        ),
        (of("python t.py --bs {batch}", "batch=64,32"), 128, "nothing accumulates"),
        (of("python t.py --accum {accum}"), 128, "needs a batch"),
        (of(), 0, "is no batch"),
    ],
)
def test_an_effective_batch_that_cannot_be_kept(template: Template, effective: int, says: str) -> None:
    with pytest.raises(OomproofError, match=says) as error:
        check_effective(template, effective)
    assert error.value.hint


@pytest.mark.parametrize(
    ("values", "effective", "nearest"), [("7,5,3", 64, 63), ("64..4", 97, 96), ("48,60", 100, 96)]
)
def test_the_effective_batch_that_is_offered_can_be_kept(values: str, effective: int, nearest: int) -> None:
    template = of("python t.py --bs {batch} --accum {accum}", f"batch={values}")
    with pytest.raises(OomproofError) as error:
        check_effective(template, effective)
    assert f"--effective {nearest}," in error.value.hint
    check_effective(template, nearest)


def test_a_prime_effective_batch_is_told() -> None:
    assert "509 splits evenly only into 1" in split_note(509, 60, 1) and "480" in split_note(509, 60, 1)
    assert "540 would take 60" in split_note(512, 60, 32)
    assert split_note(512, 33, 32) == "" and split_note(48, 60, 48) == ""


def test_another_effective_batch_changes_the_learning_rate() -> None:
    assert "× 0.5 with SGD or × 0.71 with Adam" in learning_rate_note(64, 32)
    assert learning_rate_note(64, 64) == "" and learning_rate_note(None, 3) == ""
