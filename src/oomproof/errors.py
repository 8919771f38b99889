"""One error type: it says what is wrong, what fixes it, and which status the command ends with."""

from __future__ import annotations

from collections.abc import Iterable

USAGE = 2
NOT_NOW = 75
NEVER = 69
OUR_FAILURE = 125
CANNOT_EXECUTE = 126
NOT_FOUND = 127
INTERRUPTED = 130

MORE_FILES = "ulimit -n 1024"  # the hint where no further file can be opened


class OomproofError(Exception):
    """Shown to the user as one line and a hint, never as a traceback."""

    def __init__(self, message: str, hint: str = "", status: int = OUR_FAILURE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.status = status

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """What is added to "unknown flag '--limti'"; nothing where no known word is like it. ``prefix``: of all of them."""
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), 1)
    return f"; did you mean {prefix + near[0]!r}?" if near else ""
