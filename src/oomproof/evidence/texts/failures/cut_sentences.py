"""A text that breaks off inside its last sentence: what the sentences that begin like it mean, where they all mean the same."""

from __future__ import annotations

import re
from functools import cache

from oomproof.evidence.texts.failures import RULES, FailureText, Hit, recognise
from oomproof.evidence.texts.finding import JobFacts
from oomproof.evidence.texts.line_cleaner import clean

_LEAST = 20  # characters: fewer begin too many sentences
_SHARE = 0.35  # ... of the whole
_NUMBER = re.compile(r"\d+")
_STRENGTH = 0.5


def completed(text: str, raised: str) -> Hit | None:
    """Without its figures, which would be another's. ``text`` is without stamp and level; ``raised``: the exception's type."""
    begun = _shape(text)
    if len(begun) < _LEAST or begun.endswith(":"):  # "srun: error: node17: task 0:" can go on in many ways
        return None
    meant = {}
    for shape, line in _sentences():
        if shape.startswith(begun) and _SHARE * len(shape) <= len(begun) < len(shape):
            hit = recognise(
                FailureText(line, raised if raised and line.startswith(raised) else "", "", "", "")
            )
            if hit is not None and hit.kind == "failure":
                meant[hit.cause] = hit.says
    if len(meant) != 1:
        return None
    ((cause, says),) = meant.items()
    return Hit(cause, says, _STRENGTH, facts=JobFacts(heard="cut"))


def _shape(text: str) -> str:
    return _NUMBER.sub("0", text.strip())


@cache
def _sentences() -> tuple[tuple[str, str], ...]:
    """The examples of all rows, by line."""
    lines = {line.strip() for rule in RULES for row in rule.rows for line in row.example.splitlines()}
    return tuple((_shape(clean(line).text), line) for line in sorted(lines))
