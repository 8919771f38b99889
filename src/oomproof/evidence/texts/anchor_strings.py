"""Strings that are searched for before any pattern is tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import AnyStr


def shortest(anchors: Sequence[AnyStr]) -> tuple[AnyStr, ...]:
    """Without those that hold another one: they mark nothing new."""
    return tuple(a for a in dict.fromkeys(anchors) if not any(b != a and b in a for b in anchors))
