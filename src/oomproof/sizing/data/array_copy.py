"""Copies arrays out of .npz and .npy in bounded memory: whole (`data convert`), or their first rows (`data head`)."""

from __future__ import annotations

import math
import os
import zipfile
from typing import BinaryIO, cast

from oomproof.records import dataclass
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

_CHUNK = 1 << 20


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
        data = source.read(min(size, _CHUNK))
        if not data:
            raise BadFile(path, f"ends within an array: {CUT}")
        out.write(data)
        size -= len(data)
