"""When a job is looked into before anything is short: a census as its memory fills, and the allocators' counters of a job that
makes no steps, as it reaches new highs. Pure; a job that does not grow is left alone."""

from __future__ import annotations

from oomproof.units import MIB

_LARGE = 64 * MIB  # of a job: below, nobody asks what it holds
_LEVELS = (2, 8)  # full by half, and all but an eighth: two, because what grew between them is what grows
_APART = 10.0  # seconds between two looks at the counters, as in a training
# of new height, or a share of what is held: from 100 MiB to 60 GiB a hundred looks
_HIGHER, _HIGHER_SHARE = 16 * MIB, 16
_TRACED = 180.0  # seconds from a request: two windows, the second a deeper one


class UnaskedLooks:
    def __init__(self) -> None:
        self._reached = 0  # levels of which a census was asked for
        self._highest = 0  # bytes at the last look at the counters
        self._next = 0.0
        self._traced_until = 0.0

    def fills(self, use: int, headroom: int) -> bool:
        """Whether it has filled up to the next level since it was asked last: then a census is due."""
        if use < _LARGE:
            return False
        reached = sum(use + headroom >= headroom * level for level in _LEVELS)
        due, self._reached = reached > self._reached, max(reached, self._reached)
        return due

    def grows(self, t: float, use: int) -> bool:
        """Whether a job that makes no steps is to look at its counters now; while a tracer is wanted, with each look of ours."""
        if t < self._traced_until:
            return True
        if t < self._next or use < self._highest + max(_HIGHER, self._highest // _HIGHER_SHARE):
            return False
        self._highest, self._next = use, t + _APART
        return True

    def trace(self, t: float) -> None:
        self._traced_until = t + _TRACED

    def traced(self) -> None:
        self._traced_until = 0.0

    def is_tracing(self, t: float) -> bool:
        return t < self._traced_until
