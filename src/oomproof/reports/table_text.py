"""A table that fits its terminal: columns are cut or left out by their weight, and a cell is one line whatever it holds."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence

from oomproof import printable as printing
from oomproof.printable import coloured_stream, one_line, printable, terminal_columns, wants_colour

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


Paint = Callable[[int, int, str], str]  # row, column and padded cell → the same with its colour


def table(
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    *,
    shrink: Mapping[int, int] | None = None,
    drop: Sequence[int] = (),
    right: Sequence[int] = (),
    paint: Paint | None = None,
) -> list[str]:
    """``shrink``: column → the least it may have, in the order in which they give way. ``drop``: columns that go when
    that is not enough, first first. The first row is the heading."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    columns = list(range(len(cells[0])))
    widths = _fitted(cells, columns, width, shrink or {})
    for column in drop:
        if width is None or _total(widths) <= width:
            break
        columns.remove(column)
        widths = _fitted(cells, columns, width, shrink or {})
    lines = []
    for number, row in enumerate(cells):
        parts = []
        for column in columns:
            text, size = cut(row[column], widths[column]), widths[column]
            last = column == columns[-1] and column not in right
            text = text if last else text.rjust(size) if column in right else text.ljust(size)
            parts.append(paint(number, column, text) if paint else text)
        lines.append("  ".join(parts).rstrip())
    return lines


def _fitted(
    cells: list[list[str]], columns: list[int], width: int | None, shrink: Mapping[int, int]
) -> dict[int, int]:
    widths = {column: max(len(row[column]) for row in cells) for column in columns}
    for column, least in shrink.items():
        if width is not None and column in widths and (over := _total(widths) - width) > 0:
            widths[column] = max(min(least, widths[column]), widths[column] - over)
    return widths


def _total(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1)


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def folded_line(line: str, width: int) -> list[str]:
    """A line of a report as it stands, or below itself: under the text behind its label or its dash."""
    if len(line) <= width:
        return [line]
    head = re.match(r"\s*(?:[a-z]+ {2,}|- )?", line)
    at = head.end() if head is not None else 0
    return folded(line[:at], line[at:], width)


def folded(head: str, text: str, width: int) -> list[str]:
    """``head`` and the text behind it, on lines of that width; what follows stands under the text's beginning."""
    return printing.folded(
        one_line(text), max(width, len(head) + 20), head, " " * len(head), break_long_words=True
    )
