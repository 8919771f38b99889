"""The largest batch that fits: always the border itself, in few looks, whatever the need looks like."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.errors import OomproofError
from oomproof.sizing.batch_search import Found, largest_batch

GIB = 1 << 30
Need = Callable[[int], int | None]


def looked(need: Need, capacity: int, **limits: object) -> tuple[Found, list[int]]:
    looks: list[int] = []

    def counted(batch: int) -> int | None:
        looks.append(batch)
        return need(batch)

    return largest_batch(counted, capacity, **limits), looks  # type: ignore[arg-type]


def check_border(found: Found, need: Need, capacity: int, sizes: list[int] | None = None) -> None:
    """What fits was looked at, and so was the next one, which does not."""
    assert found.exact
    if found.batch:
        fitting = need(found.batch)
        assert fitting is not None and fitting <= capacity and found.seen[found.batch] == fitting
    if found.above is not None:
        above = need(found.above)
        assert above is None or above > capacity
        assert found.above in found.seen
        if sizes is None:
            assert found.above == found.batch + 1
        else:
            assert not [size for size in sizes if found.batch < size < found.above]


# GPT-2 small at 512 tokens as measured on an H200: at batch 1 and 2 the optimizer sets the peak, not the backward pass
GPT2 = {1: 2874, 2: 3356, 4: 5194, 8: 8972, 16: 15774, 32: 30938}


def gpt2(batch: int) -> int:
    return max(2874 + 482 * (batch - 1), 1500 + 915 * batch) << 20


def test_a_kink_below_the_first_look_costs_nothing() -> None:
    found, looks = looked(gpt2, 24 * GIB)
    assert found.batch == (24 * 1024 - 1500) // 915 == 25
    assert len(looks) == 4, looks
    check_border(found, gpt2, 24 * GIB)


def test_a_start_below_the_kink_costs_one_look_more_at_most() -> None:
    for start in (1, 2, 4, 16, 64, 512):
        found, looks = looked(gpt2, 24 * GIB, start=start)
        assert found.batch == 25 and len(looks) <= 5, (start, looks)


def test_only_sizes_that_are_allowed() -> None:
    powers = [1 << power for power in range(10)]
    found, looks = looked(gpt2, 24 * GIB, candidates=powers)
    assert (found.batch, found.above) == (16, 32) and set(looks) <= set(powers) and len(looks) <= 3


def test_no_look_above_the_most() -> None:
    found, looks = looked(gpt2, 24 * GIB, most=20)
    assert (found.batch, found.above, max(looks)) == (20, None, 20)
    assert len(looks) == 2


def test_nothing_fits() -> None:
    found, looks = looked(lambda batch: 30 * GIB + batch, 24 * GIB)
    assert (found.batch, found.above) == (0, 1) and len(looks) <= 3


def test_a_need_that_does_not_depend_on_the_batch_takes_the_most() -> None:
    found, looks = looked(lambda batch: 3 * GIB, 24 * GIB, most=4096)
    assert found.batch == 4096 and len(looks) <= 4


def test_more_by_an_unknown_amount_is_bisected() -> None:
    found, looks = looked(lambda batch: GIB + batch * GIB // 10 if batch <= 37 else None, 24 * GIB)
    assert (found.batch, found.above) == (37, 38) and len(looks) <= 10
    assert found.at(20) == pytest.approx(3 * GIB, rel=0.01)


def test_an_answer_at_any_size_between_two_looks() -> None:
    found, _ = looked(gpt2, 24 * GIB)
    assert found.at(25) == gpt2(25)
    assert found.at(30) == pytest.approx(gpt2(30), rel=0.001)
    assert found.at(15) == pytest.approx(gpt2(15), rel=0.001)
    assert Found(0, 1, {1: None}).at(3) is None


def test_the_looks_are_told_and_bounded() -> None:
    told: list[tuple[int, int | None]] = []
    found = largest_batch(gpt2, 24 * GIB, calls=2, tell=lambda batch, need: told.append((batch, need)))
    assert not found.exact and told == list(found.seen.items()) and len(told) == 2
    assert found.batch and gpt2(found.batch) <= 24 * GIB


@pytest.mark.parametrize(
    "limits", [{"candidates": []}, {"candidates": [0, 4]}, {"candidates": [8], "most": 4}]
)
def test_no_batch_to_try(limits: dict[str, object]) -> None:
    with pytest.raises(OomproofError, match="no batch to try"):
        looked(gpt2, GIB, **limits)


def lines_at(lines: list[tuple[int, int]]) -> Need:
    return lambda batch: max(fixed + slope * batch for fixed, slope in lines)


STARTS = st.sampled_from([1, 2, 8, 64, 1024])
LINES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**5)), min_size=1, max_size=5)


@given(LINES, st.integers(1, 10**7), STARTS)
def test_the_largest_of_several_lines(lines: list[tuple[int, int]], capacity: int, start: int) -> None:
    need = lines_at(lines)
    found, looks = looked(need, capacity, start=start)
    check_border(found, need, capacity)
    assert len(looks) <= 40
    if len(lines) == 1 and found.batch < 16 * start:
        assert len(looks) <= 5, looks


@given(st.integers(0, 10**6), st.integers(0, 1000), st.integers(1, 50), st.integers(1, 10**8), STARTS)
def test_a_need_that_grows_with_the_square(
    fixed: int, slope: int, square: int, capacity: int, start: int
) -> None:
    """In-batch negatives: a matrix of batch times batch."""

    def need(batch: int) -> int:
        return fixed + slope * batch + square * batch * batch

    found, looks = looked(need, capacity, start=start)
    check_border(found, need, capacity)
    assert len(looks) <= 14, looks


@given(st.integers(0, 10**5), st.integers(1, 10**4), st.integers(1, 100), st.integers(1, 10**6), STARTS)
def test_a_need_in_steps(fixed: int, height: int, width: int, capacity: int, start: int) -> None:
    """Segments, padded lengths, another kernel from some size on."""

    def need(batch: int) -> int:
        return fixed + height * (batch // width)

    found, looks = looked(need, capacity, start=start)
    check_border(found, need, capacity)
    assert len(looks) <= 60


@given(LINES, st.integers(1, 10**7), STARTS, st.sets(st.integers(1, 5000), min_size=1, max_size=30))
def test_only_some_sizes(lines: list[tuple[int, int]], capacity: int, start: int, sizes: set[int]) -> None:
    need = lines_at(lines)
    found, looks = looked(need, capacity, start=start, candidates=sorted(sizes))
    check_border(found, need, capacity, sorted(sizes))
    assert len(looks) == len(set(looks)) and set(looks) <= sizes
    fitting = [size for size in sizes if (taken := need(size)) is not None and taken <= capacity]
    assert found.batch == max(fitting, default=0)


@given(LINES, st.integers(1, 10**7), st.randoms(use_true_random=False))
def test_noise_ends_at_a_border_all_the_same(
    lines: list[tuple[int, int]], capacity: int, random: object
) -> None:
    """Which cached block is found moves a need up and down by some percent."""
    smooth, known = lines_at(lines), dict[int, int]()

    def need(batch: int) -> int | None:
        known.setdefault(batch, int((smooth(batch) or 0) * random.uniform(0.95, 1.05)))  # type: ignore[attr-defined]
        return known[batch]

    found, looks = looked(need, capacity)
    check_border(found, need, capacity)
    assert len(looks) <= 40
