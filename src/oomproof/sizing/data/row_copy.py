"""Copies rows of JSON Lines, CSV and Parquet in bounded memory: into parts (`data split`), or the first ones (`data head`)."""

from __future__ import annotations

import io
import os
from typing import Any, BinaryIO

from oomproof.errors import USAGE, OomproofError
from oomproof.records import dataclass
from oomproof.sizing.data.file_formats import format_of
from oomproof.sizing.data.new_files import NewFiles, refuse_full_disk
from oomproof.sizing.data.source_file import BadFile, file_size, open_source
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
