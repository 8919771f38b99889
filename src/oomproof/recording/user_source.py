"""The source of the user's code, as it was when the run began."""

from __future__ import annotations

import os
import stat

_LONGEST = 4 << 20  # characters


def user_source(path: str, before: float) -> str | None:
    """Its text; None where it cannot be read, is no plain file, or was changed since. ``before``: when the run began, in
    seconds since 1970."""
    try:
        status = os.stat(path)
        if status.st_mtime > before or not stat.S_ISREG(status.st_mode):
            return None
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_LONGEST)
    except (OSError, ValueError, MemoryError):
        return None
