"""Whole lines from all over a text file, without reading the rest of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import BinaryIO

from oomproof.records import dataclass
from oomproof.sizing.data.source_file import BadFile, file_size


def pandas_version() -> int:
    """The major one. Without pandas the figures are those of version 2, which takes more."""
    return _major_version("pandas") or 2


def text_is_arrow() -> bool:
    return pandas_version() >= 3 and _major_version("pyarrow") > 0


def _major_version(package: str) -> int:
    try:
        return int(metadata.version(package).partition(".")[0])
    except (metadata.PackageNotFoundError, ValueError):
        return 0


def object_size(value: object) -> int:
    """As CPython's allocator rounds it."""
    return (sys.getsizeof(value) + 15) // 16 * 16


def objects_per_row(values: Sequence[object]) -> float:
    """Bytes a row takes: a pointer, and an object for each value that is not the same as one before."""
    distinct = {value for value in values if value is not None}
    return 8 + sum(map(object_size, distinct)) / max(1, len(values))


_WHOLE = 4 << 20  # bytes: a file of that size is read as a whole
_BLOCKS, _BLOCK = 32, 128 << 10
_LONGEST_LINE = 64 << 20
_WIDE = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class TextSample:
    size: int  # bytes of the file
    first: bytes  # its first line
    lines: list[tuple[int, bytes]]  # (where it begins, the line without its end), the first line among them
    whole: bool  # these are all lines

    def rows(self, lines: int, size: int, without: int) -> int:
        """How many rows the file has when ``lines`` rows of the sample took ``size`` bytes; ``without``: of a heading."""
        return lines if self.whole else round((self.size - without) * lines / max(1, size))


def read_sample(file: BinaryIO, path: str) -> TextSample:
    size = file_size(file)
    start = file.read(_WHOLE if size <= _WHOLE else _BLOCK)
    if start.startswith(_WIDE) or b"\0" in start[:4096]:
        raise BadFile(
            path, "is not UTF-8 text (UTF-16, or binary)", "iconv -f UTF-16 -t UTF-8 makes it UTF-8"
        )
    if size <= _WHOLE:
        lines = list(_lines(0, start + b"\n" if not start.endswith(b"\n") else start))
    else:
        lines = [line for at in _offsets(size) for line in _block_lines(file, at)]
        if not lines or lines[0][0] != 0:
            lines = _long_lines(file, path)
    if not lines:
        raise BadFile(path, "has no rows", "check what wrote it")
    return TextSample(size, lines[0][1], lines, size <= _WHOLE)


def refuse_wide(start: bytes, path: str) -> None:
    if start.startswith(_WIDE) or b"\0" in start[:4096]:
        raise BadFile(
            path, "is not UTF-8 text (UTF-16, or binary)", "iconv -f UTF-16 -t UTF-8 makes it UTF-8"
        )


def _offsets(size: int) -> Iterator[int]:
    return (round(number * (size - _BLOCK) / (_BLOCKS - 1)) for number in range(_BLOCKS))


def _block_lines(file: BinaryIO, at: int) -> Iterator[tuple[int, bytes]]:
    file.seek(at)
    block = file.read(_BLOCK)
    begin = 0 if at == 0 else block.find(b"\n") + 1
    if at == 0 or begin:
        yield from _lines(at + begin, block[begin:])


def _lines(at: int, block: bytes) -> Iterator[tuple[int, bytes]]:
    """Those that end within it and are not blank."""
    *whole, _ = block.split(b"\n")
    for line in whole:
        if line.strip():
            yield at, line.removesuffix(b"\r")
        at += len(line) + 1


def _long_lines(file: BinaryIO, path: str) -> list[tuple[int, bytes]]:
    """Lines that are longer than a block: the first ones, as far as is bearable."""
    file.seek(0)
    lines = list(_lines(0, file.read(_LONGEST_LINE)))
    if not lines:
        raise BadFile(path, f"has no line end in its first {_LONGEST_LINE >> 20} MiB", "check what wrote it")
    return lines
