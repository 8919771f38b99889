"""What loading CSV and JSON Lines costs, estimated from rows all over the file."""

from __future__ import annotations

import csv
import json
import os
import shlex
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

from oomproof.sizing.data.load_cost import SAMPLED, LoadCost, Part, call, plural
from oomproof.sizing.data.source_file import BadFile, file_size
from oomproof.sizing.data.text_sample import (
    TextSample,
    object_size,
    objects_per_row,
    pandas_version,
    read_sample,
    text_is_arrow,
)

# What pandas takes for a missing value, in short.
_MISSING = {"", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "<NA>", "#N/A", "n/a"}
# What splitting lines into cells takes, from pandas' sources: version 2 splits 2^19 cells at a time (8 bytes for where
# each begins, 8 for a pointer, and its text), version 3 splits blocks of 4 MiB in up to six threads.
_CELLS_AT_ONCE = 1 << 19
_BLOCK, _THREADS = 4 << 20, 6


def csv_cost(file: BinaryIO, path: str, tabs: bool = False) -> LoadCost:
    sample = read_sample(file, path)
    heading = _decoded(path, [(0, sample.first)])[0]
    separator = "\t" if tabs else max(",;\t|", key=heading.count)
    names = next(csv.reader([heading], delimiter=separator), [])
    rows, taken = _csv_rows(sample, path, separator)
    if not rows:
        raise BadFile(path, "has a heading and no rows", "check what wrote it")
    width = len(rows[0])
    # pandas makes cells without a name the index
    names = [*["(index)"] * (width - len(names)), *names][:width]
    count = sample.rows(len(rows), taken, len(sample.first) + 1)
    pandas, arrow = pandas_version(), text_is_arrow()
    columns = [
        _csv_column(name, values, count, arrow)
        for name, values in zip(names, zip(*rows, strict=True), strict=True)
    ]
    kept = sum(column.bytes or 0 for column in columns)
    cells = count * len(columns)
    # Chunks are joined column by column: numbers are copied; before pandas 3 also the pointers to texts.
    copied = (
        sum(column.bytes or 0 for column in columns if column.type != "text") if pandas >= 3 else 8 * cells
    )
    splitting = _splitting(pandas, cells, sample.size)
    usual = call("pd.read_csv", path, *([] if separator == "," else [f"sep={separator!r}"]))
    return LoadCost(
        "TSV" if separator == "\t" else "CSV",
        "csv",
        f"{'' if sample.whole else 'about '}{plural(count, 'row')} of {plural(len(names), 'column')}",
        sample.size,
        usual,
        kept + max(copied, splitting),  # one after the other
        kept,
        SAMPLED,
        tuple(columns),
        cheaper=(
            usual[:-1] + ", chunksize=100_000): a part at a time",
            usual[:-1] + ", usecols=[…], dtype={…: 'float32', …: 'category'})",
            f"oomproof data split {shlex.quote(path)} --rows 100000",
        ),
    )


def _csv_rows(sample: TextSample, path: str, separator: str) -> tuple[list[list[str]], int]:
    """Rows of the usual width (a line break within quotes makes others), and the bytes they take."""
    by_width: dict[int, list[list[str]]] = {}
    sizes: dict[int, int] = {}
    lines = [(at, line) for at, line in sample.lines if at != 0]
    for text, (_, line) in zip(_decoded(path, lines), lines, strict=True):
        try:
            fields = next(csv.reader([text], delimiter=separator), [])
        except csv.Error:
            continue
        by_width.setdefault(len(fields), []).append(fields)
        sizes[len(fields)] = sizes.get(len(fields), 0) + len(line) + 1
    width = max(by_width, key=lambda width: len(by_width[width]), default=0)
    return by_width.get(width, []), sizes.get(width, 0)


def _csv_column(name: str, values: Sequence[str], rows: int, arrow: bool) -> Part:
    there = [value for value in values if value not in _MISSING]
    if not there:
        return Part(name, "float64", (rows,), 8 * rows)
    if all(value in ("True", "False", "TRUE", "FALSE", "true", "false") for value in there):
        whole = len(there) == len(values)
        return Part(name, "bool" if whole else "objects", (rows,), (1 if whole else 8) * rows)
    if all(map(_is_number, there)):
        whole = len(there) == len(values) and all(map(_is_integer, there))
        return Part(name, "int64" if whole else "float64", (rows,), 8 * rows)
    if arrow:  # an offset of 8 bytes, the text, a bit for missing
        size = 8 + 1 / 8 + sum(len(value.encode()) for value in there) / len(values)
    else:
        size = objects_per_row([value or None for value in values])
    return Part(name, "text", (rows,), int(size * rows))


def _splitting(pandas: int, cells: int, size: int) -> int:
    if pandas >= 3:
        blocks = min(size, _BLOCK * min(_THREADS, os.cpu_count() or 1))
        return blocks + 24 * cells * blocks // size
    return min(cells, _CELLS_AT_ONCE) * (16 + size // max(1, cells))


def _is_integer(text: str) -> bool:
    text = text.strip()
    return text.removeprefix("-").removeprefix("+").isdecimal() and len(text) < 20


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def jsonl_cost(file: BinaryIO, path: str) -> LoadCost:
    sample = read_sample(file, path)
    texts = _decoded(path, sample.lines)
    held, taken, cut = 0, 0, False
    for (at, line), text in zip(sample.lines, texts, strict=True):
        try:
            held += _deep_size(json.loads(text)) + 9  # its slot in a list that grows by an eighth
        except (ValueError, RecursionError) as error:
            if at + len(line) >= file_size(file) - 1 and len(texts) > 1:
                cut = True  # the last line, of a file that is being written
                continue
            problem = getattr(error, "msg", "too deep")
            raise BadFile(
                path, f"the line at byte {at:,} is not JSON ({problem})", "check that line"
            ) from None
        taken += len(line) + 1
    rows = len(texts) - cut
    count = sample.rows(rows, taken, 0)
    kept = held * count // max(1, rows)
    return LoadCost(
        "JSON Lines",
        "jsonl",
        f"{'' if sample.whole else 'about '}{plural(count, 'row')}",
        sample.size,
        f"[json.loads(line) for line in {call('open', path)}]",
        kept,
        kept,
        SAMPLED,
        notes=("the last line is cut: the file is still being written, or was not finished",) if cut else (),
        cheaper=(
            f"for line in {call('open', path)}: a row at a time, nothing is kept",
            f'datasets.load_dataset("json", data_files={call("", path)[1:-1]}): converted once, then mapped',
            f"oomproof data split {shlex.quote(path)} --rows 50000",
        ),
    )


def _deep_size(value: Any) -> int:
    """What a row takes as Python objects; keys are made anew for each row, but once in it."""
    counted: set[int] = set()

    def size(value: Any) -> int:
        if id(value) in counted or value is None or isinstance(value, bool):
            return 0
        if type(value) is int and -5 <= value <= 256:
            return 0  # made once for all
        counted.add(id(value))
        inner: Iterable[Any] = ()
        if isinstance(value, dict):
            inner = (*value.keys(), *value.values())
        elif isinstance(value, list):
            inner = value
        return object_size(value) + sum(map(size, inner))

    return size(value)


def _decoded(path: str, lines: Iterable[tuple[int, bytes]]) -> list[str]:
    texts = []
    for at, line in lines:
        try:
            texts.append(line.decode("utf-8-sig" if at == 0 else "utf-8"))
        except UnicodeDecodeError as error:
            raise BadFile(
                path,
                f"is not UTF-8 at byte {at + error.start:,}",
                "iconv -f WINDOWS-1252 -t UTF-8 makes it UTF-8, if that is what it is",
            ) from None
    return texts
