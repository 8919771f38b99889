"""What a trace window inside the job found: the lines that allocated what stayed, and that in words."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any

from oomproof.printable import one_line
from oomproof.records import dataclass, replace
from oomproof.units import MIB, format_exact, format_size

_LONGEST = 4 << 20  # characters


def user_source(path: str, before: float) -> str | None:
    """Its text; None where it cannot be read, is no plain file, or was changed since. ``before``: when the run began, in
    seconds since 1970."""
    try:
        status = os.stat(path)
        if status.st_mtime > before or not stat.S_ISREG(status.st_mode):
            return None
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_LONGEST)
    except (OSError, ValueError, MemoryError):
        return None


_OVERHEAD = 8 * MIB  # that tracemalloc itself takes at most while it traces
_SEEN = 1 / 3  # of the growth: then the tracer is the one that sees this kind
_LEAST = 0.2  # of the growth before the window
_BLAMED = 0.25  # of the growth: what is less made none of it
_LONGEST_LINE, _LONGEST_NATIVE = 80, 200  # characters


@dataclass(frozen=True, slots=True)
class TracedLine:
    file: str
    line: int
    function: str
    bytes: int
    count: int
    is_library: bool
    native: str = ""  # functions of native code, the innermost first


@dataclass(frozen=True, slots=True)
class Trace:
    witness: str  # tracemalloc, memray
    memory: str  # the kind of memory that grew
    steps: int
    seconds: float
    whole: int  # bytes that the process grew by in the window
    lines: tuple[TracedLine, ...]  # the most first
    # bytes a step that it grew by before, or a second where it makes none; 0: not known
    expected: float = 0.0

    @property
    def blamed(self) -> tuple[TracedLine, ...]:
        """Those that made a good part of it; none where what grew before did not grow in the window."""
        if self.whole < _LEAST * self.expected * (self.steps or self.seconds):
            return ()
        return tuple(line for line in self.lines if line.bytes >= _BLAMED * self.whole)

    def share(self, line: TracedLine) -> float:
        return min(1.0, line.bytes / self.whole) if self.whole > 0 else 0.0


def trace_of(told: Mapping[str, Any]) -> Trace | None:
    """From what the agent told; None where its window found nothing, or was not opened."""
    rows, seconds = told.get("lines"), told.get("seconds")
    if not isinstance(rows, list) or not isinstance(seconds, int | float):
        return None
    lines = tuple(line for line in map(_line, rows) if line is not None)
    steps, traced, grown = (_count(told.get(name)) for name in ("steps", "traced", "grown"))
    if 0 < grown < traced:  # a table that is made anew, and larger, is all of it new to the tracer
        lines = tuple(replace(line, bytes=line.bytes * grown // traced) for line in lines)
        traced = grown
    # the process also grows by what the tracer takes: where it saw a good part, that is the whole
    whole = traced if traced >= _SEEN * (grown - _OVERHEAD) else grown
    if not lines or whole <= 0:
        return None
    expected = told.get("expected")
    before = float(expected) if isinstance(expected, int | float) and 0 <= expected < 1 << 62 else 0.0
    return Trace(
        str(told.get("witness")), str(told.get("memory") or ""), steps, float(seconds), whole, lines, before
    )


def _line(row: object) -> TracedLine | None:
    if not isinstance(row, list) or not 6 <= len(row) <= 7:
        return None
    file, line, function, size, count, library = row[:6]
    native = str(row[6])[:_LONGEST_NATIVE] if len(row) == 7 else ""
    return TracedLine(
        str(file), _count(line), str(function), _count(size), _count(count), bool(library), native
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else 0


def trace_text(trace: Trace, before: float) -> str:
    """``cache[key] = make(key)` at serve.py:41 made 96% of it: +2.1 MiB a step``; empty where no line made much of it.

    ``before``: when the run began, in seconds since 1970; a file that was changed since is not quoted."""
    if not trace.blamed:
        return ""
    line = trace.blamed[0]
    place = f"{os.path.basename(line.file)}:{line.line}" if line.file else "a native thread"
    source = _source(line.file, line.line, before)
    text = f"`{source}` at {place}" if source else place
    if line.native:
        text += f", in {line.native},"
    rate = f": +{format_size(line.bytes)}"
    if trace.steps:
        rate = f": +{format_exact(line.bytes / trace.steps)} a step"
    elif trace.seconds >= 1:
        rate = f": +{format_exact(line.bytes / trace.seconds)}/s"
    others = [
        f"{os.path.basename(other.file)}:{other.line} {trace.share(other):.0%}" for other in trace.blamed[1:]
    ]
    more = f"; {', '.join(others)}" if others else ""
    return one_line(f"{text} made {trace.share(line):.0%} of it{rate}{more}")


def _source(path: str, number: int, before: float) -> str:
    lines = (user_source(path, before) or "").split("\n")
    text = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    return text if len(text) <= _LONGEST_LINE else text[:_LONGEST_LINE] + "…"
