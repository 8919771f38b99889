"""The header of a .npy file, read and written without numpy."""

from __future__ import annotations

import ast
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from oomproof.records import dataclass
from oomproof.sizing.data.source_file import CUT, BadFile, claimed, read_exactly
from oomproof.units import format_size

MAGIC = b"\x93NUMPY"
_ALIGN = 64  # numpy pads the header so that the data can be mapped
_LONGEST = 1 << 20  # bytes of a header; numpy itself trusts 10,000
_MOST_DIMENSIONS = 64  # as numpy has it
_TYPE = re.compile(r"[<>|=]?([biufcmMOSaUV])(\d*)(?:\[.*\])?")
_KIND_NAMES = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool"}


@dataclass(frozen=True, slots=True)
class NpyHeader:
    version: tuple[int, int]
    type: Any  # as numpy writes it: '<f4', or a list of fields
    fortran_order: bool
    shape: tuple[int, ...]
    item_size: int
    objects: bool  # Python objects: the data is a pickle, and cannot be mapped
    offset: int  # of the data, from the header's first byte

    @property
    def data_size(self) -> int:
        return self.item_size * math.prod(self.shape)

    @property
    def type_name(self) -> str:
        """``float32`` for '<f4'."""
        if not isinstance(self.type, str):
            return f"{len(self.type)} fields"
        kind, size = self.type.lstrip("<>|=")[:1], self.item_size
        if self.objects:
            return "objects"
        if kind in _KIND_NAMES and self.type.lstrip("<>|=")[1:].isdigit():
            return "bool" if kind == "b" else f"{_KIND_NAMES[kind]}{size * 8}"
        return self.type

    def with_rows(self, rows: int) -> NpyHeader:
        shape = (min(rows, self.shape[0]), *self.shape[1:]) if self.shape else ()
        return NpyHeader(
            self.version, self.type, self.fortran_order, shape, self.item_size, self.objects, self.offset
        )

    def encoded(self) -> bytes:
        """The header as numpy writes it."""
        text = repr({"descr": self.type, "fortran_order": self.fortran_order, "shape": self.shape})
        body = text.encode("utf-8" if self.version >= (3, 0) else "latin1")
        prefix = len(MAGIC) + 2 + (2 if self.version == (1, 0) else 4)
        body += b" " * (-(prefix + len(body) + 1) % _ALIGN) + b"\n"
        length = struct.pack("<H" if self.version == (1, 0) else "<I", len(body))
        return MAGIC + bytes(self.version) + length + body


def read_header(file: BinaryIO, path: str) -> NpyHeader:
    """From the stream's present position; raises ``BadFile``."""
    start = read_exactly(file, 8, path)
    version = (start[6], start[7])
    if start[:6] != MAGIC or version not in ((1, 0), (2, 0), (3, 0)):
        raise BadFile(path, "is not an array of numpy (.npy)", "check what wrote it")
    size_bytes = 2 if version == (1, 0) else 4
    length = int.from_bytes(read_exactly(file, size_bytes, path), "little")
    if length > _LONGEST:
        raise BadFile(path, f"claims a header of {length:,} bytes", "check what wrote it")
    text = read_exactly(file, length, path)
    try:
        value = ast.literal_eval(text.decode("utf-8" if version >= (3, 0) else "latin1").strip())
        shape, fortran = value["shape"], value["fortran_order"]
        item_size, objects = _size_of(value["descr"])
        _product(shape if isinstance(shape, tuple) else None)
    except (ValueError, SyntaxError, TypeError, KeyError, AttributeError, RecursionError, MemoryError):
        raise BadFile(path, "has a damaged array header", "check what wrote it") from None
    return NpyHeader(
        version, value["descr"], bool(fortran), shape, item_size, objects, 8 + size_bytes + length
    )


def _size_of(described: Any) -> tuple[int, bool]:
    """(bytes of one item, whether Python objects are in it) of a type as numpy writes it."""
    if isinstance(described, str):
        match = _TYPE.fullmatch(described)
        if match is None:
            raise ValueError(described)
        kind, digits = match[1], match[2]
        if kind == "O":
            return 8, True
        if not digits:
            raise ValueError(described)  # numpy always writes the size
        return int(digits) * (4 if kind == "U" else 1), False
    if isinstance(described, tuple):  # (type, shape): an array in each item
        inner, shape = described
        size, objects = _size_of(inner)
        return size * _product(shape), objects
    total, objects = 0, False
    for field in described:  # (name, type) or (name, type, shape)
        size, some = _size_of(field[1])
        total += size * (_product(field[2]) if len(field) > 2 else 1)
        objects |= some
    return total, objects


def _product(shape: Any) -> int:
    """Of a shape, or of a number that stands for one."""
    shape = shape if isinstance(shape, tuple) else (shape,)
    if len(shape) > _MOST_DIMENSIONS or not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(shape)
    return math.prod(shape)


_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature … length of the name, of the extra field


@dataclass(frozen=True, slots=True)
class Member:
    name: str  # as np.load has it: without .npy
    info: zipfile.ZipInfo
    header: NpyHeader

    @property
    def compressed(self) -> bool:
        return self.info.compress_type != zipfile.ZIP_STORED


@contextmanager
def open_zip(file: BinaryIO, path: str) -> Iterator[zipfile.ZipFile]:
    """Whatever is wrong with the zip, also later while a member is read, is one line."""
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    except (zipfile.BadZipFile, EOFError, struct.error, UnicodeDecodeError, OverflowError) as error:
        raise BadFile(path, f"the zip is damaged ({error}): {CUT}") from None
    except zlib.error as error:
        raise BadFile(path, f"a compressed member is damaged ({error})", "copy it again") from None
    except (NotImplementedError, RuntimeError) as error:  # another compression, a password
        raise BadFile(path, f"this zip cannot be read: {error}", "write it again with numpy") from None


def members_of(archive: zipfile.ZipFile, path: str) -> list[Member]:
    """The arrays; what else is in the zip has no .npy name."""
    members = []
    for info in archive.infolist():
        if info.filename.endswith(".npy"):
            where = f"{path}: {info.filename}"
            with archive.open(info) as stream:
                header = read_header(cast(BinaryIO, stream), where)
            if not header.objects:
                check_data_size(header, info.file_size, where)
            members.append(Member(info.filename.removesuffix(".npy"), info, header))
    return members


def check_data_size(header: NpyHeader, stored: int, where: str) -> None:
    """A header that claims more than is there would have memory allocated for nothing."""
    there = stored - header.offset
    if header.data_size > there:
        raise BadFile(
            where,
            f"its header claims {claimed(header.data_size)} of data, {format_size(max(0, there))} are there: {CUT}",
        )


def data_offset(file: BinaryIO, member: Member, path: str) -> int:
    """Where the array's data begin in the file, of a member that is not compressed."""
    file.seek(member.info.header_offset)
    start = file.read(_LOCAL_HEADER.size)
    if len(start) < _LOCAL_HEADER.size or not start.startswith(b"PK\x03\x04"):
        raise BadFile(path, f"the zip is damaged: {CUT}")
    _, name_length, extra_length = _LOCAL_HEADER.unpack(start)
    offset: int = member.info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    return offset + member.header.offset
