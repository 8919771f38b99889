"""Opens a data file to read its headers; whatever stands in the way is one line and a hint."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from oomproof.errors import NOT_FOUND, OomproofError
from oomproof.printable import one_line
from oomproof.units import format_size

CUT = "it is cut short, or still being written"
COPY_AGAIN = "wait until its writer has finished, or copy it again"


class BadFile(OomproofError):
    """A data file that is not what it claims to be."""

    def __init__(self, path: str, message: str, hint: str = COPY_AGAIN) -> None:
        super().__init__(one_line(f"{path}: {message}"), hint)


@contextmanager
def open_source(path: str) -> Iterator[BinaryIO]:
    """A regular file that is not empty. A pipe or a device is refused: what is read from one is gone."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise BadFile(path, "is a folder", "name the files in it")
        if not stat.S_ISREG(mode):
            raise BadFile(path, "is not a regular file", "write it to a file first")
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        raise OomproofError(f"{path}: there is no such file", "check the path", NOT_FOUND) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise BadFile(path, f"cannot be opened: {_reason(error)}", "check its permissions") from None
    with file:
        if not file_size(file):
            raise BadFile(path, "is empty (0 bytes)")
        try:
            yield file
        except OSError as error:
            if error.filename is not None:  # of another file: what is being written
                raise
            raise BadFile(path, f"cannot be read: {_reason(error)}", "check the disk") from None


def file_size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def read_exactly(file: BinaryIO, size: int, path: str) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise BadFile(path, f"ends within its header: {CUT}")
    return data


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def claimed(size: int) -> str:
    """A size out of a header, which may be any number."""
    return format_size(size) if size < 1 << 62 else "more than 4 million TiB"
