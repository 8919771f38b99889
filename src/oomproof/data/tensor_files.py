"""What loading weights costs: torch.save, safetensors and GGUF, from their directories of tensors."""

from __future__ import annotations

import json
import math
import struct
import zipfile
from typing import Any, BinaryIO

from oomproof.data.load_cost import EXACT, LoadCost, Part, call, plural
from oomproof.data.source_file import CUT, BadFile, claimed, file_size, read_exactly
from oomproof.units import format_size

_LONGEST = 100_000_000  # bytes of a header; safetensors itself trusts no longer one
_TWICE = "model.load_state_dict() copies it into the model's own memory: twice this while both are there"
_ASSIGN = "with the model made on the meta device: model.load_state_dict(state, assign=True)"


def torch_cost(file: BinaryIO, archive: zipfile.ZipFile, path: str) -> LoadCost:
    """The zip directory; the pickle in it is not read."""
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
    return Part(name, str(value["dtype"]), shape, end - begin)


# ggml's types: (numbers in a block, bytes of a block), by their number in the file; from ggml.h and gguf-py's constants
_GGML = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip
_NUMBERS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_MOST = 1 << 24  # entries: a header that claims more is damaged


class _GgufReader:
    """Reads the fields of a GGUF header in order."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self.file, self.path, self.size = file, path, file_size(file)

    def number(self, form: str) -> Any:
        return struct.unpack(form, read_exactly(self.file, struct.calcsize(form), self.path))[0]

    def count(self) -> int:
        value = int(self.number("<Q"))
        if value > min(_MOST, self.size):
            raise BadFile(self.path, f"its header claims {value:,} entries: {CUT}")
        return value

    def text(self) -> str:
        return read_exactly(self.file, self.count(), self.path).decode("utf-8", "replace")

    def skip_value(self, kind: int) -> None:
        if kind == _STRING:
            self.text()
        elif kind == _ARRAY:
            inner, count = int(self.number("<I")), self.count()
            if inner in _NUMBERS:
                self.file.seek(struct.calcsize(_NUMBERS[inner]) * count, 1)
            else:
                for _ in range(count):
                    self.skip_value(inner)
        elif kind in _NUMBERS:
            self.number(_NUMBERS[kind])
        else:
            raise BadFile(
                self.path, f"has a value of the unknown type {kind}", "it may be of a newer version"
            )


def gguf_cost(file: BinaryIO, path: str) -> LoadCost:
    reader = _GgufReader(file, path)
    reader.number("<I")  # the magic
    version = reader.number("<I")
    if version not in (2, 3):
        raise BadFile(path, f"is GGUF of version {version}; known are 2 and 3", "convert it again")
    tensors, entries = reader.count(), reader.count()
    try:
        for _ in range(entries):
            reader.text()
            reader.skip_value(int(reader.number("<I")))
        parts = tuple(_gguf_part(reader) for _ in range(tensors))
    except RecursionError:
        raise BadFile(path, "has a damaged GGUF header", "check what wrote it") from None
    unknown = sorted({part.type for part in parts if part.bytes is None})
    total = sum(part.bytes or 0 for part in parts)
    if total > reader.size:
        raise BadFile(
            path,
            f"its header claims {claimed(total)} of tensors, the file has {format_size(reader.size)}: {CUT}",
        )
    notes = ["the KV cache comes on top, and grows with the context"]
    if unknown:
        notes.append(f"tensors of unknown types ({', '.join(unknown)}): the file's size is taken")
        total = reader.size
    return LoadCost(
        "GGUF",
        "gguf",
        plural(tensors, "tensor"),
        reader.size,
        "llama.cpp, which maps it",
        total,
        total,
        EXACT,
        parts,
        mapped=True,
        notes=tuple(notes),
        cheaper=("already mapped; do not pass --no-mmap or --mlock",),
    )


def _gguf_part(reader: _GgufReader) -> Part:
    name, dimensions = reader.text(), int(reader.number("<I"))
    if dimensions > 8:
        raise BadFile(reader.path, f"has a tensor of {dimensions} dimensions: {CUT}")
    shape = tuple(int(reader.number("<Q")) for _ in range(dimensions))
    kind = int(reader.number("<I"))
    reader.number("<Q")  # its offset
    if kind not in _GGML:
        return Part(name, f"type {kind}", shape, None)
    type_name, block, size = _GGML[kind]
    return Part(name, type_name, shape, math.prod(shape) // block * size)
