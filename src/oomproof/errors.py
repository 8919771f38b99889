"""One error type: it says what is wrong, what fixes it, and which status the command ends with."""

from __future__ import annotations

USAGE = 2
NOT_NOW = 75
NEVER = 69
OUR_FAILURE = 125
CANNOT_EXECUTE = 126
NOT_FOUND = 127


class OomproofError(Exception):
    """Shown to the user as one line and a hint, never as a traceback."""

    def __init__(self, message: str, hint: str = "", status: int = OUR_FAILURE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.status = status

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message
