"""Programs that print a block of lines for each step, or count at the start of each line: whether a text stops inside."""

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


_COUNTER = re.compile(r"^\W{0,6}(\d{1,9}) ?/ ?(\d{1,9})(?=\W|$)")
_COUNTED = 5  # lines that count up, before their count is believed
_SMALLEST = 10  # things to count: "1/2" is a fraction, or a part


def counter_at_end(lines: Iterable[tuple[int, str]]) -> tuple[int, int, int, str] | None:
    """(line, count, of how many, text) of the last line, where it and those before count up: ``[7953/19796] fetched``."""
    counts: list[tuple[int, int, int, str]] = []
    for number, raw in lines:
        text = clean(raw[:400]).text
        if found := _COUNTER.match(text):
            counts.append((number, int(found[1]), int(found[2]), text.strip()))
        elif text.strip():
            counts.append((number, 0, 0, ""))
    if not counts or counts[-1][2] < _SMALLEST:
        return None
    if counts[-1][1] > counts[-1][2] or counts[-1][1] == counts[-1][2] - 1:
        return None  # counted from 0, the last but one is the last
    same = [count for _, count, total, _ in counts if total == counts[-1][2]]
    rising = same == sorted(same) and len(set(same)) >= _COUNTED
    return counts[-1] if rising else None
