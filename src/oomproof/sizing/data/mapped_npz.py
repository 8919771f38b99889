"""Opens a .npz so that its arrays are mapped where they are: what is not touched takes no memory."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from oomproof.errors import NOT_FOUND, USAGE, OomproofError
from oomproof.sizing.data.npy_header import Member, data_offset, members_of, open_zip
from oomproof.sizing.data.source_file import CUT, BadFile, file_size, open_source


class MappedNpz(Mapping[str, Any]):
    """Names to arrays, as np.load() has them; each is mapped when it is asked for."""

    def __init__(self, path: str | os.PathLike[str], mode: str) -> None:
        self.path, self.mode = os.fspath(path), mode
        self._members: dict[str, tuple[Member, int]] = {}
        with open_source(self.path) as file, open_zip(file, self.path) as archive:
            for member in members_of(archive, self.path):
                offset = data_offset(file, member, self.path)
                if not member.compressed and offset + member.header.data_size > file_size(file):
                    raise BadFile(self.path, f"{member.name} lies behind its end: {CUT}")
                self._members[member.name] = member, offset

    def __getitem__(self, name: str) -> Any:
        member, offset = self._members[name]
        header = member.header
        if header.objects:
            raise OomproofError(
                f"{self.path}: {name} holds Python objects, which cannot be mapped",
                "save it as numbers or as text; np.load(…, allow_pickle=True) runs code of the file",
            )
        if member.compressed:
            folder = os.path.splitext(self.path)[0]
            raise OomproofError(
                f"{self.path}: {name} is compressed, and cannot be mapped",
                f"once: oomproof data convert {shlex.quote(self.path)} {shlex.quote(folder)}/, "
                f'then np.load("{folder}/{name}.npy", mmap_mode="{self.mode}")',
            )
        numpy = _numpy()
        kind = numpy.lib.format.descr_to_dtype(header.type)
        order = "F" if header.fortran_order else "C"
        if not header.data_size:
            return numpy.empty(header.shape, kind, order)  # nothing to map
        return numpy.memmap(self.path, kind, self.mode, offset, header.shape, order)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return f"MappedNpz({self.path!r}: {', '.join(self._members)})"


def open_npz(path: str | os.PathLike[str], mode: str = "r") -> MappedNpz:
    """``mode``: "r", or "c" for arrays that can be changed in memory while the file stays as it is.

    A compressed array cannot be mapped: asking for it raises an error that names the command that converts it, once."""
    if mode not in ("r", "c"):
        raise OomproofError(
            f"unknown mode {mode!r}", "known: r (read only), c (changes stay in memory)", USAGE
        )
    return MappedNpz(path, mode)


def _numpy() -> Any:
    try:
        return import_module("numpy")
    except ImportError:
        raise OomproofError(
            "mapping arrays needs numpy, which is not installed", "pip install numpy", NOT_FOUND
        ) from None
