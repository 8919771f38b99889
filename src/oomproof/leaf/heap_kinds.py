"""What kind of memory grew, from how much each of a process's counters did: the agent picks its witness by it, the host its words."""

from __future__ import annotations

PYTHON, NATIVE, RETAINED, ARROW, MAPPED = "python", "native", "retained", "arrow", "mapped"
COUNTERS = ("anon", "malloc", "malloc_free", "arrow", "blocks")

_MOST = 0.5  # of the growth: what is less is not what leaks
_BLOCK = (16, 700)  # bytes of one of Python's small blocks: up to 512, in pools and arenas that are not full


def split(grown: dict[str, int | None]) -> dict[str, int] | None:
    """Bytes that each kind grew by; None where nothing grew, or the C library does not tell."""
    whole, malloc = grown.get("anon") or 0, grown.get("malloc")
    if whole <= 0 or malloc is None:
        return None
    by_kind = {NATIVE: malloc, RETAINED: grown.get("malloc_free") or 0, ARROW: grown.get("arrow") or 0}
    rest, objects = whole - sum(by_kind.values()), grown.get("blocks") or 0
    # their arenas are mapped, as other things are: as much as so many of them can take
    by_kind[PYTHON] = max(0, min(rest, objects * _BLOCK[1])) if rest >= objects * _BLOCK[0] / 2 else 0
    by_kind[MAPPED] = max(0, rest - by_kind[PYTHON])
    return by_kind


def most_of(by_kind: dict[str, int], whole: int) -> str:
    """The kind that most of it is; empty where it is of several."""
    most = max(by_kind, key=lambda kind: by_kind[kind])
    return most if by_kind[most] >= _MOST * whole else ""
