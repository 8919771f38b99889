"""What a report says, as sections of blocks: facts without a layout. Also the renderer for the terminal; `markdown_parts`
and `html_parts` have the other two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from oomproof import __version__
from oomproof.causes import cause_of
from oomproof.diagnosis.verdict import RankedCause
from oomproof.evidence.case_file import Evidence
from oomproof.printable import one_line
from oomproof.records import dataclass
from oomproof.reports.redaction import Redactor
from oomproof.reports.table_text import cut, table
from oomproof.reports.verdict_text import hanging, wrapped
from oomproof.units import format_time

_LABEL = 9  # width of the first column, at least
CAUSES_HEAD = ("probability", "cause", "what would settle it")


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str


@dataclass(frozen=True, slots=True)
class Labels:
    """Label and text: verdict, why, next; facts of one thing."""

    rows: tuple[tuple[str, str], ...]
    commands: tuple[str, ...] = ()  # in the texts: a line each where the terminal is too narrow


@dataclass(frozen=True, slots=True)
class Items:
    texts: tuple[str, ...]
    bullet: str = ""
    one_line: bool = False  # cut, not folded, where the terminal is too narrow


@dataclass(frozen=True, slots=True)
class Table:
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()  # columns of numbers
    shrink: Mapping[int, int] | None = None  # as in `table_text.table`
    drop: Sequence[int] = ()
    optional: tuple[int, ...] = ()  # columns that a page leaves out on a phone
    bars: tuple[float, ...] = ()  # of each row a share, drawn below its first cell
    code: tuple[int, ...] = ()  # columns with words of a command


@dataclass(frozen=True, slots=True)
class Step:
    text: str
    basis: str = ""
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Steps:
    items: tuple[Step, ...]
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Proof:
    items: tuple[Evidence, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Causes:
    ranked: tuple[RankedCause, ...]


Block = Paragraph | Labels | Items | Table | Steps | Proof | Causes


@dataclass(frozen=True, slots=True)
class Section:
    """Without a title, what stands between two empty lines."""

    title: str
    blocks: tuple[Block, ...]
    indent: str = "  "


Document = tuple[Section, ...]


def section(*blocks: Block, title: str = "") -> Section:
    return Section(title, blocks)


def listed(title: str, texts: Iterable[str], bullet: str = "", one_line: bool = False) -> Document:
    """A section of lines, where there are any."""
    items = Items(tuple(texts), bullet, one_line)
    return (Section(title, (items,)),) if items.texts else ()


def terminal(document: Document, width: int) -> str:
    return "\n\n".join("\n".join(_section_lines(part, width)) for part in document)


def _section_lines(part: Section, width: int) -> list[str]:
    lines = wrapped(part.title, "", width, "  ") if part.title else []
    for block in part.blocks:
        lines += _lines(block, part.indent if part.title else "", width)
    return lines


def _lines(block: Block, indent: str, width: int) -> list[str]:
    match block:
        case Paragraph():
            return wrapped(one_line(block.text), indent, width, indent)
        case Labels():
            column = max(_LABEL, *(len(label) + 2 for label, _ in block.rows))
            heads = (f"{indent}{label:{column}}" for label, _ in block.rows)
            return [
                line
                for head, row in zip(heads, block.rows, strict=True)
                for line in hanging(head, row[1], width, block.commands)
            ]
        case Items():
            head = indent + block.bullet
            if block.one_line:
                return [cut(head + text, width) for text in block.texts]
            return [line for text in block.texts for line in hanging(head, one_line(text), width)]
        case Table():
            fitted = table(
                (block.head, *block.rows), width - len(indent), shrink=block.shrink, drop=block.drop, right=block.right
            )  # fmt: skip
            return [indent + line for line in fitted]
        case Steps():
            lines = []
            for step in block.items:
                basis = f" [{step.basis}]" if step.basis else ""
                lines += wrapped(f"- {step.text}{basis}", indent, width)
                lines += [f"{indent}    {step.command}"] if step.command else []
            return lines
        case Proof():
            lines = []
            for item in block.items:
                when = format_time(item.time)
                lines += wrapped(f"{when}{', ' if when else ''}{item.source}: {item.text}", indent, width)
                lines += wrapped(f"= {item.says}", f"{indent}    ", width)
            return lines
        case Causes():
            lines = []
            for cause in block.ranked:
                lines.append(f"{indent}{cause.probability:4.0%}  {cause_of(cause.cause).title}")
                lines += wrapped(f"test: {cause.test}", f"{indent}      ", width) if cause.test else []
            return lines


def causes_rows(block: Causes) -> list[tuple[str, str, str]]:
    return [(f"{cause.probability:.0%}", cause_of(cause.cause).title, cause.test) for cause in block.ranked]


def titled(document: Document) -> tuple[str, Document]:
    """The first thing a document says, and the rest; without secrets."""
    masked = Redactor().record(document, "report")
    head = masked[0].blocks[0]
    if isinstance(head, Labels):
        title, left = head.rows[0][1], (Labels(head.rows[1:]), *masked[0].blocks[1:])
    elif isinstance(head, Paragraph):
        title, left = head.text, masked[0].blocks[1:]
    else:
        return masked[0].title, masked
    rest = (section(*left), *masked[1:]) if left else masked[1:]
    return title[:1].upper() + title[1:], rest


def foot() -> str:
    import time

    return f"Written by oomproof {__version__} on {format_time(time.time())}."
