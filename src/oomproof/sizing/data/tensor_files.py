"""What loading weights costs: torch.save, safetensors and GGUF, from their directories of tensors."""

from __future__ import annotations

import json
import math
import zipfile
from typing import Any, BinaryIO

from oomproof.sizing.data.gguf_header import read_header
from oomproof.sizing.data.load_cost import EXACT, LoadCost, Part, call, plural
from oomproof.sizing.data.source_file import CUT, BadFile, claimed, file_size, read_exactly
from oomproof.sizing.data.torch_storages import storages_of
from oomproof.units import format_size

_LONGEST = 100_000_000  # bytes of a header; safetensors itself trusts no longer one
_TWICE = "model.load_state_dict() copies it into the model's own memory: twice this while both are there"
_ASSIGN = "with the model made on the meta device: model.load_state_dict(state, assign=True)"


def torch_cost(file: BinaryIO, archive: zipfile.ZipFile, path: str) -> LoadCost:
    """The zip directory; of the pickle in it only the names and types of its tensors, which are read and not executed."""
    storages = [info for info in archive.infolist() if "/data/" in info.filename]
    total = sum(info.file_size for info in storages)
    end = max((info.header_offset + info.compress_size for info in storages), default=0)
    if end > file_size(file):
        raise BadFile(path, f"its directory names data behind its end: {CUT}")
    return LoadCost(
        "torch.save",
        "torch",
        plural(len(storages), "storage"),
        file_size(file),
        call("torch.load", path, "weights_only=True"),
        total,
        total,
        EXACT,
        storages_of(archive, storages),
        notes=(_TWICE,),
        cheaper=(call("torch.load", path, "mmap=True", "weights_only=True"), _ASSIGN),
    )


def safetensors_cost(file: BinaryIO, path: str) -> LoadCost:
    disk = file_size(file)
    length = int.from_bytes(read_exactly(file, 8, path), "little")
    if length > _LONGEST or length + 8 > disk:
        raise BadFile(path, f"claims a header of {length:,} bytes: {CUT}")
    try:
        described = json.loads(read_exactly(file, length, path))
        described.pop("__metadata__", None)
        parts = tuple(_safetensors_part(name, value) for name, value in described.items())
        end = max((value["data_offsets"][1] for value in described.values()), default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise BadFile(path, "has a damaged safetensors header", "check what wrote it") from None
    if 8 + length + end > disk:
        raise BadFile(
            path, f"its header claims {claimed(end)} of tensors, the file has {format_size(disk)}: {CUT}"
        )
    total = sum(part.bytes or 0 for part in parts)
    if total > end:
        raise BadFile(path, "its header has tensors that overlap", "check what wrote it")
    return LoadCost(
        "safetensors",
        "safetensors",
        plural(len(parts), "tensor"),
        disk,
        call("safetensors.torch.load_file", path),
        total,
        total,
        EXACT,
        parts,
        mapped=True,
        notes=(_TWICE,),
        cheaper=(call("safetensors.safe_open", path, 'framework="pt"') + ": one tensor at a time", _ASSIGN),
    )


def _safetensors_part(name: str, value: dict[str, Any]) -> Part:
    begin, end = value["data_offsets"]
    shape = tuple(int(number) for number in value["shape"])
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end:
        raise ValueError(name)
    dtype = str(value["dtype"])
    if min(shape, default=0) < 0 or (dtype in BITS and math.prod(shape) * BITS[dtype] > (end - begin) * 8):
        raise ValueError(name)  # a shape that its bytes cannot hold
    return Part(name, dtype, shape, end - begin)


# bits of a number, by safetensors' names; F4 and F6 are packed
BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I8": 8, "U8": 8, "BOOL": 8, "F4": 4,
}  # fmt: skip


def gguf_cost(file: BinaryIO, path: str) -> LoadCost:
    header = read_header(file, path)
    parts, disk = header.tensors, file_size(file)
    unknown = sorted({part.type for part in parts if part.bytes is None})
    total = sum(part.bytes or 0 for part in parts)
    notes = ["the KV cache comes on top, and grows with the context"]
    if unknown:
        notes.append(f"tensors of unknown types ({', '.join(unknown)}): the file's size is taken")
        total = disk
    return LoadCost(
        "GGUF",
        "gguf",
        plural(len(parts), "tensor"),
        disk,
        "llama.cpp, which maps it",
        total,
        total,
        EXACT,
        parts,
        mapped=True,
        notes=tuple(notes),
        cheaper=("already mapped; do not pass --no-mmap or --mlock",),
    )
