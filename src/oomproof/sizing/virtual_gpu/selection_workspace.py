"""What torch's own kernels take for themselves to choose the largest of a row, and to add up rows by their numbers, in bytes."""

from __future__ import annotations

from typing import Any

import torch

from . import reduction_workspace

# TensorTopK.cu
_THREADS = 256
_DIGITS = 256  # eight bits at a time
_LEAST_EACH, _MOST_EACH = 4, 64  # elements of a thread
_BLOCKS_AT_ONCE = 6  # of a processor: 65536 registers, 40 a thread
# rows up to that many → the shortest that several blocks share; any more: the last
_SHARED = ((20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800), (1 << 62, 400))


def top_of_rows(tensor: Any, dim: int) -> int:
    """Counts of each digit, by block and by row, where rows are shared among blocks; and the rows one after the other."""
    copied = 0 if tensor.is_contiguous() else tensor.numel() * tensor.itemsize
    length = int(tensor.shape[dim]) if tensor.dim() else 1
    rows = int(tensor.numel()) // max(1, length)
    if not rows or length < next(shortest for most, shortest in _SHARED if rows <= most):
        return int(copied)
    at_once = reduction_workspace.PROCESSORS * _BLOCKS_AT_ONCE * _THREADS
    each = max(_LEAST_EACH, min(_MOST_EACH, -(-tensor.numel() // at_once)))
    blocks = rows * -(-length // (each * _THREADS))
    return int(copied + blocks * (2 * _DIGITS + 8) + rows * (4 * _DIGITS + 20))


def added_rows(indices: Any, values: Any) -> int:
    """``index_put`` that adds: the numbers are sorted, and what is added is made contiguous (Indexing.cu; a trace of an H200)."""
    shapes = [index.shape for index in indices if index is not None and index.dtype is not torch.bool]
    count = int(torch.broadcast_shapes(*shapes).numel()) if shapes else 0
    copied = 0 if values.is_contiguous() else int(values.numel() * values.itemsize)
    return copied + 6 * 8 * count
