"""What sums over rows took on an H200, by traces of the allocator, and what the arithmetic says."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from oomproof.sizing.virtual_gpu.operation_workspaces import sum_workspace as workspace

# rows, columns, bytes that the allocator was asked for
MEASURED = (
    (80000, 768, 138412032),
    (352800, 384, 138412032),
    (20000, 1536, 138412032),
    (80000, 192, 103809024),
    (20000, 384, 61538304),
    (352800, 96, 25952256),
    (6304, 768, 38928384),
    (6304, 3072, 138412032),
    (8192, 1024, 64 << 20),
    (8192, 4096, 132 << 20),
    (8192, 768, 48 << 20),
)


@pytest.mark.parametrize(("rows", "columns", "took"), MEASURED)
def test_sums_of_columns(rows: int, columns: int, took: int) -> None:
    assert workspace((rows, columns), (columns, 1), {0}) == took


def test_channels_last_is_a_matrix_too() -> None:
    batch, channels, side = 800, 192, 10
    strides = (channels * side * side, 1, channels * side, channels)
    assert workspace((batch, channels, side, side), strides, {0, 2, 3}) == 103809024


def test_rows_that_one_block_sums_up_take_nothing() -> None:
    assert workspace((500, 1280, 3, 3), (11520, 9, 3, 1), {2, 3}) == 0
    assert workspace((8, 64), (64, 1), {0}) == 0
    assert workspace((0, 64), (64, 1), {0}) == 0
    assert workspace((), (), set()) == 0
