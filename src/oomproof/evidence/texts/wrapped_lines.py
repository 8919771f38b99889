"""A line that a terminal, a mail program or a form broke in two: the whole again, and what it means then."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oomproof.evidence.texts.failures import Hit
from oomproof.evidence.texts.line_cleaner import Line
from oomproof.records import dataclass, replace

_NARROWEST = 70  # characters: terminals and mails break no shorter lines
_WIDEST = 250  # … and longer ones are a program's own
_PIECES = 4
_LONGEST = 1000
_SENTENCE = 4
_ENDS = (".", ":", ";", "!", "?")


class Edge:
    """The width at which a terminal broke this text: several lines reach it and none goes beyond. 0 where none did."""

    __slots__ = ("_reached", "_widest")

    def __init__(self) -> None:
        self._widest = _NARROWEST
        self._reached = 0

    def look(self, widths: Sequence[int]) -> None:
        widest = max(widths)
        if widest > self._widest:
            self._widest, self._reached = min(widest, _WIDEST + 1), 0
        if widest == self._widest:
            self._reached += widths.count(widest)

    @property
    def width(self) -> int:
        return self._widest if self._reached > 1 and self._widest <= _WIDEST else 0


@dataclass(frozen=True, slots=True)
class WrappedLine:
    """The pieces so far of a line that may go on in the next one."""

    number: int
    line: Line
    text: str
    hit: Hit | None  # what the pieces so far were taken for
    pieces: int = 1


def wrapped_line(number: int, line: Line, hit: Hit | None, edge: int) -> WrappedLine | None:
    """None where the line says all it has to say."""
    text = line.text.strip()
    at_edge = line.width == edge
    if line.width < _NARROWEST or (hit is None and text.endswith(_ENDS) and not at_edge):
        return None
    cut = hit is not None and hit.kind == "summary" and at_edge  # perhaps inside its pid
    if hit is not None and not cut and not _has_more(hit):
        return None
    return WrappedLine(number, line, text, hit)


def go_on(before: WrappedLine, text: str, hit: Hit) -> WrappedLine | None:
    """The whole so far may still be the first part of a longer one."""
    return replace(before, text=text, hit=hit, pieces=before.pieces + 1) if _has_more(hit) else None


def _has_more(hit: Hit) -> bool:
    memory = hit.cause.endswith(("-oom", "-memory-error")) and hit.kind == "failure"
    return memory and figures_told(hit) < _SENTENCE


def figures_told(hit: Hit) -> int:
    """How many of a GPU's figures the pieces tell; a whole sentence tells three and more."""
    gpu = hit.gpu
    told = (
        (gpu.total, gpu.free, gpu.requested, gpu.allocated, gpu.reserved_unallocated)
        if gpu is not None
        else ()
    )
    return sum(figure is not None for figure in told)


def join_wrapped(
    before: WrappedLine, number: int, line: Line, edge: int, meaning: Callable[[str, str], Hit | None]
) -> tuple[str, Hit] | WrappedLine | None:
    """(the whole, what it means), the pieces if more may follow, None if they do not belong together.
    A line that reaches the ``edge`` may be broken inside a word."""
    rest = line.text.strip()
    at_edge = before.line.width == edge
    same = line.tag == before.line.tag or (at_edge and not line.tag)
    if number != before.number + before.pieces or not rest or not same or line.level:
        return None  # a line with a level of its own begins anew
    if not (at_edge or before.hit is not None or rest[:1].islower()):
        return None
    whole = ""
    for glue in ("", " ") if at_edge and not before.line.blank else (" ", ""):
        whole = f"{before.text}{glue}{rest}"
        hit = meaning(whole, before.line.level)
        if hit is not None and _says_more(before.hit, hit, glue):
            return whole, hit
    if before.pieces >= _PIECES or len(whole) > _LONGEST or not (before.hit or line.width == edge):
        return None
    return replace(before, line=replace(before.line, blank=line.blank), text=whole, pieces=before.pieces + 1)


def _says_more(old: Hit | None, new: Hit, glue: str) -> bool:
    if old is None:
        return new.kind == "failure" or (new.kind == "summary" and not glue)
    if old.kind == "summary":
        return new.cause == old.cause and bool(new.pids) and new.pids != old.pids and not glue
    if new.kind == "talk":  # "ran out of memory trying to allocate" / "… this is not a failure"
        return True
    return new.gpu is not None and new.gpu.total is not None and figures_told(new) > figures_told(old)
