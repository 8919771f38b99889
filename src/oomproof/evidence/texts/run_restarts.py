"""A log that several runs were appended to: the line that opened it comes again, so what failed above was another run's."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NO_DIGITS = str.maketrans("", "", "0123456789")
_SHORTEST = 20  # characters of a line that tells runs apart
_KEY = re.compile(r"[^\d\s][^\d]{10,60}")
_ANY_LINE = re.compile(r"^\s*(?:Traceback|File|warnings?\b|wandb:|[-=#*_]{4,})|\bwarn|%\|", re.IGNORECASE)
# A launcher says that the next run or attempt begins
_ANNOUNCED = re.compile(
    r"^wandb: Agent Starting Run: \w|\d attempts left; will restart worker group|Restarting worker group|CANCELLED AT \S{10,30} DUE TO (?:JOB REQUEUE|PREEMPTION)"
)
_ANNOUNCING = ("Agent Starting Run", "estart", "REQUEUE", "PREEMPTION")
_OFTEN = 3  # openings without a failure between them: the line is one of many


class RestartWatch:
    """``begin`` with the first lines, then ask of every block whether it may hold the opening, and of its lines which."""

    __slots__ = ("_key", "_quiet", "_shape", "_started")

    def __init__(self) -> None:
        self._shape = self._key = ""
        self._started = False
        self._quiet = 0

    def begin(self, block: Sequence[tuple[int, str]]) -> None:
        """The first line that says anything is the opening; a title or a traceback opens no run."""
        if self._started:
            return
        first = next((line for _, line in block if line.strip()), "")
        self._started = bool(first)
        shape, key = _shape(first), _KEY.search(first)
        if (
            key
            and len(shape) >= _SHORTEST
            and not _ANY_LINE.search(first)
            and not first.startswith(("#", ">"))
        ):
            self._shape, self._key = shape, key[0]

    def may_open(self, text: str) -> bool:
        return (bool(self._key) and self._key in text) or any(word in text for word in _ANNOUNCING)

    def opens(self, line: str, failed: bool) -> bool:
        if _ANNOUNCED.search(line[:400]):
            return failed
        if not self._key or self._key not in line or _shape(line) != self._shape:
            return False
        self._quiet = 0 if failed else self._quiet + 1
        if self._quiet > _OFTEN:
            self._key = ""
        return failed


def _shape(line: str) -> str:
    return line.strip()[:160].translate(_NO_DIGITS)
