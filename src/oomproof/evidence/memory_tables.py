"""Tables of time and bytes that people already have: CSV files, and loops of ps, free, vmstat or nvidia-smi.

One reader for all: a header names the columns, its repetition or a line with a date begins a new look, and a column of
names (a pid, a card) divides the rows into series. The answer says what was read as what."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, islice, zip_longest
from math import isfinite

from oomproof.errors import USAGE, OomproofError
from oomproof.recording.series import teardown_begin
from oomproof.records import dataclass
from oomproof.units import GIB, KIB, MIB, TIB

_HEAD = 200  # lines that the columns are guessed from
_LARGEST_JOB = 1 << 40  # bytes: a larger figure is in bytes and not in KiB
_LARGEST = 1 << 50  # bytes: no machine has a petabyte
_FIRST_YEARS = 1e8  # seconds since 1970: a larger number is a date, not a stopwatch
_DAY = 86400.0
_TIME = re.compile(r"time|date|elapsed|second|clock|^ts?(?:_|$)", re.I)
# the best name first: what a job holds, not what the machine or its address space has
_MEMORY = ("rss", "pss", "uss", "use", "real", "anon", "resident", "mem", "bytes", "value")
_NO_MEMORY = re.compile(
    r"%|percent|pct|util|ratio|frac|virt|vsz|total|limit|cpu|gpu|available|free|headroom", re.I
)
_SERIES = ("", "pid", "series", "index", "name")  # "": the label of free's rows
_SIZE = re.compile(r"([0-9.]+)\s*([kKMGT]i?B?|B|bytes)")
# MB in a cell is 10**6 (Grafana); in the name of a column it is 2**20 (psrecord, wandb), and so is free's bare letter
_FACTORS = {"b": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}
_UNIT = re.compile(r"(?:\b|_|[a-z])([kmg])i?b(?:\b|mem)", re.I)  # kbmemused: sar


@dataclass(frozen=True, slots=True)
class MemoryTable:
    samples: list[tuple[float, float]]
    is_wall: bool  # the times are seconds since 1970
    told: str  # which columns were taken, in which unit
    skipped: int  # lines that are no rows


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user said of the table; the rest is guessed."""

    time: str | None = None
    column: str | None = None
    unit: int | None = None
    every: float | None = None  # seconds between two looks, where nothing gives the time


@dataclass(frozen=True, slots=True)
class _Columns:
    """Which column is what, by number. Several for memory (vmstat's free, buff and cache) add up to what is free."""

    names: list[str]
    memory: list[int]
    time: int | None
    series: int | None
    asked: bool  # whether the user named the column of memory, and not one of the series

    def called(self, at: int) -> str:
        return f"column {self.names[at] if at < len(self.names) and self.names[at] else at + 1}"


def read_memory_table(path: str, wanted: Wanted) -> MemoryTable:
    try:
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            return _read((text for line in file if (text := line.replace("\0", "").strip())), wanted, path)
    except OSError as error:
        raise OomproofError(f"{path} cannot be read: {error.strerror}", status=USAGE) from None


def _read(lines: Iterator[str], wanted: Wanted, path: str) -> MemoryTable:
    head = list(islice(lines, _HEAD))
    if not head:
        raise OomproofError(f"{path} is empty", status=USAGE)
    sign = next((sign for sign in (";", "\t", ",") if sum(sign in line for line in head) > len(head) / 2), "")
    table = [line for line in head if _date_alone(line) is None] or head
    columns, cells = _columns([_cells(line, sign) for line in table], wanted, path, len(table) < len(head))
    unit, unit_name = _unit(columns, cells, wanted)
    read: dict[str, list[tuple[float, float]]] = {}
    look, at, seen, skipped = 0, None, set[str](), 0
    for line in chain(head, lines):
        row = _cells(line, sign)
        date = _date_alone(line) if columns.time is None else None
        if date is not None or row == columns.names[-len(row) :]:
            look, seen, at = look + bool(seen), set(), date or at
            continue
        if columns.time is not None:
            at = moment(row[columns.time]) if columns.time < len(row) else None
        parts = [size(row[at], unit) if at < len(row) else None for at in columns.memory]
        value = sum(part or 0.0 for part in parts) * (-1 if len(parts) > 1 else 1)
        if None in parts or abs(value) > _LARGEST or (columns.time is not None and at is None):
            skipped += 1
            continue
        key = row[columns.series] if columns.series is not None and columns.series < len(row) else ""
        if key in seen:
            look, seen = look + 1, set()
        seen.add(key)
        when = wanted.every * look if wanted.every else at
        if when is None:
            hint = "say how far apart two looks are (--every 5s), or let the loop print `date` before each"
            raise OomproofError(f"{path} says nothing of the time", hint, status=USAGE)
        read.setdefault(key, []).append((when, value))
    if not read:
        raise _unusable(path)
    longest, key = max(map(len, read.values())), wanted.column or ""
    if key not in read:  # the one that holds most at its end, of those that were there most of the time
        key = max(read, key=lambda key: (2 * len(read[key]) >= longest, read[key][-1][1]))
    if wanted.column not in (None, key) and not columns.asked:
        known = ", ".join(list(read)[:5])
        raise OomproofError(f"{path} has no {wanted.column}", f"it has {known}", status=USAGE)
    time = "dates between the rows" if columns.time is None else f"time from {columns.called(columns.time)}"
    time = f"looks {wanted.every:g} s apart" if wanted.every else time
    told = f"{time}, memory from {', '.join(map(columns.called, columns.memory))} in {unit_name}"
    if columns.series is not None:
        told += f", of {key}" + (
            f", the largest of {len(read)} (another: --column NAME)" if len(read) > 1 else ""
        )
    return _table(path, read[key], told, skipped)


def _cells(line: str, sign: str) -> list[str]:
    if sign and '"' in line:  # a reader for each line takes three times as long
        return [cell.strip() for cell in next(csv.reader([line], delimiter=sign, skipinitialspace=True), [])]
    if sign:
        return [cell.strip() for cell in line.split(sign)]
    if line.startswith("#"):  # psrecord's header, whose names stand two blanks apart
        return re.split(r"\s{2,}", line.lstrip("# "))
    return re.sub(r"(\d{4}-\d\d-\d\d) +(\d\d:\d\d)", r"\1T\2", line).split()


def _columns(rows: list[list[str]], wanted: Wanted, path: str, dated: bool) -> tuple[_Columns, Sequence[str]]:
    """Which column is what, and the first cells of memory. ``dated``: lines between the rows give the time."""

    def has_figure(row: list[str]) -> bool:
        return any(size(cell) is not None for cell in row)

    names, below = [], rows
    for at, row in enumerate(rows[:-1]):
        if len(row) > 1 and not has_figure(row) and has_figure(rows[at + 1]):
            # the rows of free have a label that its header does not name
            label = len(rows[at + 1]) - len(row) == 1 and rows[at + 1][0].endswith(":")
            names, below = [*([""] if label else []), *row], rows[at + 1 :]
            break
    columns = list(zip_longest(*filter(has_figure, below), fillvalue=""))
    titles = [names[at] if at < len(names) else None for at in range(len(columns))]

    def find(test: Callable[[str | None, Sequence[str]], bool]) -> list[int]:
        return [at for at, cells in enumerate(columns) if test(titles[at], cells)]

    time, asked = (_asked_for(name, titles, path) for name in (wanted.time, wanted.column))
    if time is None and wanted.every is None and not dated:
        times = find(lambda name, cells: bool(_TIME.search(name or "")) and _mostly(cells, moment))
        times += find(lambda name, cells: _mostly(cells, clock))
        times += find(lambda name, cells: name is None and len(titles) > 1 and _mostly(cells, moment))
        time = next((at for at in times if at != asked), None)
    series = find(lambda name, cells: name is not None and name.lower() in _SERIES and _repeats(name, cells))
    figures = [at for at in find(lambda name, cells: _mostly(cells, size)) if at not in (time, *series)]
    ranked = [(rank, at) for at in figures if (rank := _rank(titles[at] or "")) is not None]
    sized = [at for at in figures if _mostly(columns[at], _SIZE.fullmatch)]
    memory = sized[:1] or ([] if names else figures[-1:])
    if not ranked and {"free", "buff", "cache"} <= set(names):
        memory = [names.index(name) for name in ("free", "buff", "cache")]
    memory = [asked] if asked is not None else [min(ranked)[1]] if ranked else memory
    if not memory:
        raise _unusable(path)
    chosen = _Columns(names, memory, time, series[0] if series else None, asked is not None)
    return chosen, columns[memory[0]]


def _mostly(cells: Sequence[str], read: Callable[[str], object]) -> bool:
    return sum(read(cell) is not None for cell in cells) > len(cells) / 2


def _repeats(name: str, cells: Sequence[str]) -> bool:
    """An index, or a column without a name, may also count the rows."""
    return name.lower() == "pid" or len(set(cells)) <= max(1, len(cells) // 2)


def _rank(name: str) -> int | None:
    """How well a name says that the column is what a job holds; the smaller, the better."""
    ranks = (rank for rank, word in enumerate(_MEMORY) if word in name.lower())
    return None if _NO_MEMORY.search(name) else next(ranks, None)


def _asked_for(name: str | None, titles: list[str | None], path: str) -> int | None:
    if name is not None and name in titles:
        return titles.index(name)
    if name is not None and name.isdecimal() and 1 <= int(name) <= len(titles):
        return int(name) - 1
    if name is None or any(title is not None and title.lower() in _SERIES for title in titles):
        return None  # nothing, or one of the series
    known = ", ".join(filter(None, titles)) or f"{len(titles)} columns without names: give a number from 1"
    raise OomproofError(f"{path} has no column {name}", f"it has {known}", status=USAGE)


def _unit(columns: _Columns, cells: Sequence[str], wanted: Wanted) -> tuple[int, str]:
    if wanted.unit:
        return wanted.unit, "the unit you named"
    if _mostly(cells, _SIZE.fullmatch):
        return 1, "the units of its cells"
    name = columns.names[columns.memory[0]] if columns.names else ""
    if found := _UNIT.search(name):
        return _FACTORS[found[1].lower()], f"{found[1].upper()}iB"
    # ps, free and vmstat count in KiB; psutil's rss has the same name, and is in bytes
    known = sorted(value for cell in cells if (value := number(cell)) is not None)
    in_kib = not name or re.search(r"rss|^(?:used|free)$", name, re.I)
    if in_kib and not (known and known[len(known) // 2] * KIB > _LARGEST_JOB):
        return KIB, "KiB (as ps counts; else: --unit)"
    return 1, "bytes"


def _date_alone(line: str) -> float | None:
    """The time of a line that `date` printed, in whatever form."""
    if (value := number(line)) is not None:
        return value if 1e9 < value < 4e9 else None
    return clock(line)


def _table(path: str, samples: list[tuple[float, float]], told: str, skipped: int) -> MemoryTable:
    days, before, in_order = 0.0, 0.0, []
    for t, value in samples:
        days += _DAY * (
            t < before - _DAY / 2 and before < _DAY
        )  # a clock without a date continues over midnight
        before = t
        in_order.append((t + days, value))
    least = min(
        0.0, min((value for _, value in in_order), default=0.0)
    )  # of what is left, only the loss is known
    samples = sorted((t, value - least) for t, value in in_order)
    # what it held while it died says nothing of growth; a last row that was cut looks the same
    ended = teardown_begin([(t, int(value)) for t, value in samples])
    samples = [sample for sample in samples if sample[0] < ended]
    if len(samples) < 2:
        raise _unusable(path)
    return MemoryTable(samples, samples[0][0] > _FIRST_YEARS, told, skipped)


def _unusable(path: str) -> OomproofError:
    return OomproofError(
        f"{path} has no rows with a time and a number of bytes",
        "name the columns (--time NAME --column NAME, or their numbers from 1); without a time: --every SECONDS",
        status=USAGE,
    )


def number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None


def size(cell: str, unit: int = 1) -> float | None:
    """Bytes; ``unit`` where the cell has none of its own."""
    if (value := number(cell)) is not None:
        return value * unit
    found = _SIZE.fullmatch(cell)
    if found is None or (value := number(found[1])) is None:
        return None
    name = found[2].lower()
    decimal = name in ("kb", "mb", "gb", "tb")
    return value * (1000 ** ("kmgt".index(name[0]) + 1) if decimal else _FACTORS[name[0]])


def moment(cell: str) -> float | None:
    """Seconds: since 1970 where it is a date, since midnight of a clock alone, else what the number says."""
    if (value := number(cell)) is None:
        return clock(cell)
    while value > 1e11:  # milli-, micro- and nanoseconds since 1970
        value /= 1e3
    return value


def clock(text: str) -> float | None:
    """The same for a text that is no bare number. A named zone other than UTC is taken for this machine's."""
    if len(text) > 45 or ":" not in text:
        return None
    utc = re.search(r"\b(?:UTC|GMT)\b", text) is not None
    # nvidia-smi writes 2026/11/16, and `date` a zone before or behind the year
    plain = re.sub(r" (?!AM\b|PM\b)[A-Z]{2,5}(?= \d{4}$|$)", "", re.sub(r"^(\d{4})/(\d\d)/", r"\1-\2-", text))
    for form in ("", "%H:%M:%S", "%a %b %d %H:%M:%S %Y", "%a %d %b %Y %H:%M:%S", "%a %d %b %Y %I:%M:%S %p"):
        try:
            read = datetime.strptime(plain, form) if form else datetime.fromisoformat(plain)
            if read.year == 1900:
                return read.hour * 3600.0 + read.minute * 60.0 + read.second
            return (read.replace(tzinfo=UTC) if utc else read).timestamp()
        except (ValueError, OverflowError, OSError):
            continue
    return None
