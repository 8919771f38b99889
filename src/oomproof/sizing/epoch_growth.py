"""How much further a cache may grow beyond the steps that were followed, where each batch has another shape. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_FIRST = 3  # steps before the cache holds what every step takes
_FEW = 8  # steps that show how it grows
_UNSEEN = 0.25  # of what is reserved: RoBERTa on padded batches, an epoch of 42, had 24 % more in the end than after three steps and its largest batch (H200)


def beyond(reserved: Sequence[int], seen: int, batches: int | None) -> int:
    """Bytes. ``reserved``: after each step that was followed, which took ``seen`` batches of an epoch's ``batches`` (None: a stream).

    A cache grows by whole blocks, when a shape comes that fits into none of those kept: ever more rarely, so as much as one step has brought
    may come once more. Nothing where the whole epoch was followed."""
    if (batches is not None and seen >= batches) or not reserved:
        return 0
    if len(reserved) < _FEW:
        return int(_UNSEEN * reserved[-1])
    return max(after - before for before, after in pairwise(reserved[_FIRST - 1 :]))
