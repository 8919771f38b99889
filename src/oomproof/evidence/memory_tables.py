"""Tables of time and bytes that people already have: psrecord, memory_profiler, loops of ps, free or docker stats, exports of
wandb and Grafana, ours.

Columns and units are guessed from their names, or named by the user; what was taken for what is told."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise

from oomproof.errors import USAGE, OomproofError
from oomproof.evidence.table_cells import has_unit, is_wall, moment, number, size
from oomproof.evidence.table_programs import Program, looks, program_of
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
    (re.compile(rf"(?:\b|_|[a-z])(?:{letters})\b|^(?:{letters})mem", re.I), unit, told)  # kbmemused: sar
    for letters, unit, told in (
        ("gib|gb", GIB, "GiB"),
        ("mib|mb", MIB, "MiB"),
        ("kib|kb", KIB, "KiB"),
        ("bytes", 1, "bytes"),
    )
]
_DAY = 86400.0


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
        with open(path, encoding=_encoding(path), errors="replace", newline="") as file:
            return _read(_lines(file), wanted, path)
    except OSError as error:
        raise OomproofError(f"{path} cannot be read: {error.strerror}", status=USAGE) from None


def _encoding(path: str) -> str:
    """PowerShell's `>` writes UTF-16."""
    with open(path, "rb") as file:
        return "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


def _lines(file: Iterable[str]) -> Iterator[str]:
    for line in file:
        text = line.replace("\0", "").strip()
        if text and len(text) < _LONGEST_LINE:
            yield text


def _read(lines: Iterator[str], wanted: Wanted, path: str) -> MemoryTable:
    head = list(islice(lines, _HEAD))
    if not head:
        raise OomproofError(f"{path} is empty", status=USAGE)
    if (program := program_of(head)) is not None and wanted.time is None:
        return _of_program(program, chain(head, lines), wanted, path)
    sign = _separator(head)
    split, comma = _splitter(sign), "." if sign == ";" else ""
    names, body = _names(head, split)
    rows = [split(line) for line in body]
    time, memory, series = _columns(names, rows, wanted, path)
    unit, unit_name = (
        (wanted.unit, "the unit you named") if wanted.unit else _unit(names[memory] if names else "")
    )
    cells = [row[memory] for row in rows if memory < len(row)]
    if sum(map(has_unit, cells)) * 2 > len(cells):
        unit_name = "the units of its cells (MB: 10⁶, MiB: 2²⁰)"
    elif unit_name == _AS_PS:  # psutil's rss has the same name, and is in bytes
        first = sorted(value for cell in cells if (value := number(cell, comma)) is not None)
        if first and first[len(first) // 2] * unit > _LARGEST_JOB:
            unit, unit_name = 1, "bytes"
    read: dict[str, list[tuple[float, float]]] = {}
    skipped = 0
    for count, line in enumerate(chain(body, lines)):
        row = split(line)
        if names and names[0] == _MPROF and row[0] != _MPROF:  # CHLD: of one process, and FUNC
            skipped += 1
            continue
        value = size(row[memory], unit, comma) if memory < len(row) else None
        if wanted.every:
            at: float | None = wanted.every * count
        else:
            at = moment(row[time]) if time is not None and time < len(row) else None
        if value is None or at is None or value > _LARGEST:
            skipped += 1
        else:
            read.setdefault(row[series] if series is not None else "", []).append((at, value))
    chosen, of_others = _largest(read)
    when = f"a row each {wanted.every:g} s" if wanted.every else f"time from {_called(names, time)}"
    told = f"{when}, memory from {_called(names, memory)} in {unit_name}"
    if series is not None:
        told += f", of {_called(names, series)} {chosen}" + _others_text(of_others)
    return _table(path, read.get(chosen, []), told, skipped)


def _of_program(program: Program, lines: Iterable[str], wanted: Wanted, path: str) -> MemoryTable:
    read: dict[str, list[tuple[float, float]]] = {}
    labels: dict[str, str] = {}
    told_none = 0
    for look, at, row in looks(lines, program):
        at = wanted.every * look if wanted.every else at
        labels[row.key] = row.label
        if at is None:
            told_none += 1
        else:
            read.setdefault(row.key, []).append((at, row.bytes))
    if not read and told_none:
        raise OomproofError(
            f"{path} is of {program.name}, and says nothing of the time",
            "say how far apart two looks are (--every 5s), or let the loop print `date` before each",
            status=USAGE,
        )
    chosen, of_others = _largest(read)
    if wanted.column is not None:
        chosen = next((key for key in read if wanted.column in (key, labels[key])), "")
        if chosen not in read:
            known = ", ".join(labels[key] for key in sorted(read, key=lambda key: -_most(read[key]))[:5])
            raise OomproofError(f"{path} has no {wanted.column}", f"it has {known}", status=USAGE)
    samples = read.get(chosen, [])
    if samples and min(value for _, value in samples) < 0:  # vmstat tells only what is left
        lowest = min(value for _, value in samples)
        samples = [(at, value - lowest) for at, value in samples]
    when = f"looks {wanted.every:g} s apart" if wanted.every else "the dates between them"
    label = labels.get(chosen, "")
    return _table(
        path, samples, f"{program.name}, {when}; {program.what} of {label}{_others_text(of_others)}", 0
    )


def _most(samples: list[tuple[float, float]]) -> float:
    return max(value for _, value in samples)


def _largest(read: dict[str, list[tuple[float, float]]]) -> tuple[str, int]:
    """Of several series the one that holds most at its end, of those that were there most of the time; how many others."""
    if not read:
        return "", 0
    longest = max(map(len, read.values()))
    steady = [key for key, samples in read.items() if 2 * len(samples) >= longest]
    return max(steady, key=lambda key: read[key][-1][1]), len(read) - 1


def _others_text(count: int) -> str:
    return f", the largest of {count + 1} (another: --column NAME)" if count else ""


def _table(path: str, samples: list[tuple[float, float]], told: str, skipped: int) -> MemoryTable:
    walls = sum(is_wall(at) for at, _ in samples)
    if 2 * walls > len(samples):  # a row that was cut in its time is none
        skipped += len(samples) - walls
        samples = [sample for sample in samples if is_wall(sample[0])]
    samples = _in_order(samples)
    # what it held while it died says nothing of growth; a last row that was cut looks the same
    ended = teardown_begin([(t, int(value)) for t, value in samples])
    samples = [sample for sample in samples if sample[0] < ended]
    if len(samples) < 2:
        raise _unusable(path)
    return MemoryTable(samples, is_wall(samples[0][0]), told, skipped)


def _unusable(path: str) -> OomproofError:
    return OomproofError(
        f"{path} has no rows with a time and a number of bytes",
        "name the columns (--time NAME --column NAME, or their numbers from 1); without a time: --every SECONDS",
        status=USAGE,
    )


def _separator(head: Sequence[str]) -> str:
    """The sign that most lines have; empty where none has one, and blanks divide the cells."""
    return next((sign for sign in (";", "\t", ",") if sum(sign in line for line in head) > len(head) / 2), "")


def _splitter(sign: str) -> Callable[[str], list[str]]:
    if not sign:
        return _words

    def split(line: str) -> list[str]:
        if '"' not in line:  # a reader for each line takes three times as long
            return [cell.strip() for cell in line.split(sign)]
        return [cell.strip() for cell in next(csv.reader([line], delimiter=sign, skipinitialspace=True), [])]

    return split


def _words(line: str) -> list[str]:
    """A date and its clock are one cell; so are the words of psrecord's header, which stand two blanks apart."""
    if line.startswith("#"):
        return re.split(r"\s{2,}", line.lstrip("# "))
    line = re.sub(r"(\d{4}-\d\d-\d\d) +(\d\d:\d\d)", r"\1T\2", line)
    cells = re.sub(r"(\d\d:\d\d:\d\d) ([AP]M)\b", r"\1_\2", line).split()
    return [cell.replace("_", " ") if cell.endswith(("_AM", "_PM")) else cell for cell in cells]


def _names(head: list[str], split: Callable[[str], list[str]]) -> tuple[list[str], list[str]]:
    """(names of the columns, the lines below); no names where the first line is a row already."""
    if any(line.startswith("MEM ") for line in head):  # memory_profiler: MEM <MiB> <seconds since 1970>
        return [_MPROF, "rss_mib", "time"], head
    for at, line in enumerate(head[:20]):
        cells = split(line)
        if any(number(cell) is not None for cell in cells):
            return [], head[at:]
        below = split(head[at + 1]) if at + 1 < len(head) else []
        if len(below) == len(cells) and any(number(cell) is not None for cell in below):
            return cells, head[at + 1 :]
    return [], head


def _rank(name: str) -> int | None:
    """How well a name tells what a job holds; the smaller, the better."""
    if _NO_MEMORY.search(name):
        return None
    return next((rank for rank, pattern in enumerate(_MEMORY) if pattern.search(name)), None)


def _columns(
    names: list[str], rows: list[list[str]], wanted: Wanted, path: str
) -> tuple[int | None, int, int | None]:
    """(Time, memory, whose it is where several series stand below each other.)"""
    width = max((len(row) for row in rows), default=0)
    time = _asked_for(wanted.time, names, width, path)
    memory = _asked_for(wanted.column, names, width, path)
    if time is None and wanted.every is None:
        time = next((at for at, name in enumerate(names) if at != memory and _TIME.search(name)), None)
        if time is None:
            times = (at for at in range(width) if at != memory and _is_mostly(rows, at, moment))
            time = next((at for at in times if _rises(rows, at)), None)
    series = _series_column(names)
    if memory is None and series is not None and "value" in (lower := [name.lower() for name in names]):
        memory = lower.index("value")
    elif memory is None and names:
        ranked = [
            (rank, at) for at, name in enumerate(names) if at != time and (rank := _rank(name)) is not None
        ]
        memory = min(ranked)[1] if ranked else _sized(rows, width)
        if memory is None and names[1:2] and time == 0 and all(name.startswith("{") for name in names[1:]):
            memory = _highest(rows, width)  # Grafana's raw values, under the labels of their series
    elif memory is None:
        memory = _sized(rows, width)
        if memory is None:
            numbers = (at for at in range(width - 1, -1, -1) if at != time and _is_mostly(rows, at, number))
            memory = next(numbers, None)
    if memory is None or (time is None and wanted.every is None):
        raise _unusable(path)
    return time, memory, series


def _series_column(names: list[str]) -> int | None:
    lower = [name.lower() for name in names]
    if sorted(lower) == ["series", "time", "value"]:  # Grafana's other form
        return lower.index("series")
    return lower.index("index") if "index" in lower and any("memory.used" in name for name in lower) else None


def _sized(rows: list[list[str]], width: int) -> int | None:
    """The column whose cells are sizes with their units; of several, the one with the largest at the end."""
    sized = [
        at for at in range(width) if sum(at < len(row) and has_unit(row[at]) for row in rows) * 2 > len(rows)
    ]
    return max(sized, key=lambda at: _last(rows, at, size), default=None)


def _highest(rows: list[list[str]], width: int) -> int | None:
    return max(range(1, width), key=lambda at: _last(rows, at, number), default=None)


def _last(rows: list[list[str]], at: int, read: Callable[[str], float | None]) -> float:
    values = (read(row[at]) for row in reversed(rows) if at < len(row))
    return next((value for value in values if value is not None), 0.0)


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


def _rises(rows: list[list[str]], at: int) -> bool:
    """As a time does, but over midnight: a pid or a total does not."""
    moments = [read for row in rows if at < len(row) and (read := moment(row[at])) is not None]
    pairs = list(pairwise(moments))
    return len(set(moments)) > 1 and sum(later >= earlier for earlier, later in pairs) >= len(pairs) - 1


def _is_mostly(rows: list[list[str]], at: int, read: Callable[[str], float | None]) -> bool:
    return sum(at < len(row) and read(row[at]) is not None for row in rows) > len(rows) / 2


def _unit(name: str) -> tuple[int, str]:
    for pattern, unit, told in _UNITS:
        if pattern.search(name):
            return unit, told
    is_label = name.startswith("{")  # Prometheus, as Grafana exports it, counts in bytes
    return (KIB, _AS_PS) if not name or (re.search("rss", name, re.I) and not is_label) else (1, "bytes")


def _called(names: list[str], at: int | None) -> str:
    if at is None:
        return ""
    return f"column {names[at]}" if at < len(names) and names[at] else f"column {at + 1}"


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
