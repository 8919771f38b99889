"""Amounts of memory as libraries print them, in bytes."""

from __future__ import annotations

import re

# GB is 2**30 here: PyTorch, MPS, TensorFlow and Ray divide by 1024 whichever unit they print.
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50, "E": 60}
SIZE = r"((?<!\d)\d[\d,]{0,24}(?:\.\d{0,12})?) ?((?:[KMGTPE]i?)?B|[Bb]ytes)\b"  # bounded: a text may be all digits


def amount(number: str, unit: str) -> int | None:
    """``amount("14.75", "GiB")``; None where it is not a size."""
    power = 0 if unit.lower() == "bytes" else _UNITS.get(unit[:1].upper() if unit[:1] != "B" else "")
    try:
        return None if power is None else round(float(number.replace(",", "")) * (1 << power))
    except (ValueError, OverflowError):
        return None


def size_after(pattern: re.Pattern[str], text: str) -> int | None:
    """``pattern`` holds SIZE as its first two groups."""
    match = pattern.search(text)
    return amount(match[1], match[2]) if match else None
