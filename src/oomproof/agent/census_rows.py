"""The same data held in several forms: containers of as many rows whose sampled rows hold the same text or numbers.

Rows are compared here and now; nothing of them is kept or sent."""

from __future__ import annotations

import gc
import struct
import sys
from itertools import islice

from .census_kinds import (
    ARROW,
    CONTAINERS,
    DATASET,
    DICT,
    LEAF,
    LIST,
    NUMPY,
    OBJECT,
    PANDAS,
    REACH,
    TENSOR,
    TUPLE,
    Kind,
    Kinds,
    length,
)
from .census_tables import arrow_table, pandas_parts
from .frame_variables import is_ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .census_kinds import Clock
    from .census_walk import Thing

LEAST_ROWS = 1000
_ROWS = 24  # compared, spread over all
_PARTS = 12  # texts or numbers of one row
_TEXT = 12  # characters: a shorter one (a label, a yes) says nothing
_LONG, _PIECE = 400, 120  # characters: of a longer text, three pieces of it
_MOST, _FEW = 0.8, 0.2  # of the rows that are the same; of those that are like the next one too
_AS_MANY = 0.9  # a prefilter: what is compared then is rows
_HOLDERS = 10  # of one number of rows
_FORMATS = {"float32": "f", "float64": "d", "int64": "q", "int32": "i", "int16": "h"}

COPY, SHARED = "copy", "shared"


class Row:
    """What is in one row, while it is compared."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.numbers: list[float] = []
        self.ids: set[int] = set()  # of the row and its texts, where they are Python objects


def copies(things: list[Thing], kinds: Kinds, clock: Clock) -> list[dict[str, Any]]:
    """[{rows, holders: [[place in things, …], …]}]: holders of one inner list share their rows, and are one copy."""
    told = []
    for places in _alike(things):
        count = min(things[place].rows for place in places)
        rows = {}
        for place in places:
            clock.check()
            rows[place] = rows_of(things[place].value, count, kinds)
        for group in _groups(places, rows, things):
            if len(group) > 1:
                told.append({"rows": count, "holders": group})
        rows.clear()
    return told


def _alike(things: list[Thing]) -> list[list[int]]:
    """Those of about as many rows, largest first: of what is filled piece by piece, one may be a piece ahead."""
    places = [place for place, thing in enumerate(things) if thing.rows >= LEAST_ROWS and thing.ram]
    places.sort(key=lambda place: things[place].rows)
    groups: list[list[int]] = []
    for place in places:
        if groups and things[groups[-1][0]].rows >= _AS_MANY * things[place].rows:
            groups[-1].append(place)
        else:
            groups.append([place])
    return [
        sorted(group, key=lambda place: -things[place].ram)[:_HOLDERS]
        for group in reversed(groups)
        if len(group) > 1
    ]


def _groups(places: list[int], rows: dict[int, list[Row]], things: list[Thing]) -> list[list[list[int]]]:
    groups: list[list[list[int]]] = []
    for place in places:
        for group in groups:
            relations = [
                (relation(rows[place], rows[inner[0]], things[place], things[inner[0]]), inner)
                for inner in group
            ]
            sharing = next((inner for how, inner in relations if how == SHARED), None)
            if sharing is not None:
                sharing.append(place)
                break
            if any(how == COPY for how, _ in relations):
                group.append([place])
                break
        else:
            groups.append([[place]])
    return groups


def relation(first: list[Row], second: list[Row], one: Any = None, other: Any = None) -> str:
    """COPY, SHARED (the same objects, or the same memory), or nothing."""
    address = getattr(one, "address", 0)
    if address and address == getattr(other, "address", 0):
        return SHARED
    if len(first) != len(second) or len(first) < _ROWS // 2:
        return ""
    pairs = list(zip(first, second))
    if sum(bool(here.ids & there.ids) for here, there in pairs) >= _MOST * len(pairs):
        return SHARED
    shifted = list(zip(first, second[1:] + second[:1]))
    for alike in (_same_text, _same_numbers):
        same = sum(alike(here, there) for here, there in pairs)
        by_chance = sum(alike(here, there) for here, there in shifted)
        if same >= _MOST * len(pairs) and by_chance <= _FEW * len(pairs):
            return COPY
    return COPY if _same_column(first, second) else ""


def _same_text(here: Row, there: Row) -> bool:
    return any(_within(a, b) or _within(b, a) for a in here.texts for b in there.texts)


def _within(small: str, large: str) -> bool:
    if not _TEXT <= len(small) <= len(large):
        return False
    if len(small) <= _LONG:
        return small in large
    middle = len(small) // 2
    return all(small[at : at + _PIECE] in large for at in (0, middle, len(small) - _PIECE))


def _same_numbers(here: Row, there: Row) -> bool:
    count = min(len(here.numbers), len(there.numbers))
    if count < 4 or len(set(here.numbers[:count])) < 3:
        return False
    return all(_close(a, b) for a, b in zip(here.numbers[:count], there.numbers[:count]))


def _same_column(first: list[Row], second: list[Row]) -> bool:
    """One number a row: only where the numbers tell rows apart, and do not merely count them."""
    if any(len(row.numbers) != 1 for row in first + second):
        return False
    here, there = [row.numbers[0] for row in first], [row.numbers[0] for row in second]
    if len(set(here)) < _MOST * len(here) or not all(_close(a, b) for a, b in zip(here, there)):
        return False
    steps = [b - a for a, b in zip(here, here[1:])]
    return max(steps) - min(steps) > 0.01 * abs(max(here) - min(here))


def _close(a: float, b: float) -> bool:
    return a == b or abs(a - b) <= 1e-5 * max(abs(a), abs(b))  # float32 of a float64


# --- rows of a value ------------------------------------------------------------------------------------------


def rows_of(value: Any, count: int, kinds: Kinds) -> list[Row]:
    """Empty where its rows cannot be read without running code of the job's."""
    step = count // _ROWS
    at = [step // 2 + number * step for number in range(_ROWS)]
    kind = kinds.of(value)
    try:
        if kind.role in CONTAINERS:
            return [_row(element, kinds) for element in _elements(value, kind, at)]
        if kind.role in (ARROW, DATASET):
            return _of_arrow(arrow_table(value) if kind.role == DATASET else value, at)
        if kind.role == PANDAS:
            return _of_pandas(value, at, kinds)
        if kind.role == NUMPY:
            return [_of_array(value, number) for number in at]
        if kind.role == TENSOR:
            return [_of_tensor(value, number) for number in at]
    except Exception as error:  # changed by another thread, of another version
        if not is_ours(error):
            raise
    return []


def _elements(value: Any, kind: Kind, at: list[int]) -> list[Any]:
    if kind.role in (LIST, TUPLE):
        return [kind.base.__getitem__(value, number) for number in at]
    if at[-1] > REACH:
        return []
    elements = dict.values(value) if kind.role == DICT else kind.base.__iter__(value)
    # in one call: other threads may change it
    return list(islice(elements, at[0], at[-1] + 1, at[1] - at[0]))


def _row(element: Any, kinds: Kinds) -> Row:
    row = Row()
    if kinds.of(element).role != LEAF:
        row.ids.add(id(element))
    _gather(element, kinds, row, 2)
    return row


def _gather(value: Any, kinds: Kinds, row: Row, depth: int) -> None:
    if len(row.texts) + len(row.numbers) >= 2 * _PARTS:
        return
    kind = kinds.of(value)
    if type(value) is str:
        row.texts.append(value)
        if len(value) >= _TEXT:
            row.ids.add(id(value))
    elif type(value) is bytes:
        row.texts.append(value[:4096].decode("utf-8", "ignore"))
    elif type(value) is int or type(value) is float:
        if abs(value) < 1e300:
            row.numbers.append(value)
    elif kind.role == NUMPY:
        row.numbers += _of_array(value, None).numbers
    elif kind.role == TENSOR:
        row.numbers += _of_tensor(value, None).numbers
    elif depth > 0 and kind.role in CONTAINERS and length(value, kind) <= 100_000:
        elements = list(dict.values(value)) if kind.role == DICT else list(kind.base.__iter__(value))
        for element in elements[:_PARTS]:
            _gather(element, kinds, row, depth - 1)
    elif depth > 0 and kind.role == OBJECT:
        for held in gc.get_referents(value)[:_PARTS]:
            _gather(held, kinds, row, depth - 1)


def _add(row: Row, value: Any) -> None:
    if type(value) is str:
        row.texts.append(value)
    elif type(value) in (int, float):
        row.numbers.append(value)


def _of_array(value: Any, at: int | None) -> Row:
    row = Row()
    if type(value) is not sys.modules["numpy"].ndarray or value.dtype.kind not in "fiuUS" or not value.size:
        return row  # a subclass has code of its own behind an index
    part = value if at is None else value[at]
    if getattr(part, "ndim", 0):
        part = part[(0,) * (part.ndim - 1)][:_PARTS]
    told = part.tolist()
    for element in told if isinstance(told, list) else [told]:
        _add(row, element.decode("utf-8", "ignore") if isinstance(element, bytes) else element)
    return row


def _of_tensor(value: Any, at: int | None) -> Row:
    """Read where they lie: an operation might be recorded, counted or waited for."""
    row = Row()
    torch, ctypes = sys.modules["torch"], sys.modules.get("ctypes")
    with torch._C.DisableTorchFunction():
        get = torch.Tensor
        code = _FORMATS.get(str(get.dtype.__get__(value)).replace("torch.", ""))
        on_cpu = str(get.device.__get__(value)) == "cpu" and str(get.layout.__get__(value)) == "torch.strided"
        if code is None or ctypes is None or not on_cpu or not get.is_contiguous(value):
            return row
        shape, address = tuple(get.size(value)), int(get.data_ptr(value))
        width = int(get.element_size(value))
    length_of_row = 1
    for side in shape if at is None else shape[1:]:
        length_of_row *= int(side)
    if address and length_of_row:
        count = min(length_of_row, _PARTS)
        data = ctypes.string_at(address + (at or 0) * length_of_row * width, count * width)
        row.numbers += [number for number in struct.unpack(f"{count}{code}", data) if abs(number) < 1e300]
    return row


def _of_arrow(table: Any, at: list[int]) -> list[Row]:
    columns = (
        [table.column(number) for number in range(min(8, table.num_columns))]
        if hasattr(table, "num_columns")
        else [table]
    )
    rows = []
    for number in at:
        row = Row()
        for column in columns:
            _add_scalar(row, column[number])
        rows.append(row)
    return rows


def _add_scalar(row: Row, scalar: Any) -> None:
    kind = type(scalar).__name__
    if not type(scalar).__module__.startswith("pyarrow") or kind == "ExtensionScalar":
        return  # a type of the user's own
    if kind in ("ListScalar", "LargeListScalar", "FixedSizeListScalar"):
        values = scalar.values
        for element in values[:_PARTS].to_pylist() if values is not None else ():
            _add(row, element)
    elif kind != "StructScalar" and len(row.texts) + len(row.numbers) < 2 * _PARTS:
        _add(row, scalar.as_py())
    elif kind == "StructScalar":
        for element in list(scalar.values())[:_PARTS]:
            _add_scalar(row, element)


def _of_pandas(value: Any, at: list[int], kinds: Kinds) -> list[Row]:
    rows = [Row() for _ in at]
    for part in pandas_parts(value)[:_PARTS]:
        kind = kinds.of(part)
        for row, number in zip(rows, at):
            if kind.role == ARROW:
                _add_scalar(row, part[number])
            elif kind.role == NUMPY:
                cells = part[:_PARTS, number] if part.ndim == 2 else part[number : number + 1]
                for cell in cells.tolist():
                    if type(cell) is str:
                        row.ids.add(id(cell))
                    _add(row, cell)
    return rows
