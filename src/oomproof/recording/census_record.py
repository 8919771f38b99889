"""What was alive in a process of the job, as its agent wrote it down (``PID-census-N.json``), and that in a few words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from oomproof.recording.state_files import read_json
from oomproof.records import dataclass
from oomproof.units import MIB, format_size

_FILE = re.compile(r"([0-9]{1,9})-census-([0-9]{1,6})\.json")
_SHOWN = MIB  # less is no news
_LARGEST = 1 << 62


@dataclass(frozen=True, slots=True)
class Thing:
    """A value that has a name in the job's program."""

    name: str
    scope: str  # local, global or attribute
    function: str  # of a local variable
    file: str
    line: int  # where the function begins
    what: str  # "list of 300,000 dict"
    length: int
    ram: int
    mapped: int  # page cache: files it has mapped
    gpu: int
    part: str = ""  # "model", "optimizer": not data, of which a program could keep less

    @property
    def key(self) -> tuple[str, ...]:
        return (self.scope, self.function, self.file, self.name)

    @property
    def total(self) -> int:
        return self.ram + self.mapped + self.gpu


@dataclass(frozen=True, slots=True)
class Copies:
    """Forms of the same rows. What shares its objects with another stands beside it: that is one copy."""

    rows: int
    holders: tuple[tuple[Thing, ...], ...]

    @property
    def ram(self) -> int:
        return sum(thing.ram for holder in self.holders for thing in holder)


@dataclass(frozen=True, slots=True)
class Census:
    pid: int
    t: float
    wall: float
    request: str
    why: str
    phase: str
    step: int | None
    anon: int | None  # of the process
    ram: int  # of all that has a name
    mapped: int
    gpu: int
    complete: bool
    seconds: float
    things: tuple[Thing, ...]
    copies: tuple[Copies, ...]

    @property
    def largest_copies(self) -> Copies | None:
        """The rows whose copies take most; None where no data is held twice."""
        large = [group for group in self.copies if group.ram >= _SHOWN]
        return max(large, key=lambda group: group.ram, default=None)


def read_all(folder: Path, pid: int | None = None) -> list[Census]:
    """Oldest first; files that are cut or not ours are left out."""
    try:
        paths = [
            path
            for path in folder.iterdir()
            if (match := _FILE.fullmatch(path.name)) and pid in (None, int(match[1]))
        ]
    except OSError:
        return []
    censuses = [census for path in paths if (census := read(path)) is not None]
    return sorted(censuses, key=lambda census: census.t)


def read(path: Path) -> Census | None:
    value = read_json(path)
    try:
        things = tuple(_thing(row) for row in value["things"])
        copies = tuple(
            Copies(
                _size(group["rows"]),
                tuple(
                    tuple(things[_size(place)] for place in holder) for holder in group["holders"] if holder
                ),
            )
            for group in value["copies"]
        )
        step, anon = value.get("step"), value.get("anon")
        return Census(
            pid=_size(value["pid"]), t=float(value["t"]), wall=float(value["wall"]), request=str(value["request"])[:60],
            why=str(value["why"])[:200], phase=str(value.get("phase") or "")[:60],
            step=step if isinstance(step, int) else None, anon=_size(anon) if anon is not None else None,
            ram=_size(value["seen"]), mapped=_size(value["mapped"]), gpu=_size(value["gpu"]),
            complete=value["complete"] is True, seconds=float(value["seconds"]), things=things, copies=copies,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
        return None


def _thing(row: Mapping[str, Any]) -> Thing:
    name, scope, function = (str(row[name])[:200] for name in ("name", "scope", "function"))
    length, ram, mapped, gpu = (_size(row[name]) for name in ("length", "ram", "mapped", "gpu"))
    file, what = str(row["file"])[:4000], str(row["what"])[:200]
    part = str(row.get("part") or "")[:20]
    return Thing(name, scope, function, file, _size(row["line"]), what, length, ram, mapped, gpu, part)


def _size(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LARGEST:
        raise ValueError(value)
    return value


# --- in words -------------------------------------------------------------------------------------------------


def thing_text(thing: Thing, sharing: str = "") -> str:
    """``examples (list of 300,000 dict, 108 MiB)``; ``sharing``: names of others that show the same objects."""
    return f"{thing.name} ({thing.what}, {size_text(thing)}{f'; the same objects are in {sharing}' if sharing else ''})"


def size_text(thing: Thing) -> str:
    parts = [format_size(thing.ram)] if thing.ram >= thing.total // 100 or not thing.total else []
    if thing.mapped:
        parts.append(f"{format_size(thing.mapped)} mapped from disk")
    if thing.gpu:
        parts.append(f"{format_size(thing.gpu)} on the GPU")
    return " and ".join(parts)


def copies_text(group: Copies) -> str:
    """``examples (…), train_data (…) and dataset (…) hold the same 300,000 rows: 3 copies``."""
    names = []
    for holder in group.holders:
        names.append(thing_text(holder[0], " and ".join(thing.name for thing in holder[1:3])))
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{listed} hold the same {group.rows:,} rows: {len(names)} copies"


@dataclass(frozen=True, slots=True)
class Grown:
    thing: Thing
    before: int  # bytes; 0: it had no name then
    since: float  # wall


def grown(censuses: Iterable[Census]) -> list[Grown]:
    """What grew from the first census of a process to its last, most first."""
    ordered = list(censuses)
    last = ordered[-1] if ordered else None
    earlier = [census for census in ordered[:-1] if last is not None and census.pid == last.pid]
    if last is None or not earlier:
        return []
    first = earlier[0]
    before: dict[tuple[str, ...], int] = {}
    for thing in first.things:
        before[thing.key] = before.get(thing.key, 0) + thing.ram
    rises = [Grown(thing, before.get(thing.key, 0), first.wall) for thing in last.things]
    large = [rise for rise in rises if rise.thing.ram - rise.before >= _SHOWN]
    return sorted(large, key=lambda rise: rise.before - rise.thing.ram)


def summary(censuses: list[Census]) -> str:
    """One line of the last: copies where there are some, what grew, else what is largest."""
    last = censuses[-1]
    if (group := last.largest_copies) is not None:
        return copies_text(group)
    if rises := grown(censuses)[:2]:
        return "grew since the last look: " + ", ".join(
            f"{rise.thing.name} ({rise.thing.what}) +{format_size(rise.thing.ram - rise.before)}"
            for rise in rises
        )
    large = [thing for thing in last.things if thing.ram >= _SHOWN][:3]
    return (
        "largest: " + ", ".join(map(thing_text, large))
        if large
        else "nothing large has a name in the program"
    )
