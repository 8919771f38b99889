"""Lines of a screen with their styles: colours on a terminal, plain text elsewhere; folded to its width, commands never broken."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable

from oomproof.printable import coloured_stream, printable, terminal_columns, wants_colour

_PIPE_WIDTH = 110
_LABEL = 13  # width of the first column
_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}

Span = tuple[str, str]  # text, style: words of _COLOURS; on the live screen what it stands for
Line = list[Span]


def print_lines(screen: Callable[[int, bool], list[Line]]) -> None:
    """``screen(width, bars)``, for whoever reads: colours and bars on a terminal, plain text into a pipe or with NO_COLOR."""
    if not wants_colour(sys.stdout):
        width = terminal_columns() if sys.stdout.isatty() else _PIPE_WIDTH
        print("\n".join(plain(line) for line in screen(width, False)))
        return
    lines = screen(terminal_columns(), True)
    coloured_stream(sys.stdout).write("".join(f"{_coloured(line)}\n" for line in lines))


def plain(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip()


def _coloured(line: Line) -> str:
    parts = []
    for text, style in line:
        codes = ";".join(_COLOURS[word] for word in style.split())
        parts.append(f"\x1b[{codes}m{printable(text)}\x1b[0m" if codes else printable(text))
    return "".join(parts)


def fact(label: str, text: str, style: str = "", column: int = _LABEL) -> Line:
    return [(f"{label:<{column}}", "bold"), (text, style)]


def folded_fact(line: Line, width: int) -> Iterable[Line]:
    """A fact that is too long for its line continues below, under its text."""
    (label, bold), (text, style) = line
    for number, part in enumerate(
        textwrap.wrap(text, max(30, width - 1 - len(label)), break_on_hyphens=False)
    ):
        yield [(label if number == 0 else " " * len(label), bold), (part, style)]


def wrapped(head: str, text: str, width: int, style: str, indent: str = "  ") -> Iterable[Line]:
    """``head`` in its style, then the text, folded between words."""
    folded = textwrap.wrap(head + text, max(40, width - 1), subsequent_indent=indent, break_on_hyphens=False)
    first = folded[0] if folded else head
    yield [(first[: len(head)], style), (first[len(head) :], "")]
    for line in folded[1:]:
        yield [(line, "")]
