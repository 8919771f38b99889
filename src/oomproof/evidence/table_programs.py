"""What programs print again and again in a loop, with or without a line of `date`: ps aux, free, vmstat, docker stats, nvidia-smi.

Each line that is a row gives (whose it is, bytes); what stands between them may tell the time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from oomproof.evidence import table_cells
from oomproof.records import dataclass
from oomproof.units import GIB, KIB, MIB

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PS = re.compile(r"^\S+\s+(\d+)\s+[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+\S+\s+\S+\s+\S+\s+[\d:-]+\s+(.+)$")
_PS_HEAD = re.compile(r"^USER\s+PID\s+%CPU\s+%MEM\s+VSZ\s+RSS\b")
_FREE = re.compile(r"^Mem:\s+([\d.]+\w*)\s+([\d.]+\w*)\s+[\d.]+\w*\s+[\d.]+\w*\s+[\d.]+\w*\s+([\d.]+\w*)$")
_FREE_HEAD = re.compile(r"^total\s+used\s+free\s+shared\s+buff/cache\s+available$")
_VMSTAT_HEAD = re.compile(r"^r\s+b\s+swpd\s+free\s+buff\s+cache\s+si\s+so\b")
_VMSTAT = re.compile(
    r"^\d+\s+\d+\s+\d+\s+(\d+)\s+(\d+)\s+(\d+)(?:\s+\d+){11,12}(?:\s+(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d))?$"
)
_DOCKER = re.compile(r"([\d.]+ ?[kKMGT]?i?B) ?/ ?[\d.]+ ?[kKMGT]?i?B")
_DOCKER_HEAD = re.compile(r"^CONTAINER\b.*MEM USAGE ?/ ?LIMIT")
_SMI = re.compile(r"\|\s*(\d+)MiB\s*/\s*(\d+)MiB\s*\|")
_SMI_HEAD = re.compile(r"^\| NVIDIA-SMI ")


@dataclass(frozen=True, slots=True)
class Row:
    key: str  # of several in one look: a pid, a container, a card
    label: str
    bytes: float
    moment: float | None = None  # where the row itself tells it


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    head: re.Pattern[str]
    row: Callable[[str], Row | None]
    what: str  # of it was taken


def _ps(line: str) -> Row | None:
    found = _PS.match(line)
    return Row(found[1], f"pid {found[1]} ({found[3][:40]})", int(found[2]) * KIB) if found else None


def _free(line: str) -> Row | None:
    found = _FREE.match(line)
    if not found:
        return None
    total, _, available = found.groups()
    unit = _free_unit(float(total)) if total.replace(".", "").isdigit() else 1
    sizes = [table_cells.size(cell, unit) for cell in (total, available)]
    if sizes[0] is None or sizes[1] is None:
        return None
    return Row("", "the machine's RAM", sizes[0] - sizes[1])


def _free_unit(total: float) -> int:
    """free does not say it: KiB, or what -m, -g or -b was given. Of machines from 8 GiB (in bytes) and 256 MiB to 8 TiB."""
    return 1 if total >= 1 << 33 else KIB if total >= 1 << 18 else MIB if total >= 256 else GIB


def _vmstat(line: str) -> Row | None:
    found = _VMSTAT.match(line)
    if not found:
        return None
    at = table_cells.clock(found[4]) if found[4] else None
    return Row("", "the machine's RAM", -sum(int(part) for part in found.groups()[:3]) * KIB, at)


def _docker(line: str) -> Row | None:
    found = _DOCKER.search(line)
    if not found or (held := table_cells.size(found[1])) is None:
        return None
    names = line[: found.start()].split()
    name = names[1] if len(names) > 2 else names[0] if names else "?"
    return Row(name, f"container {name}", held)


def _smi(line: str) -> Row | None:
    found = _SMI.search(line)
    return Row("", "GPU", int(found[1]) * MIB) if found else None


def _lone(line: str) -> Row | None:
    """`ps -o rss= -p PID` on a line of its own."""
    held = table_cells.size(line, KIB) if len(line) < 20 else None
    return (
        Row("", "the lines between", held)
        if held is not None and not table_cells.is_wall(held / KIB)
        else None
    )


_NUMBERS = Program("numbers and dates by turns", re.compile(r"(?!)"), _lone, "KiB")
PROGRAMS = (
    Program("ps aux", _PS_HEAD, _ps, "RSS"),
    Program("free", _FREE_HEAD, _free, "total without available"),
    Program("vmstat", _VMSTAT_HEAD, _vmstat, "what free, buffers and cache lost"),
    Program("docker stats", _DOCKER_HEAD, _docker, "MEM USAGE"),
    Program("nvidia-smi", _SMI_HEAD, _smi, "memory used"),
)


def program_of(head: Sequence[str]) -> Program | None:
    """By a line of its header; a loop that cuts that off, as `ps aux | grep` does, by its rows."""
    lines = [_ANSI.sub("", line).strip() for line in head]
    for program in PROGRAMS:
        if any(program.head.match(line) for line in lines):
            return program
    for program in PROGRAMS[:1]:
        if sum(program.row(line) is not None for line in lines) * 3 > len(lines):
            return program
    dates = sum(
        _may_be_time(line) and table_cells.moment(line) is not None and _lone(line) is None for line in lines
    )
    numbers = sum(_lone(line) is not None for line in lines)
    return (
        _NUMBERS
        if dates and numbers and dates + numbers == len(lines) and 2 * numbers >= len(lines) - 1
        else None
    )


def looks(lines: Iterable[str], program: Program) -> Iterator[tuple[int, float | None, Row]]:
    """(number of the look, when it was, a row of it). A look is over with the next date, header or row of the same."""
    number, at, seen = 0, None, set[str]()
    cards = 0
    for line in lines:
        text = _ANSI.sub("", line).strip()
        row = program.row(text)
        if row is None:
            is_head = program.head.match(text) is not None
            told = table_cells.moment(text) if not is_head and _may_be_time(text) else None
            if seen and (is_head or told is not None):
                number, seen, cards = number + 1, set(), 0
            if told is not None:
                at = told
            continue
        if program.row is _smi:  # they stand in the order of their numbers
            row = Row(str(cards), f"GPU {cards}", row.bytes)
            cards += 1
        if row.key in seen:
            number, seen = number + 1, set()
        seen.add(row.key)
        yield number, row.moment if row.moment is not None else at, row


def _may_be_time(text: str) -> bool:
    """A line of its own that `date` printed, in whatever form."""
    return 5 <= len(text) <= 45 and any(sign.isdigit() for sign in text) and (":" in text or text.isdigit())
