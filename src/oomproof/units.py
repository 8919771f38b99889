"""Bytes and seconds inside, words at the edge."""

from __future__ import annotations

import re

from oomproof.errors import USAGE, OomproofError

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
_UNITS = {"": 1, "B": 1, "K": KIB, "M": MIB, "G": GIB, "T": TIB}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([KMGT]?)(?:I?B)?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """``20G`` is 20 GiB; ``1.5g``, ``512MiB`` and plain bytes work too."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise OomproofError(
            f"cannot read {text!r} as a size",
            "write a number and a unit, such as 20G, 512M or 1.5T (20G is 20 GiB)",
            USAGE,
        )
    return int(float(match[1]) * _UNITS[match[2].upper()])


def format_size(size: int | float | None) -> str:
    """The size as people say it: ``11.2 GiB``, ``380 MiB``."""
    if size is None:
        return "?"
    sign, size = ("-", -size) if size < 0 else ("", size)
    for unit, name in ((TIB, "TiB"), (GIB, "GiB")):
        if size >= unit:
            return f"{sign}{size / unit:.1f} {name}"
    if size >= MIB:
        return f"{sign}{size / MIB:.0f} MiB"
    if size >= KIB:
        return f"{sign}{size / KIB:.0f} KiB"
    return f"{sign}{size:.0f} B"


def format_duration(seconds: float | None) -> str:
    """``45 s``, ``12 min``, ``3 h 05``, ``8 d``: as exact as a person needs."""
    if seconds is None:
        return "?"
    if seconds > 1e9:  # also infinity: a growth of almost nothing
        return "years"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d}" if hours < 48 else f"{hours // 24} d"
