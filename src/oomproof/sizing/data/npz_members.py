"""The members of a .npz file: the zip directory and each array's header, nothing else is read."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from oomproof.records import dataclass
from oomproof.sizing.data.npy_header import NpyHeader, read_header
from oomproof.sizing.data.source_file import CUT, BadFile, claimed
from oomproof.units import format_size

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
