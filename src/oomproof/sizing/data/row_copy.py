"""Copies rows of JSON Lines, CSV and Parquet in bounded memory: into parts (`data split`), or the first ones (`data head`)."""

from __future__ import annotations

import io
import math
import os
import zipfile
from typing import Any, BinaryIO, cast

from oomproof.errors import USAGE, OomproofError
from oomproof.records import dataclass
from oomproof.sizing.data.file_formats import format_of
from oomproof.sizing.data.new_files import NewFiles, refuse_full_disk
from oomproof.sizing.data.npy_header import (
    Member,
    NpyHeader,
    check_data_size,
    members_of,
    open_zip,
    read_header,
)
from oomproof.sizing.data.source_file import CUT, BadFile, file_size, open_source
from oomproof.sizing.data.text_sample import refuse_wide

_CHUNK = 1 << 20
_LONGEST_HEADING = 16 << 20
_MOST_PARTS = 99_999  # five digits, so that their names sort
_BATCH = 50_000  # rows of Parquet in memory at a time


@dataclass(frozen=True, slots=True)
class Parts:
    names: tuple[str, ...]
    rows: int


class RowReader:
    """Copies whole rows of text. In CSV a line break within quotes does not end a row."""

    def __init__(self, file: BinaryIO, quotes: bool) -> None:
        self._file, self.quotes = file, quotes
        self._buffer, self._at = b"", 0
        self._quoted = self._within = False  # within quotes; within a row

    def at_end(self) -> bool:
        if self._at >= len(self._buffer):
            self._buffer, self._at = self._file.read(_CHUNK), 0
        return not self._buffer

    def copy(self, rows: int, out: BinaryIO) -> int:
        """Up to that many rows; how many there were."""
        done = 0
        while done < rows and not self.at_end():
            plain = not self.quotes or (not self._quoted and self._buffer.find(b'"', self._at) < 0)
            end, ended = self._line_ends(rows - done) if plain else self._row_end()
            done += ended
            out.write(self._buffer[self._at : end])
            self._within = self._buffer[end - 1 : end] != b"\n" or self._quoted
            self._at = end
        if self._within and self.at_end():  # the last line has no end
            self._within = False
            done += 1
        return done

    def _line_ends(self, most: int) -> tuple[int, int]:
        """(where up to so many lines end in the buffer, how many they are)"""
        end, ended = self._at, 0
        while ended < most and (newline := self._buffer.find(b"\n", end)) >= 0:
            end, ended = newline + 1, ended + 1
        return (end if ended == most else len(self._buffer)), ended

    def _row_end(self) -> tuple[int, int]:
        """(where the next line ends in the buffer, 1 where a row ends with it)"""
        newline = self._buffer.find(b"\n", self._at)
        end = newline + 1 if newline >= 0 else len(self._buffer)
        if self.quotes and self._buffer.count(b'"', self._at, end) % 2:
            self._quoted = not self._quoted
        return end, int(newline >= 0 and not self._quoted)


def split_rows(path: str, rows: int, folder: str, force: bool) -> Parts:
    """PATH-00001.jsonl and so on, with so many rows each."""
    with open_source(path) as file:
        kind = _kind(file, path)
        refuse_full_disk(folder, file_size(file))
        with NewFiles(path, force) as made:
            if kind == "parquet":
                parts = _split_parquet(path, rows, folder, made)
            else:
                parts = _split_text(RowReader(file, kind == "csv"), path, rows, folder, made)
            if not parts.names:
                raise BadFile(path, "has no rows", "check what wrote it")
            return parts


def _split_text(reader: RowReader, path: str, rows: int, folder: str, made: NewFiles) -> Parts:
    heading = _heading(reader, path) if reader.quotes else b""
    names: list[str] = []
    total = 0
    while not reader.at_end():
        names.append(part_name(path, folder, len(names) + 1))
        with made.create(names[-1]) as out:
            out.write(heading)
            total += reader.copy(rows, out)
    return Parts(tuple(names), total)


def head_rows(path: str, target: str, rows: int, force: bool) -> int:
    """The first rows; how many there were."""
    with open_source(path) as file:
        reader = RowReader(file, _kind(file, path) == "csv")
        heading = _heading(reader, path) if reader.quotes else b""
        with NewFiles(path, force) as made, made.create(target) as out:
            out.write(heading)
            return reader.copy(rows, out)


def part_name(path: str, folder: str, number: int) -> str:
    if number > _MOST_PARTS:
        raise OomproofError(
            f"{path}: more than {_MOST_PARTS:,} parts", "give more rows to each: --rows", USAGE
        )
    stem, suffix = os.path.splitext(os.path.basename(path))
    return os.path.join(folder, f"{stem}-{number:05d}{suffix}")


def _kind(file: BinaryIO, path: str) -> str:
    kind = format_of(file, path)
    if kind in ("csv", "jsonl"):
        refuse_wide(file.read(4096), path)
        file.seek(0)
    elif kind != "parquet":
        raise BadFile(path, "has no rows that can be copied", "known: JSON Lines, CSV, Parquet")
    return kind


class _Heading(io.BytesIO):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def write(self, data: Any, /) -> int:
        if self.tell() > _LONGEST_HEADING:
            raise BadFile(
                self.path, f"has a heading of more than {_LONGEST_HEADING >> 20} MiB", "check what wrote it"
            )
        return super().write(data)


def _heading(reader: RowReader, path: str) -> bytes:
    heading = _Heading(path)
    reader.copy(1, heading)
    text = heading.getvalue()
    return text if text.endswith(b"\n") else text + b"\n"


def _split_parquet(path: str, rows: int, folder: str, made: NewFiles) -> Parts:
    from oomproof.sizing.data.column_files import arrow_errors, arrow_library, open_parquet

    new_writer = arrow_library("pyarrow.parquet", path).ParquetWriter
    opened = open_parquet(path)
    names: list[str] = []
    with arrow_errors(path):
        batches = opened.iter_batches(min(rows, _BATCH))
        batch = next(batches, None)
        while batch is not None:
            names.append(part_name(path, folder, len(names) + 1))
            left = rows
            with made.create(names[-1]) as out, new_writer(out, opened.schema_arrow) as writer:
                while batch is not None and left:
                    piece = batch.slice(0, left)
                    writer.write_batch(piece)
                    left -= piece.num_rows
                    batch = (
                        batch.slice(piece.num_rows)
                        if piece.num_rows < batch.num_rows
                        else next(batches, None)
                    )
    return Parts(tuple(names), opened.metadata.num_rows)


# Copies arrays out of .npz and .npy in bounded memory: whole (`data convert`), or their first rows (`data head`).

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Copied:
    """What was made, and what was left out because it holds Python objects."""

    names: tuple[str, ...]  # of files, or of arrays
    size: int  # bytes of their data
    left_out: tuple[str, ...]


def convert_npz(path: str, folder: str, force: bool) -> Copied:
    """Each array as a .npy file, which can be mapped."""
    with open_source(path) as file, open_zip(file, path) as archive, NewFiles(path, force) as made:
        arrays, left_out = _sorted_out(archive, path)
        refuse_full_disk(folder, sum(member.info.file_size for member in arrays))
        names = []
        for member in arrays:
            names.append(os.path.join(folder, _safe(member.name, path) + ".npy"))
            with made.create(names[-1]) as out, archive.open(member.info) as stream:
                _copy(cast(BinaryIO, stream), out, member.info.file_size, path)
                if stream.read(1):  # also checks the sum over it all
                    raise BadFile(path, f"{member.name} is longer than its directory says")
    return Copied(tuple(names), sum(member.header.data_size for member in arrays), left_out)


def head_npz(path: str, target: str, rows: int, force: bool) -> Copied:
    """The first rows of each array, compressed as they were."""
    with open_source(path) as file, open_zip(file, path) as archive, NewFiles(path, force) as made:
        arrays, left_out = _sorted_out(archive, path)
        size = 0
        with made.create(target) as out, zipfile.ZipFile(out, "w") as small:
            for member in arrays:
                info = zipfile.ZipInfo(member.info.filename)
                info.compress_type = member.info.compress_type
                with archive.open(member.info) as stream, small.open(info, "w", force_zip64=True) as part:
                    size += _copy_rows(cast(BinaryIO, stream), cast(BinaryIO, part), rows, path)
    return Copied(tuple(member.name for member in arrays), size, left_out)


def head_npy(path: str, target: str, rows: int, force: bool) -> Copied:
    with open_source(path) as file, NewFiles(path, force) as made:
        header = read_header(file, path)
        if header.objects:
            raise BadFile(path, "holds Python objects, pickled, which are not read", "save it as numbers")
        check_data_size(header, file_size(file), path)
        file.seek(0)
        with made.create(target) as out:
            size = _copy_rows(file, out, rows, path)
    return Copied((target,), size, ())


def _sorted_out(archive: zipfile.ZipFile, path: str) -> tuple[list[Member], tuple[str, ...]]:
    """(arrays of numbers or text, names of those that hold objects)"""
    members = members_of(archive, path)
    arrays = [member for member in members if not member.header.objects]
    if not arrays:
        raise BadFile(
            path, "has no arrays that can be copied without running its code", "write it again as numbers"
        )
    return arrays, tuple(member.name for member in members if member.header.objects)


def _safe(name: str, path: str) -> str:
    """A name in a zip may lead out of the folder."""
    if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise BadFile(path, f"has an array named {name!r}, which is no name of a file", "rename that array")
    return name


def _copy_rows(source: BinaryIO, out: BinaryIO, rows: int, path: str) -> int:
    """An array's first rows, with their header; the bytes of data."""
    header = read_header(source, path)
    small = header.with_rows(rows)
    out.write(small.encoded())
    if small.shape == header.shape or not header.fortran_order or len(header.shape) < 2:
        _copy(source, out, small.data_size, path)
    else:
        _copy_columns(source, out, header, small, path)
    return small.data_size


def _copy_columns(source: BinaryIO, out: BinaryIO, header: NpyHeader, small: NpyHeader, path: str) -> None:
    """Fortran's order: the first rows are the beginning of each column."""
    wanted = small.shape[0] * header.item_size
    skipped = header.shape[0] * header.item_size - wanted
    for _ in range(math.prod(header.shape[1:])):
        _copy(source, out, wanted, path)
        source.seek(skipped, 1)


def _copy(source: BinaryIO, out: BinaryIO, size: int, path: str) -> None:
    while size:
        data = source.read(min(size, _PIECE))
        if not data:
            raise BadFile(path, f"ends within an array: {CUT}")
        out.write(data)
        size -= len(data)
