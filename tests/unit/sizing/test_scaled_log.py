"""A log at another batch: each tensor on its own line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomproof.sizing.scaled_log import log_pair


def log(batch: int, lines: list[tuple[int, int]], square: int = 0) -> list[tuple[int, int]]:
    events = [(index, fixed + slope * batch) for index, (fixed, slope) in enumerate(lines, 1)]
    if square:
        events.append((len(lines) + 1, square * batch * batch))
    return [*events, (-1, 0), (0, 0)]


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)), min_size=1, max_size=20),
    st.integers(1, 50), st.integers(1, 50), st.integers(1, 5000),
)  # fmt: skip
def test_any_batch_from_two(lines: list[tuple[int, int]], small: int, more: int, batch: int) -> None:
    pair = log_pair(small, log(small, lines), small + more, log(small + more, lines))
    assert pair is not None
    for (name, size), (expected_name, expected) in zip(pair.at(batch), log(batch, lines), strict=True):
        assert name == expected_name and (name <= 0 or abs(size - max(1, expected)) <= 1)


def test_a_matrix_of_batch_times_batch() -> None:
    pair = log_pair(4, log(4, [(100, 7)], square=4), 12, log(12, [(100, 7)], square=4))
    assert pair is not None and pair.squares == 1
    assert pair.at(100) == log(100, [(100, 7)], square=4)


def test_logs_that_do_not_belong_together() -> None:
    lines = [(100, 7), (50, 0)]
    assert log_pair(4, log(4, lines), 8, log(8, lines * 20)) is None, "another number of tensors"
    assert log_pair(8, log(8, lines), 4, log(4, lines)) is None
    assert log_pair(4, [], 8, []) is None
    assert log_pair(4, log(4, [(500, 0), (500, 0)]), 8, log(8, [(100, 0), (500, 0)])) is None, (
        "one became smaller"
    )


def test_what_is_given_back_stands_where_the_larger_has_it() -> None:
    small = [(1, 10), (2, 20), (-1, 0), (-2, 0)]
    large = [(1, 20), (-1, 0), (2, 20), (-2, 0)]
    pair = log_pair(1, small, 2, large)
    assert pair is not None and pair.at(4) == [(1, 40), (-1, 0), (2, 20), (-2, 0)]


def test_a_library_that_starts_in_one_of_them() -> None:
    """cuBLAS takes its workspace at the first multiplication of a process: that log has one tensor more, at one place."""
    lines = [(1000 * index, 10 * index + 1) for index in range(40)]
    with_start = [*lines[:7], (32 << 20, 0), *lines[7:]]
    for first, second in ((with_start, lines), (lines, with_start)):
        pair = log_pair(4, log(4, first), 12, log(12, second))
        assert pair is not None
        assert [size for name, size in pair.at(100) if name > 0] == [
            size for name, size in log(100, second) if name > 0
        ]


def test_a_gap_that_does_not_explain_it() -> None:
    shuffled = [(1000 * (index * 7 % 40), 3) for index in range(40)]
    lines = [(1000 * index, 3) for index in range(40)]
    assert log_pair(4, log(4, lines), 12, log(12, shuffled)) is None
    assert log_pair(4, log(4, lines), 12, log(12, shuffled[1:])) is None
