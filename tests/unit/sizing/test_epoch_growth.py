"""Batches of many shapes: what a cache may still grow by."""

from __future__ import annotations

from oomproof.sizing.log_variants import beyond

GIB = 1 << 30
# RoBERTa on padded batches, simulated: an epoch of 42 ends at 36
CURVE = [15 * GIB, 22 * GIB, 22 * GIB, 22 * GIB, *[29 * GIB] * 19, *[36 * GIB] * 19]


def test_nothing_where_the_whole_epoch_was_followed() -> None:
    assert beyond(CURVE, 42, 42) == 0


def test_as_much_as_one_step_has_brought_may_come_once_more() -> None:
    assert beyond(CURVE[:20], 20, 42) == 7 * GIB
    assert CURVE[19] + beyond(CURVE[:20], 20, 42) >= CURVE[-1]
    assert beyond([9 * GIB, *[10 * GIB] * 19], 20, 42) == 0, "the first steps make what every step takes"


def test_a_few_steps_show_nothing_yet() -> None:
    assert beyond(CURVE[:4], 4, 42) == 22 * GIB // 4
    assert beyond([], 0, None) == 0


def test_a_stream_has_no_end() -> None:
    assert beyond(CURVE[:20], 20, None) == 7 * GIB
