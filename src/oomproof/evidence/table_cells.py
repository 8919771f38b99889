"""The cells of tables that people have: numbers, sizes with their units, moments in the forms that clocks print."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from math import isfinite

from oomproof.units import GIB, KIB, MIB, TIB

_SIZE = re.compile(r"([0-9][0-9.,]*)\s*([kKMGT]i?B?|B|bytes)")
# of a cell: those that print MB beside a number (Grafana, docker) mean 10**6 by it; a bare letter is free's and smem's
_FACTORS = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_CLOCKS = (
    "%H:%M:%S",
    "%H:%M",
    "%I:%M:%S %p",
    "%d.%m.%Y %H:%M:%S",
    "%m/%d/%Y %H:%M:%S",
    "%a %b %d %H:%M:%S %Y",
    "%a %d %b %Y %H:%M:%S",
    "%a %d %b %Y %I:%M:%S %p",
)
_FIRST_YEARS = 1e8  # seconds since 1970: what is larger is a time of day, not of a stopwatch
_ZONE = re.compile(r"\b(?:UTC|GMT|Z)\b")
_ZONE_NAME = re.compile(r" (?!AM\b|PM\b)[A-Z]{2,5}(?= \d{4}$|$)")
_FRACTIONS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))  # nano-, micro- and milliseconds since 1970
_last_form = [_CLOCKS[0]]


def is_wall(moment: float) -> bool:
    return moment > _FIRST_YEARS


def number(cell: str, comma: str = ".") -> float | None:
    """``comma``: what a comma stands for in this table, a point or (an empty text) nothing, between thousands."""
    if "," in cell:
        is_grouped = _THOUSANDS.fullmatch(cell) is not None
        cell = cell.replace(",", "" if "." in cell or (is_grouped and not comma) else ".")
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None


def size(cell: str, unit: int = 1, comma: str = ".") -> float | None:
    """Bytes; ``unit`` where the cell has none of its own."""
    if (value := number(cell, comma)) is not None:
        return value * unit
    found = _SIZE.fullmatch(cell)
    if found is None or (value := number(found[1], comma)) is None:
        return None
    name = found[2].lower().removesuffix("bytes")
    factors = _DECIMAL if name.endswith("b") and "i" not in name else _FACTORS
    return value * factors[name[:1] if name[:1] != "b" else ""]


def has_unit(cell: str) -> bool:
    return _SIZE.fullmatch(cell) is not None


def moment(cell: str) -> float | None:
    """Seconds: since 1970 where it is a date, since midnight of a clock alone, else what the number says."""
    if (value := number(cell)) is not None:
        for largest, divisor in _FRACTIONS:
            if value > largest:
                return value / divisor
        return value
    return clock(cell)


def clock(text: str) -> float | None:
    """The same of a text that is no bare number. A zone by its name is taken for this machine's, but for UTC."""
    if len(text) > 60 or not text[:1].isalnum():
        return None
    try:  # nvidia-smi writes 2026/11/16
        return _seconds(datetime.fromisoformat(text.replace("/", "-", 2) if text[4:5] == "/" else text))
    except ValueError:
        pass
    zone = _ZONE.search(text) is not None
    plain = _ZONE_NAME.sub("", _ZONE.sub("", text)).replace("  ", " ").strip()
    for form in (*_last_form, *_CLOCKS):
        try:
            read = datetime.strptime(plain, form)
        except ValueError:
            continue
        _last_form[0] = form  # to try all of them takes ten times as long
        if read.year == 1900:
            return read.hour * 3600.0 + read.minute * 60.0 + read.second
        return _seconds(read.replace(tzinfo=UTC) if zone else read)
    return None


def _seconds(read: datetime) -> float:
    try:
        return read.timestamp()
    except (OverflowError, OSError, ValueError):
        return read.replace(tzinfo=UTC).timestamp()
