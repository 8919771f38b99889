"""What loading .npy and .npz costs: exact, from the headers of their arrays."""

from __future__ import annotations

import os
import shlex
import zipfile
from typing import BinaryIO

from oomproof.sizing.data.load_cost import AT_LEAST, EXACT, LoadCost, Part, call, plural
from oomproof.sizing.data.npy_header import NpyHeader, read_header
from oomproof.sizing.data.npz_members import check_data_size, members_of
from oomproof.sizing.data.source_file import file_size

_MAPPED = 'mmap_mode="r"'
_OBJECTS = "holds Python objects, pickled: np.load needs allow_pickle=True, which runs code of the file"


def npy_cost(file: BinaryIO, path: str) -> LoadCost:
    disk = file_size(file)
    header = read_header(file, path)
    if header.objects:
        return LoadCost(
            "npy", "", "1 array of objects", disk, call("np.load", path, "allow_pickle=True"), disk, disk,
            AT_LEAST, (_part("", header),), notes=(_OBJECTS,), cheaper=("save it as numbers or as text, not as objects",),
        )  # fmt: skip
    check_data_size(header, disk, path)
    return LoadCost(
        "npy", "npy", "1 array", disk, call("np.load", path), header.data_size, header.data_size, EXACT,
        (_part("", header),), cheaper=(call("np.load", path, _MAPPED),),
    )  # fmt: skip


def npz_cost(file: BinaryIO, archive: zipfile.ZipFile, path: str) -> LoadCost:
    members = members_of(archive, path)
    total = sum(
        member.info.file_size if member.header.objects else member.header.data_size for member in members
    )
    compressed = any(member.compressed for member in members)
    objects = [member.name for member in members if member.header.objects]
    notes = [
        "opening it costs nothing; each z[name] loads the whole array, again each time; mmap_mode is ignored"
    ]
    if objects:
        notes.append(f"{', '.join(objects)} {_OBJECTS}")
    folder = os.path.splitext(path)[0] or "arrays"
    first = next((member.name for member in members if not member.header.objects), "")
    cheaper = [f"oomproof data convert {shlex.quote(path)} {shlex.quote(folder)}/"]
    cheaper.append("then " + call("np.load", f"{folder}/{first}.npy", _MAPPED))
    if not compressed:
        cheaper = [
            f"{call('oomproof.data.open_npz', path)}[{first!r}]: mapped where it is, nothing to convert"
        ]
    return LoadCost(
        f"npz, {'compressed' if compressed else 'not compressed'}",
        "" if objects else "npz",
        plural(len(members), "array"),
        file_size(file),
        f"{call('np.load', path)} and each array of it",
        total,
        total,
        AT_LEAST if objects else EXACT,
        tuple(_part(member.name, member.header) for member in members),
        notes=tuple(notes),
        cheaper=tuple(cheaper) if first else (),
    )


def _part(name: str, header: NpyHeader) -> Part:
    return Part(name, header.type_name, header.shape, None if header.objects else header.data_size)
