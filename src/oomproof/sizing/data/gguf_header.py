"""The header of a GGUF file: its metadata (layers, heads, context) and its directory of tensors. No weight is read."""

from __future__ import annotations

import json
import math
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO

from oomproof.records import dataclass
from oomproof.sizing.data.load_cost import EXACT, LoadCost, Part, call, plural
from oomproof.sizing.data.source_file import CUT, BadFile, claimed, file_size, read_exactly
from oomproof.units import format_size

# The tensors of a file of torch.save: names and types out of its pickle's opcodes, which are read and never executed.

_LONGEST_PICKLE = 16 << 20  # bytes of the pickle that are read: some hundred thousand tensors
_MOST_OPCODES = 2_000_000  # about three seconds
_STORAGES = {
    "FloatStorage": ("F32", 4), "DoubleStorage": ("F64", 8), "HalfStorage": ("F16", 2), "BFloat16Storage": ("BF16", 2),
    "LongStorage": ("I64", 8), "IntStorage": ("I32", 4), "ShortStorage": ("I16", 2), "CharStorage": ("I8", 1),
    "ByteStorage": ("U8", 1), "BoolStorage": ("BOOL", 1), "UntypedStorage": ("U8", 1),
}  # fmt: skip


def storages_of(archive: zipfile.ZipFile, storages: Sequence[zipfile.ZipInfo]) -> tuple[Part, ...]:
    """A part for each storage; of an unknown type, without a name, where the pickle does not tell."""
    known: dict[str, Part] = {}
    pickled = next((info for info in archive.infolist() if info.filename.endswith("/data.pkl")), None)
    if pickled is not None and pickled.file_size <= _LONGEST_PICKLE:
        try:
            for key, part in _tensors(archive.read(pickled)):
                known.setdefault(key, part)
        except (ValueError, IndexError, OverflowError, zipfile.BadZipFile, zlib.error):
            pass  # the sizes are exact all the same
    return tuple(_storage(info.filename.rpartition("/data/")[2], info.file_size, known) for info in storages)


def _storage(key: str, size: int, known: dict[str, Part]) -> Part:
    part = known.get(key, Part("", "", None, None))
    type_name, item = _STORAGES.get(part.type, ("unknown", 0))
    shape = part.shape
    if shape is None or math.prod(shape) * item != size:  # a part of it, or several tensors share it
        shape = (size // item,) if item else None
    return Part(part.name or f"storage {key}", type_name, shape, size)


def _tensors(pickled: bytes) -> Iterator[tuple[str, Part]]:
    """(key of the storage, its name, type and shape) in the order of the pickle.

    torch writes a tensor as ('storage', torch.FloatStorage, '0', 'cpu', 600), offset, (20, 30), strides …; the texts and
    the type may be references to earlier ones."""
    memo: dict[int, object] = {}
    recent: list[str] = []  # the last texts, oldest first
    newest: object = None
    name, opened, numbers = "", None, list[int]()
    for opcode, argument, _ in islice(pickletools.genops(pickled), _MOST_OPCODES):
        kind = opcode.name
        if kind in ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"):
            memo[len(memo) if argument is None else int(argument)] = newest
            continue
        newest = None
        if kind in ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "GLOBAL"):
            newest = str(argument)
        elif kind == "STACK_GLOBAL":
            newest = " ".join(recent[-2:])
            recent = recent[:-2]
        elif kind in ("BINGET", "LONG_BINGET", "GET"):
            newest = memo.get(int(argument or 0))
        elif kind == "BINPERSID":
            at = len(recent) - 1 - recent[::-1].index("storage")
            opened = recent[at + 2], recent[at + 1].rpartition(" ")[2].rpartition(".")[2]
            recent, numbers = [], []
        elif kind.startswith("TUPLE") and opened is not None:
            yield opened[0], Part(name, opened[1], tuple(numbers[1:]), None)
            opened = None
        elif isinstance(argument, int) and opened is not None:
            numbers.append(argument)
        if isinstance(newest, str):
            if newest == "storage":
                name = next((text for text in reversed(recent) if _is_name(text)), name)
            recent = [*recent[-7:], newest]


def _is_name(text: str) -> bool:
    return " " not in text and text not in ("cpu", "cuda", "storage")


# ggml's types: (name, numbers in a block, bytes of a block), by their number in the file; from ggml.h and gguf-py's constants
GGML = {
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
# a header that claims more is damaged: entries of metadata, tensors, texts in a list (vocabularies have 256 Ki), numbers in one
_MOST_ENTRIES, _MOST_TENSORS, _MOST_TEXTS, _MOST = 1 << 14, 1 << 20, 1 << 20, 1 << 24
_LONGEST_NAME = 65535  # of a key; of a tensor 64
_LONG = 4096  # entries: longer lists are vocabularies, of which only the length is of use


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """``metadata``: numbers, texts and short lists of numbers; ``lengths``: of all lists."""

    version: int
    metadata: Mapping[str, Any]
    lengths: Mapping[str, int]
    tensors: tuple[Part, ...]


class _GgufReader:
    """Reads the fields of a GGUF header in order."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self.file, self.path, self.size = file, path, file_size(file)

    def number(self, form: str) -> Any:
        return struct.unpack(form, read_exactly(self.file, struct.calcsize(form), self.path))[0]

    def count(self, most: int = _MOST) -> int:
        value = int(self.number("<Q"))
        if value > min(most, self.size):
            raise BadFile(self.path, f"its header claims {value:,} entries: {CUT}")
        return value

    def text(self) -> str:
        return read_exactly(self.file, self.count(), self.path).decode("utf-8", "replace")

    def name(self) -> str:
        text = self.text()
        if not 0 < len(text) <= _LONGEST_NAME:
            raise BadFile(self.path, f"has an entry with a name of {len(text):,} letters: {CUT}")
        return text

    def value(self, kind: int) -> Any:
        """A number or a text; a list as ``_List``."""
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner = int(self.number("<I"))
            # lists of lists may stand in a GGUF; nobody writes them
            count = self.count(_MOST if inner in _NUMBERS else _MOST_TEXTS if inner == _STRING else _LONG)
            if inner in _NUMBERS:
                return _List(count, self._numbers(_NUMBERS[inner], count))
            for _ in range(count):
                self.value(inner)
            return _List(count, ())
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        raise BadFile(self.path, f"has a value of the unknown type {kind}", "it may be of a newer version")

    def _numbers(self, form: str, count: int) -> tuple[Any, ...]:
        size = struct.calcsize(form) * count
        if count > _LONG:
            self.file.seek(size, 1)
            return ()
        return struct.unpack(f"<{count}{form[1]}", read_exactly(self.file, size, self.path))


@dataclass(frozen=True, slots=True)
class _List:
    length: int
    numbers: tuple[Any, ...]


def read_header(file: BinaryIO, path: str) -> GgufHeader:
    """Raises ``BadFile`` for one that is damaged, cut short or of a version that is not known."""
    reader = _GgufReader(file, path)
    reader.number("<I")  # the magic
    version = reader.number("<I")
    if version not in (2, 3):
        raise BadFile(path, f"is GGUF of version {version}; known are 2 and 3", "convert it again")
    count, entries = reader.count(_MOST_TENSORS), reader.count(_MOST_ENTRIES)
    metadata: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    try:
        for _ in range(entries):
            name = reader.name()
            value = reader.value(int(reader.number("<I")))
            if isinstance(value, _List):
                lengths[name] = value.length
                if value.numbers:
                    metadata[name] = value.numbers
            else:
                metadata[name] = value
        tensors = tuple(_tensor(reader) for _ in range(count))
    except RecursionError:
        raise BadFile(path, "has a damaged GGUF header", "check what wrote it") from None
    total = sum(part.bytes or 0 for part in tensors)
    if total > reader.size:
        raise BadFile(
            path,
            f"its header claims {claimed(total)} of tensors, the file has {format_size(reader.size)}: {CUT}",
        )
    return GgufHeader(version, metadata, lengths, tensors)


def _tensor(reader: _GgufReader) -> Part:
    name, dimensions = reader.name(), int(reader.number("<I"))
    if dimensions > 8:
        raise BadFile(reader.path, f"has a tensor of {dimensions} dimensions: {CUT}")
    shape = tuple(int(reader.number("<Q")) for _ in range(dimensions))
    kind = int(reader.number("<I"))
    reader.number("<Q")  # its offset
    if kind not in GGML:
        return Part(name, f"type {kind}", shape, None)
    type_name, block, size = GGML[kind]
    return Part(name, type_name, shape, math.prod(shape) // block * size)


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
