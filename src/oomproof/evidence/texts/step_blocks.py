"""Solvers and loops that print a block of lines for each step: whether a text stops inside one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from oomproof.evidence.texts.line_cleaner import clean

_NUMBER = re.compile(r"\d[\d.,:]*(?:[eE][-+]?\d+)?")
_RULE = re.compile(r"[-=+*_#~| ]*$")
_BLOCKS = 4  # that were whole, before one is called cut off
_BELOW = 2  # lines that may come next: a step that converged, or what it is short of


def stops_inside(lines: Iterable[str]) -> bool:
    """Whether the last line has opened a block each time before: below a blank line, with the same lines below it."""
    shapes = [_shape(line) for line in lines]
    while shapes and not shapes[-1]:
        shapes.pop()
    if len(shapes) < 2 or shapes[-2]:
        return False
    before = [index for index in range(1, len(shapes) - 1) if shapes[index] == shapes[-1]]
    below = {shapes[index + 1] for index in before}
    opened = all(not shapes[index - 1] for index in before)
    return len(before) >= _BLOCKS and len(below) <= _BELOW and opened and not below & {"", shapes[-1]}


def _shape(line: str) -> str:
    text = clean(line[:400]).text.strip()
    return "" if _RULE.match(text) else _NUMBER.sub("0", text)
