"""A document as a page: sections, tables, lists, what is folded away, commands to copy, the HTML around them."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from string import Template

from oomproof import __version__
from oomproof.evidence.case_file import Evidence
from oomproof.printable import printable
from oomproof.reports.document import (
    CAUSES_HEAD,
    Block,
    Causes,
    Document,
    Items,
    Labels,
    Paragraph,
    Proof,
    Section,
    Step,
    Steps,
    Table,
    causes_rows,
    foot,
    titled,
)
from oomproof.reports.story import when

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


def blocks(shown: Iterable[Block]) -> str:
    return "".join(map(_block, shown))


def _block(block: Block) -> str:
    match block:
        case Paragraph():
            return f"<p>{prose(block.text)}</p>"
        case Labels():
            rows = "".join(f"<dt>{escape(label)}</dt><dd>{prose(words)}</dd>" for label, words in block.rows)
            return f'<dl class="lines">{rows}</dl>' if rows else ""
        case Items():
            items = "".join(f"<li>{prose(text)}</li>" for text in block.texts)
            return f'<ul class="plain">{items}</ul>' if items else ""
        case Table():
            return _table(block)
        case Causes():
            bars = tuple(cause.probability for cause in block.ranked)
            return _table(Table(CAUSES_HEAD, tuple(causes_rows(block)), right=(0,), bars=bars), "causes", 1)
        case Steps():
            tag, kind = ("ol", "remedies") if block.ordered else ("ul", "plain")
            items = "".join(map(_step, block.items))
            return f'<{tag} class="{kind}">{items}</{tag}>' if items else ""
        case Proof():
            items = "".join(map(_fact, block.items))
            left_out = f"and {block.left_out} more: oomproof why --json"
            return (f'<ul class="evidence">{items}</ul>' if items else "") + (
                note(left_out) if block.left_out else ""
            )


def _table(block: Table, kind: str = "processes", bar_at: int = 0) -> str:
    """``kind``: of a table with bars, which stand in the column ``bar_at``."""

    def cell(tag: str, at: int, words: str, bar: str = "") -> str:
        whole = "k" if tag == "td" and at not in block.right and _WHOLE.fullmatch(words) else ""
        names = ["n" if at in block.right else whole, "optional" if at in block.optional else ""]
        classes = " ".join(filter(None, names))
        quoted = f' class="{classes}"' if " " in classes else f" class={classes}" if classes else ""
        return f"<{tag}{quoted}>{escape(words)}{bar}</{tag}>"

    body = ""
    for number, row in enumerate(block.rows):
        bar = (
            f'<span class="bar" style="width:{100 * block.bars[number]:.1f}%"></span>'
            if number < len(block.bars)
            else ""
        )
        cells = (cell("td", at, words, bar if at == bar_at else "") for at, words in enumerate(row))
        body += f"<tr>{''.join(cells)}</tr>"
    head = "".join(cell("th", at, name) for at, name in enumerate(block.head))
    of_kind = f' class="{kind}"' if block.bars else ""
    return f'<div class="scroll"><table{of_kind}><tr>{head}</tr>{body}</table></div>' if body else ""


def _step(step: Step) -> str:
    basis = f' <span class="basis">{escape(step.basis)}</span>' if step.basis else ""
    return f"<li>{prose(step.text)}{basis}{command(step.command) if step.command else ''}</li>"


def _fact(item: Evidence) -> str:
    clock = f' · <span class="when">{escape(when(item.time))}</span>' if item.time is not None else ""
    return (
        f'<li><div class="says">{escape(item.says)}</div><code>{escape(item.text)}</code>'
        f'<div class="source">{escape(item.source)}{clock}</div></li>'
    )


def sections(shown: Document) -> str:
    return "\n".join(map(_section, shown))


def _section(part: Section) -> str:
    body = blocks(part.blocks)
    if part.title or all(isinstance(block, Paragraph) for block in part.blocks):
        return section(part.title, body, long=True) if part.title else body
    kind = "" if isinstance(part.blocks[0], Labels) else " class=long"
    return f"<section{kind}>{body}</section>" if body else ""


def page(shown: Document) -> str:
    title, rest = titled(shown)
    own: list[tuple[str, str]] = []
    body = []
    for part in rest:  # a verdict within is that of another story
        labels = part.blocks[0].rows if isinstance(part.blocks[0], Labels) else (("verdict", ""),)
        if labels[0][0] == "verdict":
            body.append(part)
        else:
            own += labels
    head = (
        f'<header class="bad"><p class="eyebrow">oomproof</p><div class="verdict"><h1>{escape(title)}</h1>'
        f"{blocks([Labels(tuple(own))])}</div></header>"
    )
    return document(title, f"{head}\n{sections(tuple(body))}\n<footer>{escape(foot())}</footer>")


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Facts side by side, each on a line of its own."""
    body = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return f'<table class="pairs">{body}</table>' if body else ""


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'
