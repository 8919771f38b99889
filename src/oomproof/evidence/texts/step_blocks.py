"""Programs that print a block of lines for each step, or count in each line: whether a text stops inside."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from oomproof.evidence.texts.line_cleaner import clean

_NUMBER = re.compile(r"\d[\d.,:]*(?:[eE][-+]?\d+)?")
_RULE = re.compile(r"[-=+*_#~| ]*$")
_BLOCKS = 4  # that were whole, before one is called cut off
_BELOW = 2  # lines that may come next: a step that converged, or what it is short of


def stops_inside(lines: Iterable[str]) -> bool:
    """Whether the last line has opened a block each time before: below a blank line, with the same lines below it."""
    shapes = [shape_of(line) for line in lines]
    while shapes and not shapes[-1]:
        shapes.pop()
    if len(shapes) < 2 or shapes[-2]:
        return False
    before = [index for index in range(1, len(shapes) - 1) if shapes[index] == shapes[-1]]
    below = {shapes[index + 1] for index in before}
    opened = all(not shapes[index - 1] for index in before)
    return len(before) >= _BLOCKS and len(below) <= _BELOW and opened and not below & {"", shapes[-1]}


def shape_of(line: str) -> str:
    """A line with 0 for each of its figures; "" for a rule."""
    text = clean(line[:400]).text.strip()
    return "" if _RULE.match(text) else _NUMBER.sub("0", text)


# "100/19888", "17 of 250": no part of a date, a path, a version or a fraction of figures
_PAIR = re.compile(
    r"(?<![\w./:,-])(\d{1,9}) ?(?:/|of) ?(\d{1,9})(?![\w./]|:\d|-\d| ?(?:[KMGT]i?B?|B|W|°|C|MHz|%)(?:\W|$))"
)
# … nor what was got right, or is full
_NO_COUNT = re.compile(
    r"(?i)\b(?:acc|accuracy|correct|scores?|passed|hits?|precision|recall|f1|memory|mem|used?|usage|rated|disk|power|solved|wins?)\b[^\d]{0,20}$"
)
_COUNTED = 5  # different counts that rise, before they are believed
_FROM_THE_START = 2  # that follow one another from 0 or 1 on, at the start of their lines
_SMALLEST = 10  # things to count: "1/2" is a fraction, or a part
_TAIL = 400  # characters of a line's end


class Counter(NamedTuple):
    line: int
    step: int
    total: int
    text: str


def counter_at_end(lines: Iterable[tuple[int, str]]) -> Counter | None:
    """The last count that a log's lines tell, wherever in them it stands and whatever is said beside it:
    ``[7953/19796] fetched``, ``TRAIN 100/1988 200/1988``. Those of the same total must rise, round after round."""
    told = [
        Counter(number, int(pair[1]), int(pair[2]), text)
        for number, raw in lines
        for text in (clean(raw[-_TAIL:]).text.strip(),)
        for pair in _PAIR.finditer(text)
        if _NO_COUNT.search(text[: pair.start()]) is None
    ]
    if not told or told[-1].total < _SMALLEST:
        return None
    rounds: list[list[Counter]] = [[]]
    for count in told:
        if count.total != told[-1].total:
            continue
        if rounds[-1] and count.step < rounds[-1][-1].step:
            rounds.append([])
        if not rounds[-1] or count.step > rounds[-1][-1].step:
            rounds[-1].append(count)
    last, whole = rounds[-1], [_is_out(round_) for round_ in rounds[:-1]]
    if not all(whole) or _is_out(last):
        return None
    few = _FROM_THE_START if _from_the_start(last) or whole else _COUNTED
    return last[-1] if len(last) >= few else None


def _is_out(counts: Sequence[Counter]) -> bool:
    """Counted from 0, the last but one is the last; where every hundredth is told, 1200 of 1264 is."""
    last = counts[-1]
    stride = last.step - counts[-2].step if len(counts) > 1 else 1
    return last.step + max(stride, 1) >= last.total


def _from_the_start(counts: Sequence[Counter]) -> bool:
    follow = [told.step for told in counts] in (list(range(len(counts))), list(range(1, len(counts) + 1)))
    return follow and all(re.match(rf"\W*{told.step}\b", told.text) for told in counts)
