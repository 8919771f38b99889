"""The small parts every page is made of: sections, tables, what is folded away, commands to copy, the document around them."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template

from oomproof import __version__
from oomproof.printable import printable

_PAGE = Path(__file__).with_name("page")  # .html with .css and .js in it
_WHOLE = re.compile(
    r"\S{1,14}|[-+.,/:\d]+ [\d:]+|[\d.]+ \w{1,4}"
)  # a word, a clock, a size: not broken in a table
_SIZE = re.compile(r"[\d.]+ (?:[KMGT]iB|s|min|h|d)\b")
_FLAG = re.compile(r"(?<![\w-])(?:--?[A-Za-z][\w-]*|[\d.]+e-\d+)")  # also 1e-4


def document(title: str, body: str) -> str:
    """The whole page as text: one file, and nothing in it is ever fetched."""
    template, style, script = (
        _PAGE.with_suffix(ending).read_text("utf-8") for ending in (".html", ".css", ".js")
    )
    # Second lock behind the escaping: no script but ours runs, and nothing is loaded.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {"style": style, "script": script, "digest": digest, "title": escape(title), "body": body}
    return printable(Template(template).substitute(parts, version=escape(__version__)))


def prose(text: str) -> str:
    """A sentence with commands in it: a browser breaks a line behind a hyphen, and ``--`` alone at its end is no flag."""
    return _FLAG.sub(r'<span class="whole">\g<0></span>', escape(text))


def whole_sizes(text: str) -> str:
    """A headline in which no number stands at the end of a line and its unit on the next."""
    return _SIZE.sub(r'<span class="whole">\g<0></span>', escape(text))


def section(title: str, body: str, long: bool = False) -> str:
    if not body:
        return ""
    return f"<section{' class=long' if long else ''}><h2>{escape(title)}</h2>{body}</section>"


def fold(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>" if body else ""


def command(text: str) -> str:
    """To type: with a button that copies it, which a page without a script does not show."""
    return f'<div class="command"><pre>{prose(text)}</pre><button type="button" class="copy" hidden>Copy</button></div>'


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return f'<table class="pairs">{body}</table>' if body else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """``numbers``: the columns that stand right."""

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if at in numbers else ' class=k' if tag == 'td' and _WHOLE.fullmatch(cell) else ''}>{escape(cell)}</{tag}>"
            for at, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{cells(head, "th")}</tr>{body}</table></div>' if body else ""


def shown(value: object) -> str:
    """A number as text; whatever else came in its place is no markup."""
    return escape(str(value))
