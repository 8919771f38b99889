"""A document as Markdown: text that shows as it was whatever a job printed, code, fences, tables, lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from oomproof.reports.document import (
    CAUSES_HEAD,
    Block,
    Causes,
    Document,
    Items,
    Labels,
    Paragraph,
    Proof,
    Steps,
    Table,
    causes_rows,
    foot,
    titled,
)
from oomproof.units import format_time


def text(words: str) -> str:
    """One line that shows as it was, whatever a job printed."""
    line = " ".join(words.split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", line)


def code(words: str) -> str:
    line = " ".join(words.split()) or " "
    longest = max((len(run) for run in re.findall(r"`+", line)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{pad}{line}{pad}{ticks}"


def fence(words: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", words)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}text\n{words}\n{ticks}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], verbatim: Sequence[int] = ()) -> str:
    """``verbatim``: columns with words of a command."""
    shown = ([_cell(code if at in verbatim else text, cell) for at, cell in enumerate(row)] for row in rows)
    lines = [f"| {' | '.join(cells)} |" for cells in shown]
    if not lines:
        return ""
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines])


def _cell(form: Callable[[str], str], words: str) -> str:
    """The bar would split it, in code too."""
    return re.sub(r"(?<!\\)\|", r"\\|", form(words)) or " "


def blocks(shown: Iterable[Block]) -> str:
    return "\n\n".join(filter(None, map(_block, shown)))


def _block(block: Block) -> str:
    match block:
        case Paragraph():
            return text(block.text)
        case Labels():
            return "\n".join(f"- **{label}** {text(words)}" for label, words in block.rows)
        case Items():
            return "\n".join(f"- {text(words)}" for words in block.texts)
        case Table():
            return table([text(name) for name in block.head], block.rows, block.code)
        case Causes():
            return table(CAUSES_HEAD, causes_rows(block))
        case Steps():
            items = []
            for number, step in enumerate(block.items, 1):
                mark = f"{number}." if block.ordered else "-"
                basis = f" ({text(step.basis)})" if step.basis else ""
                command = f"  \n{' ' * len(mark)} {code(step.command)}" if step.command else ""
                items.append(f"{mark} {text(step.text)}{basis}{command}")
            return "\n".join(items)
        case Proof():
            items = []
            for item in block.items:
                clock = (
                    f" ({format_time(item.time, date=False, zone=False)})" if item.time is not None else ""
                )
                items.append(f"- {text(item.source)}{clock}: {code(item.text)}  \n  {text(item.says)}")
            items += [f"- and {block.left_out} more: `oomproof why --json`"] if block.left_out else []
            return "\n".join(items)


def sections(document: Document, level: str = "##") -> str:
    return "\n\n".join(
        (f"{level} {text(part.title)}\n\n" if part.title else "") + blocks(part.blocks) for part in document
    )


def page(document: Document) -> str:
    title, rest = titled(document)
    return f"# {text(title)}\n\n{sections(rest)}\n\n<sub>{foot()}</sub>\n"
