"""The effective batch that a trainer is to keep: its own, another one, or none."""

from __future__ import annotations

from oomproof.errors import USAGE, OomproofError
from oomproof.plans.plan import learning_rate_note

ANY = "any"


def wanted_effective(asked: int | str | None, configured: int) -> int | None:
    """None: whatever one pass of the largest batch makes. Raises OomproofError."""
    if asked is None:
        return configured
    if asked == ANY:
        return None
    if isinstance(asked, str):
        raise OomproofError(
            f"effective={asked!r} is no batch", 'give a whole number, None to keep it, or "any"', USAGE
        )
    return asked


def effective_note(asked: int | str | None, configured: int, now: int) -> str:
    """What another effective batch means for the learning rate, where nobody asked for that one by number."""
    return learning_rate_note(configured, now) if asked is None or asked == ANY else ""
