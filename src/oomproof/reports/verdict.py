"""A verdict in words: three lines at the end of a run, or all of it with its evidence."""

from __future__ import annotations

import textwrap
import time

from oomproof.diagnosis.verdict import Verdict
from oomproof.units import format_size

_COLOURS = {"good": "32", "bad": "31", "ours": "33"}
_GOOD = ("finished", "not-a-crash")
_OURS = ("stopped-by-guard", "stopped-by-user", "interrupted")
_WIDTH = 110


def three_lines(verdict: Verdict, *, colour: bool = False) -> str:
    """verdict / why / next, a line each, however long: a terminal wraps, a log keeps its lines whole."""
    label = f"verdict  {_line(verdict.headline)} ({verdict.certainty})"
    if verdict.cause in _GOOD:
        label = f"verdict  {_line(verdict.headline)}"
    if colour:
        kind = "good" if verdict.cause in _GOOD else "ours" if verdict.cause in _OURS else "bad"
        label = f"\x1b[1;{_COLOURS[kind]}m{label}\x1b[0m"
    return f"{label}\nwhy      {_line(verdict.why)}\nnext     {_line(verdict.next)}"


def long_form(verdict: Verdict, *, colour: bool = False) -> str:
    parts = [three_lines(verdict, colour=colour)]
    where = [f"cause    {verdict.cause}, {verdict.probability:.0%}"]
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
        sizes = ", ".join(f"{name} {format_size(size)}" for name, size in told if size is not None)
        on_host = gpu.index is None and gpu.total_bytes is None and gpu.free_bytes is None
        where.append(
            f"asked    {sizes}"
            if on_host
            else f"gpu      {gpu.index if gpu.index is not None else '?'}: {sizes}"
        )
    parts.append("\n".join(where))
    if len(verdict.causes) > 1:
        lines = ["Causes, most likely first"]
        for cause in verdict.causes:
            lines.append(f"  {cause.probability:6.1%}  {cause.cause}")
            if cause.test:
                lines += _wrapped(f"test: {cause.test}", "           ")
        parts.append("\n".join(lines))
    if verdict.evidence:
        lines = ["Evidence"]
        for item in verdict.evidence:
            when = time.strftime("%H:%M:%S ", time.localtime(item.time)) if item.time is not None else ""
            lines += _wrapped(f"{when}{item.source}: {item.text}", "  ")
            lines += _wrapped(f"= {item.says}", "      ")
        parts.append("\n".join(lines))
    if verdict.remedies:
        lines = ["What may help"]
        for remedy in verdict.remedies:
            saves = f", saves {format_size(remedy.saves_bytes)}" if remedy.saves_bytes is not None else ""
            lines += _wrapped(f"- {remedy.title} [{remedy.basis}{saves}]", "  ")
            if remedy.command:
                lines.append(f"      {remedy.command}")
        parts.append("\n".join(lines))
    if verdict.missing:
        lines = ["Could not be read"]
        for gap in verdict.missing:
            lines += _wrapped(f"- {gap.source}: {gap.reason}", "  ")
            if gap.how_to_grant:
                lines.append(f"      {gap.how_to_grant}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _line(text: str) -> str:
    return " ".join(text.split())


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        _line(text), _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False
    )
