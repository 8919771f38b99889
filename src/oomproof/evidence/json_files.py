"""Values of JSON that may hold anything, by type: what is of another type is absent."""

from __future__ import annotations

import math
from typing import Any


def part(value: dict[str, Any], key: str) -> dict[str, Any]:
    inner = value.get(key)
    return inner if isinstance(inner, dict) else {}


def strings(value: dict[str, Any], key: str) -> dict[str, str]:
    return {name: text for name, text in part(value, key).items() if isinstance(text, str)}


def integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if math.isfinite(value) else None


def number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def string(value: object) -> str | None:
    return value if isinstance(value, str) else None
