"""Notebooks (.ipynb): what their cells printed and raised, as lines of a text; code, prose and pictures are left out."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, chain
from typing import Any

Numbered = tuple[int, str]

_BEGINS = re.compile(r"\s*\{\s*\"(?:cells|metadata|nbformat|nbformat_minor|worksheets)\"\s*:")
_LOOK = 4  # lines
_MOST = 32 << 20  # characters: pictures are kept in it
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Outputs:
    """The lines of one text; of a notebook those of its outputs, each under the number of its string in the file."""

    def __init__(self, lines: Iterable[Numbered]) -> None:
        rest = iter(lines)
        held: list[Numbered] = []
        for part in rest:
            held.append(part)
            if len(held) >= _LOOK or len(part[1]) > _LOOK * 100:
                break
        self._lines: Iterator[Numbered] = chain(held, rest)
        if _BEGINS.match("\n".join([line for _, line in held])[:400]):
            self._lines = _read(held, rest)

    def __iter__(self) -> Iterator[Numbered]:
        return self._lines


def _read(held: list[Numbered], rest: Iterator[Numbered]) -> Iterator[Numbered]:
    size = sum(len(line) for _, line in held)
    for part in rest:
        held.append(part)
        size += len(part[1])
        if size > _MOST:
            return chain(held, rest)
    raw: dict[int, list[str]] = {}
    for number, line in held:  # a long line comes in pieces
        raw.setdefault(number, []).append(line)
    whole = ["".join(pieces) for pieces in raw.values()]
    try:
        book = json.loads("\n".join(whole))
    except (ValueError, RecursionError):  # cut, or no notebook
        return iter(held)
    cells = _cells(book)
    return iter(held) if cells is None else _outputs(cells, _Places(whole, next(iter(raw), 1)))


def _cells(book: object) -> list[Mapping[str, Any]] | None:
    """Those that can have outputs; None for another kind of record."""
    if not isinstance(book, dict):
        return None
    sheets = book.get("worksheets")
    cells: object = book.get("cells")
    if isinstance(sheets, list):  # the third format
        kept = [sheet.get("cells") for sheet in sheets if isinstance(sheet, dict)]
        cells = [cell for part in kept if isinstance(part, list) for cell in part]
    if not isinstance(cells, list) or "nbformat" not in book:
        return None
    return [cell for cell in cells if isinstance(cell, dict) and isinstance(cell.get("outputs"), list)]


class _Places:
    """Where in the file a string stands, looked for from the last one on."""

    def __init__(self, lines: list[str], first: int) -> None:
        self._text = "\n".join(lines)
        self._ends = list(accumulate(len(line) + 1 for line in lines))
        self._first = first
        self._at = 0

    def of(self, string: str) -> int:
        for ascii_only in (False, True):
            written = json.dumps(string, ensure_ascii=ascii_only)
            at = self._text.find(written, self._at)
            if at >= 0:
                self._at = at
                break
        return self._first + bisect_right(self._ends, self._at)


def _outputs(cells: list[Mapping[str, Any]], places: _Places) -> Iterator[Numbered]:
    failed = [cell for cell in cells if any(map(_is_error, cell["outputs"]))]
    last = max(failed, key=_count, default=None)  # of several, the one that was run last
    for cell in filter(_has_outputs, cells):
        number = places.of("outputs")
        yield number, f"In [{_count(cell)}]:"
        past = last is not None and _count(cell) < _count(last)
        for output in cell["outputs"]:
            if not isinstance(output, dict) or (past and cell in failed and _is_error(output)):
                continue
            for string in _strings(output):
                number = places.of(string)
                plain = _ANSI.sub("", string).encode("utf-8", "replace").decode()  # JSON may hold half a pair
                for line in plain.split("\n"):
                    for segment in line.split("\r"):
                        if segment:
                            yield number, segment


def _has_outputs(cell: Mapping[str, Any]) -> bool:
    return bool(cell["outputs"])


def _count(cell: Mapping[str, Any]) -> int:
    count = cell.get("execution_count", cell.get("prompt_number"))
    return count if isinstance(count, int) else 0


def _is_error(output: object) -> bool:
    return isinstance(output, dict) and output.get("output_type") in ("error", "pyerr")


def _strings(output: Mapping[str, Any]) -> list[str]:
    if _is_error(output):
        frames = output.get("traceback")
        told = [frame for frame in frames if isinstance(frame, str)] if isinstance(frames, list) else []
        return told or ["Traceback (most recent call last)", f"{output.get('ename')}: {output.get('evalue')}"]
    data = output.get("data")
    text = data.get("text/plain") if isinstance(data, dict) else output.get("text")
    if isinstance(text, list):
        return [line for line in text if isinstance(line, str)]
    return [text] if isinstance(text, str) else []
