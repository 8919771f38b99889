"""Tables of time and bytes that people already have: psrecord, memory_profiler, a `ps` loop, an export of wandb, ours.

Columns and units are guessed from their names, or named by the user; what was taken for what is told."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, islice, pairwise
from math import isfinite

from oomproof.errors import USAGE, OomproofError
from oomproof.recording.series import teardown_begin
from oomproof.records import dataclass
from oomproof.units import GIB, KIB, MIB

_HEAD = 200  # lines that the columns are guessed from
_LONGEST_LINE = 1 << 20
_TIME = re.compile(r"time|date|elapsed|second|clock|runtime|^ts?(?:_|$)", re.I)
# the best name first: what a job holds, not what the machine or its address space has
_MEMORY = [
    re.compile(pattern, re.I)
    for pattern in (r"\buse\b", r"pss", r"uss", r"rss", r"\breal\b", r"anon", r"resident", r"mem(?!.*(%|percent|total|virt))",
                    r"\bused\b", r"bytes")
]  # fmt: skip
_MPROF = "MEM"
_AS_PS = "KiB (as ps counts; else: --unit)"
_LARGEST_JOB = 1 << 40  # bytes: what would be more is in bytes, not in KiB
_LARGEST = 1 << 50  # bytes: no machine has a petabyte
_NO_MEMORY = re.compile(
    r"%|percent|pct|util|ratio|frac|virt|vsz|total|limit|cpu|gpu|available|free|headroom", re.I
)
# MB is 10**6 for nobody who writes such tables: psrecord, memory_profiler and wandb divide by 2**20
_UNITS = [
    (re.compile(rf"(?:\b|_|[a-z])(?:{letters})\b", re.I), size, told)
    for letters, size, told in (
        ("gib|gb", GIB, "GiB"),
        ("mib|mb", MIB, "MiB"),
        ("kib|kb", KIB, "KiB"),
        ("bytes", 1, "bytes"),
    )
]
_CLOCKS = (
    "%H:%M:%S",
    "%H:%M",
    "%d.%m.%Y %H:%M:%S",
    "%m/%d/%Y %H:%M:%S",
    "%a %b %d %H:%M:%S %Y",
    "%a %b %d %H:%M:%S %Z %Y",
)
_FRACTIONS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))  # nano-, micro- and milliseconds since 1970
_DAY = 86400.0
_FIRST_WALL = 1e8  # seconds since 1970: what is larger is a time of day, not of a stopwatch


@dataclass(frozen=True, slots=True)
class MemoryTable:
    samples: list[tuple[float, float]]
    is_wall: bool  # the times are seconds since 1970
    told: str  # which columns were taken, in which unit
    skipped: int  # lines that are no row of it


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user said of the table; the rest is guessed."""

    time: str | None = None
    column: str | None = None
    unit: int | None = None
    every: float | None = None  # seconds between two rows, where no column tells the time


def read_memory_table(path: str, wanted: Wanted) -> MemoryTable:
    try:
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            return _read(_lines(file), wanted, path)
    except OSError as error:
        raise OomproofError(f"{path} cannot be read: {error.strerror}", status=USAGE) from None


def _lines(file: Iterable[str]) -> Iterator[str]:
    for line in file:
        text = line.replace("\0", "").strip()
        if text and len(text) < _LONGEST_LINE:
            yield text


def _read(lines: Iterator[str], wanted: Wanted, path: str) -> MemoryTable:
    head = list(islice(lines, _HEAD))
    if not head:
        raise OomproofError(f"{path} is empty", status=USAGE)
    split = _splitter(head)
    names, body = _names(head, split)
    time, memory = _columns(names, [split(line) for line in body], wanted, path)
    unit, unit_name = (
        (wanted.unit, "the unit you named") if wanted.unit else _unit(names[memory] if names else "")
    )
    if unit_name == _AS_PS:  # psutil's rss has the same name, and is in bytes
        first = sorted(_numbers(body, split, memory))
        if first and first[len(first) // 2] * unit > _LARGEST_JOB:
            unit, unit_name = 1, "bytes"
    samples: list[tuple[float, float]] = []
    skipped = 0
    for number, line in enumerate(chain(body, lines)):
        cells = split(line)
        if names and names[0] == _MPROF and cells[0] != _MPROF:  # CHLD: of one process, and FUNC
            skipped += 1
            continue
        value = _number(cells[memory]) if memory < len(cells) else None
        if wanted.every:
            at: float | None = wanted.every * number
        else:
            at = _moment(cells[time]) if time is not None and time < len(cells) else None
        if value is None or at is None or value * unit > _LARGEST:
            skipped += 1
        else:
            samples.append((at, value * unit))
    samples = _in_order(samples)
    # what it held while it died says nothing of growth
    ended = teardown_begin([(t, int(value)) for t, value in samples])
    samples = [sample for sample in samples if sample[0] < ended]
    if len(samples) < 2:
        raise _unusable(path)
    when = f"a row each {wanted.every:g} s" if wanted.every else f"time from {_called(names, time)}"
    return MemoryTable(
        samples,
        samples[0][0] > _FIRST_WALL,
        f"{when}, memory from {_called(names, memory)} in {unit_name}",
        skipped,
    )


def _unusable(path: str) -> OomproofError:
    return OomproofError(
        f"{path} has no rows with a time and a number of bytes",
        "name the columns (--time NAME --column NAME, or their numbers from 1); without a time: --every SECONDS",
        status=USAGE,
    )


def _splitter(head: Sequence[str]) -> Callable[[str], list[str]]:
    """By the sign that most lines have; blanks where none has one."""
    for sign in (";", "\t", ","):
        if sum(sign in line for line in head) > len(head) / 2:
            return lambda line: [cell.strip() for cell in next(csv.reader([line], delimiter=sign), [])]
    return _words


def _words(line: str) -> list[str]:
    """A date and its clock are one cell; so are the words of psrecord's header, which stand two blanks apart."""
    if line.startswith("#"):
        return re.split(r"\s{2,}", line.lstrip("# "))
    return re.sub(r"(\d{4}-\d\d-\d\d) +(\d\d:\d\d)", r"\1T\2", line).split()


def _names(head: list[str], split: Callable[[str], list[str]]) -> tuple[list[str], list[str]]:
    """(names of the columns, the lines below); no names where the first line is a row already."""
    if any(line.startswith("MEM ") for line in head):  # memory_profiler: MEM <MiB> <seconds since 1970>
        return [_MPROF, "rss_mib", "time"], head
    for at, line in enumerate(head[:20]):
        cells = split(line)
        if any(_number(cell) is not None for cell in cells):
            return [], head[at:]
        below = split(head[at + 1]) if at + 1 < len(head) else []
        if len(below) == len(cells) and any(_number(cell) is not None for cell in below):
            return cells, head[at + 1 :]
    return [], head


def _rank(name: str) -> int | None:
    """How well a name tells what a job holds; the smaller, the better."""
    if _NO_MEMORY.search(name):
        return None
    return next((rank for rank, pattern in enumerate(_MEMORY) if pattern.search(name)), None)


def _columns(names: list[str], rows: list[list[str]], wanted: Wanted, path: str) -> tuple[int | None, int]:
    width = max((len(row) for row in rows), default=0)
    time = _asked_for(wanted.time, names, width, path)
    memory = _asked_for(wanted.column, names, width, path)
    if time is None and wanted.every is None:
        time = next((at for at, name in enumerate(names) if at != memory and _TIME.search(name)), None)
        if time is None and not names:
            times = (at for at in range(width) if at != memory and _is_mostly(rows, at, _moment))
            time = next((at for at in times if _rises(rows, at)), None)
    if memory is None and names:
        ranked = [
            (rank, at) for at, name in enumerate(names) if at != time and (rank := _rank(name)) is not None
        ]
        memory = min(ranked)[1] if ranked else None
    elif memory is None:
        memory = next(
            (at for at in range(width - 1, -1, -1) if at != time and _is_mostly(rows, at, _number)), None
        )
    if memory is None or (time is None and wanted.every is None):
        raise _unusable(path)
    return time, memory


def _asked_for(name: str | None, names: list[str], width: int, path: str) -> int | None:
    if name is None:
        return None
    if name in names:
        return names.index(name)
    if name.isdecimal() and 1 <= int(name) <= max(width, len(names)):
        return int(name) - 1
    known = (
        f"it has {', '.join(names)}"
        if names
        else f"it has {width} columns without names: give a number from 1"
    )
    raise OomproofError(f"{path} has no column {name}", known, status=USAGE)


def _numbers(lines: Iterable[str], split: Callable[[str], list[str]], at: int) -> list[float]:
    cells = (row[at] for line in lines if at < len(row := split(line)))
    return [number for cell in cells if (number := _number(cell)) is not None]


def _rises(rows: list[list[str]], at: int) -> bool:
    """As a time does, but over midnight: a pid or a total does not."""
    moments = [moment for row in rows if at < len(row) and (moment := _moment(row[at])) is not None]
    pairs = list(pairwise(moments))
    return len(set(moments)) > 1 and sum(later >= earlier for earlier, later in pairs) >= len(pairs) - 1


def _is_mostly(rows: list[list[str]], at: int, read: Callable[[str], float | None]) -> bool:
    return sum(at < len(row) and read(row[at]) is not None for row in rows) > len(rows) / 2


def _unit(name: str) -> tuple[int, str]:
    for pattern, size, told in _UNITS:
        if pattern.search(name):
            return size, told
    return (KIB, _AS_PS) if not name or re.search("rss", name, re.I) else (1, "bytes")


def _called(names: list[str], at: int | None) -> str:
    if at is None:
        return ""
    return f"column {names[at]}" if at < len(names) and names[at] else f"column {at + 1}"


def _number(cell: str) -> float | None:
    try:
        value = float(cell if "." in cell else cell.replace(",", "."))  # a decimal comma
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None


def _moment(cell: str) -> float | None:
    """Seconds: since 1970 where it is a date, since midnight of a clock alone, else what the number says."""
    if (number := _number(cell)) is not None:
        for largest, divisor in _FRACTIONS:
            if number > largest:
                return number / divisor
        return number
    try:
        return _seconds(datetime.fromisoformat(cell))
    except ValueError:
        pass
    for form in _CLOCKS:
        try:
            moment = datetime.strptime(cell, form)
        except ValueError:
            continue
        if moment.year == 1900:
            return moment.hour * 3600.0 + moment.minute * 60.0 + moment.second
        return _seconds(moment)
    return None


def _seconds(moment: datetime) -> float:
    try:
        return moment.timestamp()
    except (OverflowError, OSError, ValueError):
        return moment.replace(tzinfo=UTC).timestamp()


def _in_order(samples: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """A clock without a date continues over midnight; anything else is sorted."""
    if samples and max(t for t, _ in samples) < _DAY:
        days, before, in_order = 0.0, 0.0, []
        for t, value in samples:
            if t < before - _DAY / 2:
                days += _DAY
            before = t
            in_order.append((t + days, value))
        samples = in_order
    return sorted(samples)
