"""A log copied from a screen: lines that the screen's width broke are put together again.

Where every line begins with a stamp, what lacks one, below a line that fills the width, is the rest of that line. Elsewhere
the width must be one that screens have, and the next line begin as the rest of a sentence or a word does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from oomproof.evidence.texts.line_prefixes import strip

Numbered = tuple[int, str]

_LOOK = 1000  # lines
_NARROWEST, _WIDEST = 60, 320  # columns of a screen
_FEWEST = 2  # lines that fill it
_MOST_OF = 0.8  # lines that begin with a stamp where they should
_BROKEN = 0.6  # lines that fill the width and were longer: some have just that length
_INDENT = " " * 20  # a journal sets the further lines of one message below its first words
_MOST_PIECES = 40  # of one line: a record of a journal


class Unwrapped:
    """The lines of one text, each under the number of its first piece."""

    def __init__(self, lines: Iterable[Numbered]) -> None:
        rest = iter(lines)
        held: list[Numbered] = []
        for part in rest:
            held.append(part)
            if len(held) >= _LOOK or len(part[1]) > _WIDEST:
                break
        lines_held = [line for _, line in held]
        self.width = screen_width(lines_held)
        every: Iterator[Numbered] = chain(held, rest)
        if self.width:
            every = _joined(every, self.width, _new)
        elif width := plain_width(lines_held):
            self.width = width
            every = _joined(every, width, lambda before, line: not _goes_on(before, line))
        self._lines = every

    def __iter__(self) -> Iterator[Numbered]:
        return self._lines


def screen_width(lines: Sequence[str]) -> int:
    """The width that broke these lines; 0 where none did."""
    width = max((len(line) for line in lines), default=0)
    if not _NARROWEST <= width <= _WIDEST:
        return 0
    below = above = stamped_below = stamped_above = full = 0
    before = ""
    for line in lines:
        if not line.strip():
            continue
        stamped = _begins(line)
        if len(before) == width:
            full += 1
            below += 1
            stamped_below += stamped
        elif len(before) < width - 1:
            above += 1
            stamped_above += stamped
        before = line
    broken = below - stamped_below >= _BROKEN * below and stamped_above >= _MOST_OF * above
    return width if full >= _FEWEST and above and broken else 0


_SCREENS = (80, 100, 120, 132, 160)
_FEWEST_CHARACTERS = 8  # different ones: fewer draw a rule
_NOT_THE_REST = re.compile(
    r"\s|Traceback \(|File \"|[\[({<#>$=*|+~^`\"'-]|\d{1,3}%|[A-Z][\w.]{2,60}(?:Error|Exception|Warning)\b|\d{4}-\d\d-\d\d|[\w.-]{1,30}: "
)


def plain_width(lines: Sequence[str]) -> int:
    """The width of a screen that broke lines without stamps; 0 where none did."""
    width = max((len(line) for line in lines), default=0)
    if width not in _SCREENS:
        return 0
    full = [
        (line, after)
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
        if len(line) == width and len(set(line)) >= _FEWEST_CHARACTERS
    ]
    broken = sum(_goes_on(line, after) for line, after in full)
    others = sum(0 < len(line) < width for line in lines)
    return width if broken and broken >= _BROKEN * len(full) and others >= len(full) else 0


def _goes_on(line: str, after: str) -> bool:
    """In the middle of a word, or of a sentence."""
    if not after or _NOT_THE_REST.match(after) or _begins(after):
        return False
    if after[0] in ",.;:)]}":
        return True  # no line begins so
    return (line[-1].isalnum() or line[-1] in "_/.,=: ") and (
        after[0].islower() or after[0].isdigit() or line[-1].isalpha()
    )


def _new(before: str, line: str) -> bool:
    return _begins(line)


def _begins(line: str) -> bool:
    """With a stamp, or as a journal sets the further lines of one message."""
    return line.startswith(_INDENT) or strip(line[:200]).time is not None


def _joined(lines: Iterable[Numbered], width: int, begins: Callable[[str, str], bool]) -> Iterator[Numbered]:
    number, whole, last, pieces = 0, "", 0, 0
    for at, line in lines:
        goes_on = pieces and width - 1 <= last <= width and pieces < _MOST_PIECES
        if goes_on and line.strip() and not begins(whole, line):
            # a screen's copy loses the blank that stood in the last column
            whole += line if last == width else f" {line}"
            last, pieces = len(line), pieces + 1
            continue
        if pieces:
            yield number, whole
        number, whole, last, pieces = at, line, len(line), 1
    if pieces:
        yield number, whole
