"""JSON that others wrote: read with a bound on its depth, because deep nesting overflows the stack of a small thread."""

from __future__ import annotations

import json
import re

DEEPEST = 40  # levels; our own files have less than ten

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")


def parse(text: str, deepest: int = DEEPEST) -> object:
    """The value. Raises ValueError for what is no JSON, or is nested deeper than that.

    Python 3.13 does not count the depth by the thread's own stack: 256 KiB overflow, and the process is gone."""
    if text.count("[") + text.count("{") > deepest and _depth(text) > deepest:
        raise ValueError(f"nested deeper than {deepest} levels")
    return json.loads(text)


def _depth(text: str) -> int:
    depth = highest = 0
    for match in _BRACKET.finditer(_STRING.sub("", text)):
        depth += 1 if match[0] in "[{" else -1
        highest = max(highest, depth)
    return highest
