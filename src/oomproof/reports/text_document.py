"""A report of the terminal as Markdown and as a page: the same words, told once.

Such a report is blocks between empty lines. A block's first line is its title where the others are indented or a table;
a table has a line of capitals above it; ``verdict``, ``why`` and ``next`` are labels."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from oomproof import __version__
from oomproof.records import dataclass
from oomproof.reports import html_parts, markdown_parts
from oomproof.reports.redaction import Redactor
from oomproof.reports.story import when, zone

_COLUMNS = re.compile(r" {2,}")
_LABEL = re.compile(r"(verdict|why|next) {2,}(.*)")
_HEAD = re.compile(r"[A-Z][A-Z ]*(?:\([^)]*\))?")


@dataclass(frozen=True, slots=True)
class Part:
    title: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    lines: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()  # the first is the head


def parts_of(text: str) -> list[Part]:
    return [_part(block.split("\n")) for block in re.split(r"\n{2,}", text.strip("\n")) if block.strip()]


def _part(lines: list[str]) -> Part:
    labelled = [_LABEL.fullmatch(line) for line in lines]
    if all(labelled):
        return Part(labels=tuple((match[1], match[2]) for match in labelled if match))
    titled = len(lines) > 1 and not _is_head(lines[0]) and (lines[1].startswith(" ") or _is_head(lines[1]))
    title, rest = (lines[0], lines[1:]) if titled else ("", lines)
    if rest and _is_head(rest[0]):
        count = len(_COLUMNS.split(rest[0].strip()))
        rows = [tuple(_COLUMNS.split(line.strip(), maxsplit=count - 1)) for line in rest]
        # a label and its text, below a table of many columns
        below = next((at for at, row in enumerate(rows) if at and len(row) == 2 < count - 1), len(rows))
        told = tuple(map(_line, rest[below:]))
        return Part(title, (), told, tuple(row + ("",) * (count - len(row)) for row in rows[:below]))
    return Part(title, lines=tuple(map(_line, rest)))


def _line(line: str) -> str:
    """A label stands in a column of its own on a terminal only."""
    return re.sub(r"^([a-z][a-z ]*?) {2,}", r"\1: ", line.strip())


def _is_head(line: str) -> bool:
    cells = _COLUMNS.split(line.strip())
    return len(cells) > 1 and all(_HEAD.fullmatch(cell) for cell in cells)


def markdown_of(parts: list[Part], level: str = "##") -> str:
    blocks = []
    for part in parts:
        if part.title:
            blocks.append(f"{level} {markdown_parts.text(part.title)}")
        blocks += [f"**{label}** {markdown_parts.text(words)}" for label, words in part.labels]
        if part.rows:
            blocks.append(markdown_parts.table(part.rows[0], part.rows[1:]))
        if part.lines:
            lines = [f"- {markdown_parts.text(line.removeprefix('- '))}" for line in part.lines]
            blocks.append("\n".join(lines) if part.title else "\n".join(map(markdown_parts.text, part.lines)))
    return "\n\n".join(blocks)


def html_of(parts: list[Part]) -> str:
    return "\n".join(filter(None, map(_html, parts)))


def _labelled(labels: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{label}</dt><dd>{html_parts.prose(words)}</dd>" for label, words in labels)
    return f'<dl class="lines">{rows}</dl>' if rows else ""


def _html(part: Part) -> str:
    if part.labels:
        return f"<section>{_labelled(part.labels)}</section>"
    body = html_parts.table(part.rows[0], part.rows[1:]) if part.rows else ""
    if part.lines and (part.title or part.rows):
        items = "".join(f"<li>{html_parts.prose(line.removeprefix('- '))}</li>" for line in part.lines)
        body += f'<ul class="plain">{items}</ul>'
    elif part.lines:
        return "".join(f"<p>{html_parts.prose(line)}</p>" for line in part.lines)
    return (
        html_parts.section(part.title, body, long=True)
        if part.title
        else f"<section class=long>{body}</section>"
    )


def markdown_page(text: str) -> str:
    title, parts = _titled(text)
    return f"# {markdown_parts.text(title)}\n\n{markdown_of(parts)}\n\n<sub>{_foot()}</sub>\n"


def html_page(text: str) -> str:
    title, parts = _titled(text)
    # a verdict within is that of another story
    own = [part for part in parts if part.labels and part.labels[0][0] != "verdict"]
    rest = [part for part in parts if part not in own]
    labels = _labelled(label for part in own for label in part.labels)
    head = (
        f'<header class="bad"><p class="eyebrow">oomproof</p><div class="verdict"><h1>{escape(title)}</h1>'
        f"{labels}</div></header>"
    )
    return html_parts.document(title, f"{head}\n{html_of(rest)}\n<footer>{escape(_foot())}</footer>")


def _titled(text: str) -> tuple[str, list[Part]]:
    """The first thing it says, and the rest; without secrets."""
    parts = parts_of(Redactor().text(text, "report"))
    first = parts[0]
    if first.labels:
        title, parts[0] = first.labels[0][1], Part(labels=first.labels[1:])
    elif first.lines and not first.title:
        title, parts[0] = first.lines[0], Part(lines=first.lines[1:])
    else:
        title = first.title
    return title[:1].upper() + title[1:], [part for part in parts if part != Part()]


def _foot() -> str:
    import time

    return f"Written by oomproof {__version__} on {when(time.time(), date=True)} {zone()}."
