"""Runs what must not stop its caller: the first failure of each kind is told, and the next try may go well."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class BestEffort:
    """``tell`` gets one plain sentence per kind of work, however often that work fails."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.failures: dict[str, int] = {}

    def __call__(
        self, what: str, work: Callable[[], T], otherwise: T, then: str = "the guard continues"
    ) -> T:
        """What ``work`` returns, or ``otherwise``. ``then`` says what its failure means for the user."""
        try:
            return work()
        except Exception as error:  # no memory, no descriptors, a bug of ours: the caller continues
            self.failed(what, error, then)
            return otherwise

    def failed(self, what: str, error: Exception, then: str) -> None:
        count = self.failures.get(what, 0)
        self.failures[what] = count + 1
        if count == 0:
            try:
                self._tell(f"{what} failed ({type(error).__name__}: {error}); {then}")
            except Exception:  # nobody heard it: told again next time
                self.failures[what] = 0
