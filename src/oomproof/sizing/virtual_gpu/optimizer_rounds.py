"""Steps of a loop with several optimizers, as a GAN's: one is made when each of them has made one."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

RESTS = 12  # steps of the others that one which rests is waited for: critics are often trained five times as often


class OptimizerRounds:
    def __init__(self) -> None:
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def stepped(self, optimizer: Any, alive: Iterable[Any], patient: bool = True) -> int:
        """How many steps the loop has made. ``alive``: all optimizers there are; ``patient``: whether one that has not stepped is waited for."""
        self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        most = max(self._counts.values())
        least = min((self._counts.get(other, 0) for other in alive), default=most)
        return max(least, most - RESTS) if patient else most
