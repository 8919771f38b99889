"""Batches of many shapes: the cache of a card grows with each new one, so more steps are followed than of batches that are all alike."""

from __future__ import annotations

import os
import time
from typing import Any

from torch.utils.data import RandomSampler, SequentialSampler

from .largest_batches import shapes
from .step_limits import DRAWN, FIXED, SEEDED, STEPS, WHOLE_EPOCH

_MOST = 400  # steps
_SHARE = 0.5  # of the time limit; an evaluation may come behind


class ManyShapes:
    """``batches``: how many an epoch has, as far as it is known, and ``seen`` of them."""

    def __init__(self, flow: Any) -> None:
        self.flow = flow
        self.shapes: dict[int, set[str]] = {}  # dataset → of its batches
        self.batches: int | None = None
        self.seen = 0
        self.followed = False
        self.order = DRAWN

    def see(self, iterator: Any, batch: Any) -> None:
        self.shapes.setdefault(id(iterator._dataset), set()).add(str(shapes(batch)))
        iterator.__dict__["_virtual_handed"] = iterator.__dict__.get("_virtual_handed", 0) + 1

    def begin(self, iterator: Any, larger: bool) -> None:
        """``larger``: one that is larger than those seen may come."""
        if not os.environ.get(WHOLE_EPOCH, "1"):
            return
        if larger or len(self.shapes.get(id(iterator._dataset), ())) > 1:
            self.followed = True
            self.flow.wanted = STEPS + _MOST
            self.order = order_of(iterator._index_sampler)
            try:
                self.batches = len(iterator._index_sampler)
            except (TypeError, AttributeError):  # a stream
                self.batches = None

    def is_last(self, iterator: Any) -> bool:
        """Whether the step under way is the last that is waited for; then it is."""
        flow = self.flow
        if not self.followed or flow.steps >= flow.wanted - 1:
            return True
        self.seen = iterator.__dict__.get("_virtual_handed", 0)
        late = time.monotonic() - flow.started > _SHARE * flow.limit
        if not late and (self.batches is None or self.seen < self.batches):
            return False
        flow.wanted = flow.steps + 1
        return True

    def as_json(self) -> dict[str, Any]:
        return {"batches": self.batches, "seen": self.seen, "order": self.order} if self.followed else {}


def order_of(batches: Any) -> str:
    """``batches``: a sampler of batches, or of rows where they are not gathered."""
    sampler = getattr(batches, "sampler", batches)
    if isinstance(sampler, SequentialSampler):
        return FIXED
    return SEEDED if isinstance(sampler, RandomSampler) and sampler.generator is not None else DRAWN
