"""The run folder's JSON files, read as they are found: absent, cut in half or malformed is a value."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from oomproof.recording.json_text import parse

_MOST = 4 << 20  # none of these files grows beyond a few KiB; a runaway one must not eat memory


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MOST).decode("utf-8", "replace")


def load(path: Path) -> tuple[dict[str, Any], str | None]:
    """The object in the file, and why it is empty if it is."""
    try:
        value = parse(_text(path))
    except OSError as error:
        return {}, f"{path.name}: {error.strerror}"
    except ValueError:
        return {}, f"{path.name} is damaged"
    return (value, None) if isinstance(value, dict) else ({}, f"{path.name} is damaged")


def load_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a .jsonl file; lines that are none (the last one cut short by a crash) are left out."""
    try:
        text = _text(path)
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        try:
            value = parse(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def part(value: dict[str, Any], key: str) -> dict[str, Any]:
    inner = value.get(key)
    return inner if isinstance(inner, dict) else {}


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
