"""A verdict in words: three lines at the end of a run, or all of it with its evidence."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

from oomproof.causes import cause_of
from oomproof.diagnosis.verdict import Verdict
from oomproof.evidence.case_file import Evidence
from oomproof.printable import folded, printable, wants_colour
from oomproof.reports.verdict_selection import decisive_first, how, notable
from oomproof.units import format_size, format_time

COLOURS = {"good": "32", "bad": "31", "ours": "33"}
_LABEL = " " * 9
_NARROW = 40  # columns: below, a terminal's own wrapping reads better


def three_lines(verdict: Verdict, *, colour: bool = False, width: int | None = None) -> str:
    """verdict / why / next: a line each for a log, which keeps its lines whole; wrapped for a terminal of a width."""
    headline = verdict.headline if verdict.kind.good else f"{verdict.headline} ({verdict.certainty})"
    label, why = (
        printable(labelled(name, text, width)) for name, text in (("verdict", headline), ("why", verdict.why))
    )
    following = printable(labelled("next", verdict.next, width, _commands(verdict)))
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
        parts = ["\n".join(_wrapped(line, "", width, _LABEL, commands)) for line in parts]
    if tone and parts and wants_colour(stream):
        parts[0] = _coloured(parts[0], tone)
    return "\n".join(parts)


def _coloured(text: str, tone: str) -> str:
    return f"\x1b[1;{COLOURS[tone]}m{text}\x1b[0m"


def labelled(label: str, text: str, width: int | None, commands: Sequence[str] = ()) -> str:
    line = f"{label:9}{_line(text)}"
    return "\n".join(_wrapped(line, "", width, _LABEL, commands)) if width else line


def long_form(verdict: Verdict, *, colour: bool = False, width: int = 110) -> str:
    parts = [three_lines(verdict, colour=colour, width=width)]
    # whatever no rule names is an "other error": that there is no other reading makes it no surer than its word says
    unsure = verdict.cause == "other-error" and verdict.certainty != "proven" and len(verdict.causes) < 2
    where = [f"cause    {verdict.kind.title}" + ("" if unsure else f", {verdict.probability:.0%}")]
    if verdict.phase != "unknown":
        step = f", step {verdict.step}" if verdict.step is not None else ""
        where.append(f"phase    {verdict.phase}{step}")
    if (victim := verdict.victim) is not None:
        text = f"victim   pid {victim.pid}" + (f" ({victim.name})" if victim.name else "")
        if victim.pid is None:
            text = f"victim   {victim.who}"
        if victim.anon_rss_bytes is not None:
            # total-vm is left out on purpose: it is address space, and people read it as memory
            shared = f", shared {format_size(victim.shmem_rss_bytes)}" if victim.shmem_rss_bytes else ""
            text += f": {format_size(victim.anon_rss_bytes)} of its own{shared}"
        where.append(text)
    if (gpu := verdict.gpu) is not None:
        told = (
            ("asked", gpu.requested_bytes),
            ("free", gpu.free_bytes),
            ("total", gpu.total_bytes),
            ("allocated", gpu.allocated_bytes),
            ("reserved but unused", gpu.reserved_unallocated_bytes),
        )
        on_host = gpu.index is None and gpu.total_bytes is None and gpu.free_bytes is None
        sizes = [f"{name} {format_size(size)}" for name, size in told if size is not None]
        if on_host:
            where.append(f"asked    {format_size(gpu.requested_bytes)}")
        else:
            card = gpu.index if gpu.index is not None else "?"
            where.append(labelled("gpu", f"{card}: {', '.join(sizes)}", width))
    causes = notable(verdict)
    if len(causes) == 1 and causes[0].test and not verdict.kind.good:
        where.append(labelled("test", causes[0].test, width))
    parts.append("\n".join(where))
    if len(causes) > 1:
        lines = ["Causes, most likely first"]
        for cause in causes:
            lines.append(f"  {cause.probability:4.0%}  {cause_of(cause.cause).title}")
            if cause.test:
                lines += _wrapped(f"test: {cause.test}", "        ", width)
        parts.append("\n".join(lines))
    decided, beside = decisive_first(verdict)
    for title, items in (("Evidence", decided), ("Also seen", beside)):
        if items:
            parts.append("\n".join([title, *(line for item in items for line in _evidence(item, width))]))
    if verdict.remedies:
        lines = ["What may help"]
        for remedy in verdict.remedies:
            saves = f", saves {format_size(remedy.saves_bytes)}" if remedy.saves_bytes is not None else ""
            lines += _wrapped(f"- {remedy.title} [{remedy.basis}{saves}]", "  ", width)
            if (command := how(remedy)) is not None:
                lines.append(f"      {command}")
        parts.append("\n".join(lines))
    if verdict.missing:
        lines = ["Could not be read"]
        for gap in verdict.missing:
            lines += _wrapped(f"- {gap.source}: {gap.reason}", "  ", width)
            if gap.how_to_grant:
                lines.append(f"      {gap.how_to_grant}")
        parts.append("\n".join(lines))
    return "\n\n".join((parts[0], *(printable(part) for part in parts[1:])))


def _evidence(item: Evidence, width: int) -> list[str]:
    when = format_time(item.time)
    lines = _wrapped(f"{when}{', ' if when else ''}{item.source}: {item.text}", "  ", width)
    return lines + _wrapped(f"= {item.says}", "      ", width)


def _line(text: str) -> str:
    """On one line; blanks within stay: in a command they may be a program's indentation."""
    return " ".join(line.strip() for line in text.replace("\t", " ").splitlines() if line.strip())


def _wrapped(
    text: str, indent: str, width: int, hanging: str | None = None, commands: Sequence[str] = ()
) -> list[str]:
    """Lines of at most that width; paths, flags and these commands are not broken: half of a command is another one, and a
    terminal breaks a long line without a newline to copy."""
    hanging, text = (indent + "  ", _line(text)) if hanging is None else (hanging, text)
    return folded(text, max(_NARROW, width), indent, hanging, commands=[_line(line) for line in commands])
