"""What a sum over many rows takes for its partial results: torch's own launch arithmetic (ATen/native/cuda/Reduce.cuh).

Checked on an H200 against traces of the allocator: the gradients of biases, of 192 to 4096 columns and 3,200 to 352,800 rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

_MOST_THREADS = 512  # of a block, for elements of 4 bytes
_WARP = 32
_FEWEST_VALUES, _MOST_VALUES = 16, 256  # a thread adds up
PROCESSORS, THREADS = 132, 2048  # of an H100 or H200, and of each of its processors


def workspace(
    shape: Sequence[int], strides: Sequence[int], reduced: Collection[int], processors: int = PROCESSORS
) -> int:
    """Bytes for partial sums in float32; 0 where each block sums up its own. ``reduced``: the dimensions that go."""
    rows = _joined(shape, strides, [dim for dim in range(len(shape)) if dim in reduced])
    columns = _joined(shape, strides, [dim for dim in range(len(shape)) if dim not in reduced])
    inputs, outputs = _product(rows), _product(columns)
    if not inputs or not outputs or not rows:
        return 0
    along_rows = not columns or rows[0][1] < columns[0][1]
    vector = 1
    if not along_rows and columns[0][1] == 1:
        vector = _vector(columns[0][0], [stride for _, stride in (*rows, *columns[1:])])
    elif along_rows and rows[0][1] == 1 and inputs > 128 and len(rows) + len(columns) == 1:
        inputs_a_lane = inputs // 4
        return _partials(inputs, 1, inputs_a_lane, 1, True, 1, processors)
    first, second = (inputs, outputs) if along_rows else (outputs // vector, inputs)
    return _partials(inputs, outputs, first, second, along_rows, vector, processors)


def _partials(
    inputs: int, outputs: int, first: int, second: int, along_rows: bool, vector: int, processors: int
) -> int:
    threads = _MOST_THREADS // vector
    first, second = _power(first, threads), _power(second, threads)
    width = min(first, _WARP)
    height = min(second, threads // width)
    width = min(first, threads // height)
    values = -(-inputs // width) if along_rows else inputs
    blocks = outputs if along_rows else -(-outputs // (width * vector))
    if values < min(height * 16, _MOST_VALUES):
        return 0  # no splitting of a column, so none over blocks
    values = -(-values // height)
    at_once = processors * (THREADS // (width * height))
    if values < _MOST_VALUES or blocks > at_once:
        return 0
    parts = max(
        min(-(-at_once // blocks), -(-values // _FEWEST_VALUES)),
        -(-values // _MOST_VALUES),
    )
    if parts <= 1:
        return 0
    return 4 * outputs * parts * (1 if along_rows else width * vector)


def _joined(shape: Sequence[int], strides: Sequence[int], dims: list[int]) -> list[list[int]]:
    """Sizes and strides, the fastest first; dimensions that follow each other in memory are one."""
    joined: list[list[int]] = []
    for dim in sorted(dims, key=lambda dim: strides[dim]):
        if shape[dim] == 1:
            continue
        if joined and joined[-1][0] * joined[-1][1] == strides[dim]:
            joined[-1][0] *= shape[dim]
        else:
            joined.append([shape[dim], strides[dim]])
    return joined


def _product(dims: list[list[int]]) -> int:
    product = 1
    for size, _ in dims:
        product *= size
    return product


def _vector(columns: int, strides: list[int]) -> int:
    vector = 4
    for number in (columns, *strides):
        while number % vector:
            vector //= 2
    return vector


def _power(number: int, most: int) -> int:
    """The largest power of two that is neither above it nor above ``most``."""
    return int(min(most, 1 << (max(1, number).bit_length() - 1)))
