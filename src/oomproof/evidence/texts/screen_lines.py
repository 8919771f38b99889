"""A system's log copied from a screen: lines that the screen's width broke are put together again.

Only where every line begins with a stamp: then what lacks one, below a line that fills the width, is the rest of that line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
        self.width = screen_width([line for _, line in held])
        every: Iterator[Numbered] = chain(held, rest)
        self._lines = _joined(every, self.width) if self.width else every

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


def _begins(line: str) -> bool:
    """With a stamp, or as a journal sets the further lines of one message."""
    return line.startswith(_INDENT) or strip(line[:200]).time is not None


def _joined(lines: Iterable[Numbered], width: int) -> Iterator[Numbered]:
    number, whole, last, pieces = 0, "", 0, 0
    for at, line in lines:
        goes_on = pieces and width - 1 <= last <= width and pieces < _MOST_PIECES
        if goes_on and line.strip() and not _begins(line):
            # a screen's copy loses the blank that stood in the last column
            whole += line if last == width else f" {line}"
            last, pieces = len(line), pieces + 1
            continue
        if pieces:
            yield number, whole
        number, whole, last, pieces = at, line, len(line), 1
    if pieces:
        yield number, whole
