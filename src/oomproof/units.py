"""Bytes and seconds inside, words at the edge."""

from __future__ import annotations

import math
import re
import time

from oomproof.errors import USAGE, OomproofError

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
_UNITS = {"": 1, "B": 1, "K": KIB, "M": MIB, "G": GIB, "T": TIB}
_LARGEST = 1 << 62  # bytes; what is larger is no size of memory, and SQLite could not keep it
_SINCE_BOOT = 1e8  # seconds: a smaller time is since boot, not since 1970
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([KMGT]?)(?:I?B)?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """``20G`` is 20 GiB; ``1.5g``, ``512MiB`` and plain bytes work too."""
    match = _SIZE.fullmatch(text)
    size = float(match[1]) * _UNITS[match[2].upper()] if match else math.inf
    if size > _LARGEST:  # also what float() makes of four hundred digits: infinity
        raise OomproofError(
            f"cannot read {text if len(text) <= 40 else text[:40] + '…'!r} as a size",
            "write a number and a unit, such as 20G, 512M or 1.5T (20G is 20 GiB)",
            USAGE,
        )
    return int(size)


def parse_gpu_need(text: str) -> tuple[int, int | None]:
    """``12G`` or ``12G:1`` -> (bytes, index or None)."""
    size, colon, index = text.partition(":")
    if colon and not re.fullmatch("[0-9]{1,6}", index):
        raise OomproofError(
            f"cannot read {text!r} as a GPU need", "write SIZE or SIZE:INDEX, such as 12G:0", USAGE
        )
    return parse_size(size), int(index) if colon else None


def parse_duration(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``30m``, ``2h``, ``1.5d``, ``1h30m``."""
    units = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(min|[smhd]?)\s*", text.lower())
    seconds = sum(float(number) * units[unit] for number, unit in parts)
    whole = "".join(f"{number}{unit}" for number, unit in parts)
    if not parts or whole != re.sub(r"\s", "", text.lower()) or seconds > 1e9:
        raise OomproofError(f"cannot read {text!r} as a time", "write 90s, 30m, 2h or 1d", USAGE)
    return seconds


def format_size(size: int | float | None) -> str:
    """The size as people say it: ``11.2 GiB``, ``380 MiB``."""
    if size is None:
        return "?"
    sign, size = ("-", -size) if size < 0 else ("", size)
    if size < KIB:
        return f"{sign}{size:.0f} B"
    # what would be rounded up to 1024 of a unit is one of the next
    for unit, name, digits in ((KIB, "KiB", 0), (MIB, "MiB", 0), (GIB, "GiB", 1)):
        number = f"{size / unit:.{digits}f}"
        if float(number) < KIB:
            return f"{sign}{number} {name}"
    return f"{sign}{size / TIB:.1f} TiB"


def format_exact(size: float) -> str:
    """``2.1 MiB``: with a digit after the point where there are few before it, for figures that readers multiply."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}" if size < 20 * unit else f"{size / unit:.0f} {name}"
    return f"{size:.0f} B"


def format_rate(bytes_per_second: float) -> str:
    """``12 MiB/min``: in the time that gives a number one can read."""
    for seconds, name in ((1, "s"), (60, "min"), (3600, "h")):
        if bytes_per_second * seconds >= MIB:
            return f"{format_exact(bytes_per_second * seconds)}/{name}"
    return f"{format_exact(bytes_per_second * 86400)}/day"


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


def format_span(low: str, high: str) -> str:
    """``9.1 s to 9.7 s``; one figure where both read the same."""
    return low if low == high else f"{low} to {high}"


def format_time(wall: float | None, *, date: bool = True, zone: bool = True) -> str:
    """``2026-11-03 04:12:07 UTC+05:30``: local, with its zone. A kernel's uptime, as dmesg prints it, is no clock."""
    if wall is None:
        return ""
    if wall < _SINCE_BOOT:
        return f"{wall:.1f} s after boot"
    clock = time.strftime("%F %T" if date else "%T", time.localtime(wall))
    return f"{clock} {format_zone(wall)}" if zone else clock


def format_zone(wall: float | None = None) -> str:
    """The zone of a local time: ``UTC``, ``UTC+05:30``."""
    offset = time.strftime("%z", time.localtime(wall))
    return f"UTC{offset[:3]}:{offset[3:]}" if offset.strip("+-0") else "UTC"


def sizes_json(record: object, *names: str) -> dict[str, int | None]:
    """Sizes of a record as JSON has them: ``use_bytes`` for ``use``."""
    return {f"{name}_bytes": getattr(record, name) for name in names}
