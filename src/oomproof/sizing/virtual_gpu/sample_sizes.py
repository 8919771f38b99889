"""How large a sample is, without knowing what it is: bytes of tensors and arrays, lengths of lists and texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_NUMBER = 8  # bytes of a number in a list: what it becomes in a tensor
_DEEP = 6
_SAMPLED = 64  # elements of a nested list that stand for all


def sample_size(value: Any, depth: int = 0) -> int:
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return int(nbytes)
    if hasattr(value, "numel") and hasattr(value, "element_size"):
        return int(value.numel()) * int(value.element_size())
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(sample_size(part, depth + 1) for part in value.values()) if depth < _DEEP else 0
    if isinstance(value, (list, tuple)):
        return _of_list(value, depth)
    size = getattr(value, "size", None)  # an image of PIL: (width, height)
    if isinstance(size, tuple) and len(size) == 2 and all(isinstance(side, int) for side in size):
        return int(3 * size[0] * size[1])
    return 0


def _of_list(value: Sequence[Any], depth: int) -> int:
    if not value or depth >= _DEEP:
        return 0
    if isinstance(value[0], (int, float, bool)):
        return _NUMBER * len(value)
    if len(value) <= _SAMPLED:
        return sum(sample_size(part, depth + 1) for part in value)
    some = value[:: max(1, len(value) // _SAMPLED)]
    return sum(sample_size(part, depth + 1) for part in some) * len(value) // len(some)


def padded(sizes: Sequence[int]) -> tuple[int, int]:
    """What a batch of samples of these sizes becomes: filled up to the longest, else their sum; in this order of weight."""
    return (len(sizes) * max(sizes), sum(sizes)) if sizes else (0, 0)


def largest_possible(sizes: Mapping[int, int], batch: int) -> list[int]:
    """Of a loader that draws at random: the largest samples may meet in one batch."""
    return sorted(sizes, key=lambda index: (-sizes[index], index))[:batch]


def largest_batch(sizes: Mapping[int, int], batches: Sequence[Sequence[int]]) -> list[int]:
    """Of those that are made: the one that becomes largest, as far as its samples were looked at."""
    known = [[index for index in batch if index in sizes] for batch in batches]
    order = [padded([sizes[index] for index in batch]) for batch in known]
    best = max(range(len(order)), key=lambda number: (order[number], -number), default=None)
    return list(batches[best]) if best is not None and order[best][0] else []
