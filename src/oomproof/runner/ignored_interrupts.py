"""Whether somebody presses Ctrl-C again and again at a job that does not end by it."""

from __future__ import annotations

from collections import deque

_PRESSED = 3
_WITHIN = 10.0  # seconds; a program at work on the first needs no advice, nor does one that is interrupted now and then


class IgnoredInterrupts:
    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_PRESSED)
        self._told = False

    def is_enough(self, t: float) -> bool:
        """Of one more at this time; once in a run."""
        self._times.append(t)
        if self._told or len(self._times) < _PRESSED or t - self._times[0] > _WITHIN:
            return False
        self._told = True
        return True
