"""A verdict in three lines, for the end of a run; `verdict_blocks` has all of it, with its evidence."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

from oomproof.diagnosis.verdict import Verdict
from oomproof.printable import folded, printable, wants_colour

COLOURS = {"good": "32", "bad": "31", "ours": "33"}
_LABEL = " " * 9
_NARROW = 40  # columns: below, a terminal's own wrapping reads better


def three_lines(verdict: Verdict, *, colour: bool = False, width: int | None = None) -> str:
    """verdict / why / next: a line each for a log, which keeps its lines whole; wrapped for a terminal of a width."""
    headline = verdict.headline if verdict.kind.good else f"{verdict.headline} ({verdict.certainty})"
    label, why = (
        printable(_labelled(name, text, width))
        for name, text in (("verdict", headline), ("why", verdict.why))
    )
    following = printable(_labelled("next", verdict.next, width, _commands(verdict)))
    if colour:
        label = _coloured(label, verdict.kind.tone)
    return "\n".join((label, why, following))


def at_end(verdict: Verdict, stream: TextIO, verbosity: int = 0, following: bool = True) -> str:
    """What a run that has ended says on this stream: a line when all is well, three when not, nothing when quiet and not of memory.
    ``following``: with what to do next, unless that is being done."""
    kind = verdict.kind
    if verbosity < 0 and not (kind.memory or kind.stopped_by == "guard"):
        return ""
    if verbosity < 1 and verdict.all_well:
        return printable(f"oomproof: finished: {_line(verdict.why)}")
    lines = three_lines(verdict)
    lines = lines if following else "\n".join(lines.split("\n")[:2])
    return fitted(lines, stream, kind.tone, _commands(verdict))


def _commands(verdict: Verdict) -> list[str]:
    return [step.command for step in verdict.next_steps if step.command]


def fitted(lines: str, stream: TextIO, tone: str = "", commands: Sequence[str] = ()) -> str:
    """The three lines for this stream: wrapped under their labels on a terminal, the verdict in the colour of its tone;
    whole in a file or a pipe. What is coloured goes to ``coloured_stream``."""
    try:
        width = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):
        return lines
    parts = lines.splitlines()
    if width >= _NARROW:
        parts = ["\n".join(wrapped(line, "", width, _LABEL, commands)) for line in parts]
    if tone and parts and wants_colour(stream):
        parts[0] = _coloured(parts[0], tone)
    return "\n".join(parts)


def _coloured(text: str, tone: str) -> str:
    return f"\x1b[1;{COLOURS[tone]}m{text}\x1b[0m"


def _labelled(label: str, text: str, width: int | None, commands: Sequence[str] = ()) -> str:
    head = f"{label:{len(_LABEL)}}"
    return "\n".join(hanging(head, text, width, commands)) if width else head + _line(text)


def hanging(head: str, text: str, width: int, commands: Sequence[str] = ()) -> list[str]:
    """A text on lines of that width, all of it below its beginning."""
    return wrapped(head + _line(text), "", width, " " * len(head), commands)


def _line(text: str) -> str:
    """On one line; blanks within stay: in a command they may be a program's indentation."""
    return " ".join(line.strip() for line in text.replace("\t", " ").splitlines() if line.strip())


def wrapped(
    text: str, indent: str, width: int, hanging: str | None = None, commands: Sequence[str] = ()
) -> list[str]:
    """Lines of at most that width; paths, flags and these commands are not broken: half of a command is another one, and a
    terminal breaks a long line without a newline to copy."""
    hanging, text = (indent + "  ", _line(text)) if hanging is None else (hanging, text)
    return folded(text, max(_NARROW, width), indent, hanging, commands=[_line(line) for line in commands])
