"""A text that breaks off inside its last sentence: what the sentences that begin like it mean, where they all mean the same."""

from __future__ import annotations

import re
from functools import cache

from oomproof.causes import cause_of
from oomproof.evidence.texts.failures import RULES, FailureText, Hit, recognise
from oomproof.evidence.texts.finding import JobFacts
from oomproof.evidence.texts.line_cleaner import clean

_LEAST = 20  # characters: fewer begin too many sentences
_ANCHOR = 8  # ... of the words that tell it; of these half must stand there: a path or a program's name before them tells nothing
_TOLD = 10  # ... at least
_MEMORY = re.compile(r"(?i)memor|alloc|oom|space|heap|quota|exhaust")
# of an error's code each digit tells
_NUMBER = re.compile(r"(?<!error=)(?<!Code )(?<!\(-)(?<!\d)\d+")
_STRENGTH = 0.5


def completed(text: str, raised: str) -> Hit | None:
    """Without its figures, which would be another's. ``text`` is without stamp and level; ``raised``: the exception's type."""
    begun = _shape(text)
    if len(begun) < _LEAST or begun.endswith(":"):
        return None
    meant = set()
    for shape, told_at, line in _sentences():
        if told_at <= len(begun) < len(shape) and shape.startswith(begun):
            hit = recognise(
                FailureText(line, raised if raised and line.startswith(raised) else "", "", "", "")
            )
            if hit is not None and hit.kind == "failure":
                meant.add(hit.cause)
    if len(meant) != 1:
        return None
    (cause,) = meant
    if cause_of(cause).memory and not _MEMORY.search(begun):
        return None  # any error of that library begins so
    return Hit(cause, f"cut off: {cause_of(cause).label}", _STRENGTH, facts=JobFacts(heard="cut"))


def _shape(text: str) -> str:
    return _NUMBER.sub("0", text.strip())


@cache
def _sentences() -> tuple[tuple[str, int, str], ...]:
    """(shape, how much of it says what it is, line) of the rows' examples."""
    found = set()
    for row in (row for rule in RULES for row in rule.rows if len(row.anchor) >= _ANCHOR):
        for line in row.example.splitlines():
            shape, anchor = _shape(clean(line).text), _shape(row.anchor)
            if (at := shape.find(anchor)) >= 0:
                found.add((shape, at + min(len(anchor), max(_TOLD, (len(anchor) + 1) // 2)), line.strip()))
    return tuple(sorted(found))
