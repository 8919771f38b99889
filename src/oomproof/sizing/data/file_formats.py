"""Which format a file has, by its first bytes and then by its name; and what loading it costs."""

from __future__ import annotations

import os
import pickletools
import shlex
import struct
import sys
import zipfile
from typing import BinaryIO, cast

from oomproof.sizing.data import gguf_header, text_tables
from oomproof.sizing.data.load_cost import AT_LEAST, EXACT, SAMPLED, LoadCost, Part, call, plural
from oomproof.sizing.data.npy_header import (
    MAGIC,
    NpyHeader,
    check_data_size,
    members_of,
    open_zip,
    read_header,
)
from oomproof.sizing.data.source_file import CUT, BadFile, file_size, open_source

_BINARY = '"rb"'
_SAMPLE = 16 << 20  # bytes of opcodes that are read; long payloads are skipped and count for nothing here
_MOST_OPCODES = 2_000_000  # about three seconds
_OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}
# opcodes whose payload may be long: form of its length
_PAYLOADS = {
    "BINBYTES": "<I", "BINBYTES8": "<Q", "BYTEARRAY8": "<Q", "SHORT_BINBYTES": "<B",
    "BINUNICODE": "<I", "BINUNICODE8": "<Q", "SHORT_BINUNICODE": "<B",
}  # fmt: skip
# what an object takes, measured on CPython 3.11 (sys.getsizeof, rounded up to 16), with its slot in a container
_SIZES = {
    "BININT": 32 + 8, "BININT2": 32 + 8, "BININT1": 8, "LONG1": 48 + 8, "INT": 32 + 8, "LONG": 48 + 8,
    "BINFLOAT": 32 + 8, "FLOAT": 32 + 8, "EMPTY_LIST": 64 + 8, "LIST": 64 + 8, "EMPTY_DICT": 64 + 8, "DICT": 64 + 8,
    "EMPTY_SET": 224, "EMPTY_TUPLE": 8, "TUPLE": 64 + 8, "TUPLE1": 48 + 8, "TUPLE2": 64 + 8, "TUPLE3": 64 + 8,
    "NONE": 8, "NEWTRUE": 8, "NEWFALSE": 8, "BINGET": 8, "LONG_BINGET": 8, "REDUCE": 64, "NEWOBJ": 64 + 8, "BUILD": 0,
    "SETITEM": 32, "SETITEMS": 120,  # a dict of up to five keys has a table of its own
}  # fmt: skip


def pickle_cost(file: BinaryIO, path: str) -> LoadCost:
    disk = file_size(file)
    in_memory, seen, whole = _walk(file, path, disk)
    estimate = int(in_memory * (1 if whole else max(1.0, disk / seen)))
    return LoadCost(
        "pickle", "", "unknown before it is loaded", disk, f"pickle.load({call('open', path, _BINARY)})",
        max(disk, estimate), max(disk, estimate), SAMPLED if estimate > disk else AT_LEAST,
        notes=(
            "loading a pickle runs code of whoever wrote it: it was not loaded, and --prove does not load it",
            "objects of classes may take more, and arrays twice their size while they are made",
        ),
        cheaper=("save arrays with np.save, tables as Parquet, tensors as safetensors: those can be mapped or read in parts",),
    )  # fmt: skip


def _walk(file: BinaryIO, path: str, disk: int) -> tuple[int, int, bool]:
    """(bytes in memory of what was seen, bytes of the file that were seen, whether it was all of it)"""
    in_memory, read, opcodes = 0, 0, 0
    while read < _SAMPLE and opcodes < _MOST_OPCODES:
        code = file.read(1)
        if not code:
            raise BadFile(path, f"has no end mark: {CUT}")
        opcode = _OPCODES.get(code.decode("latin1"))
        if opcode is None:  # raw data between the opcodes, as joblib writes it
            return in_memory, max(1, file.tell()), False
        opcodes += 1
        read += 1
        if opcode.name == "STOP":
            return in_memory, max(1, file.tell()), file.tell() >= disk
        if opcode.name in _PAYLOADS:
            form = _PAYLOADS[opcode.name]
            length = _length(file.read(struct.calcsize(form)), form, path)
            if file.tell() + length > disk:
                raise BadFile(path, f"ends within its data: {CUT}")
            file.seek(length, 1)
            in_memory += (length + sys.getsizeof("") + 23) // 16 * 16 + 8
            read += struct.calcsize(form) + min(length, 64)
        elif opcode.arg is not None:
            try:
                opcode.arg.reader(cast(BinaryIO, _Bounded(file)))
            except (ValueError, OverflowError):
                raise BadFile(path, f"is no pickle, or {CUT}", "check what wrote it") from None
            in_memory += _SIZES.get(opcode.name, 0)
        else:
            in_memory += _SIZES.get(opcode.name, 0)
    return in_memory, file.tell(), False


class _Bounded:
    """What an opcode's own reader reads of: not a whole file without a line end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        return self._file.read(min(size, _SAMPLE))

    def readline(self) -> bytes:
        return self._file.readline(_SAMPLE)


def _length(data: bytes, form: str, path: str) -> int:
    if len(data) < struct.calcsize(form):
        raise BadFile(path, f"ends within its data: {CUT}")
    return int(struct.unpack(form, data)[0])


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


KNOWN = ".npy, .npz, .csv, .tsv, .jsonl, .parquet, .arrow, .feather, .pkl, .pt, .safetensors, .gguf"
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_TEXT = {".csv": "CSV", ".tsv": "CSV", ".tab": "CSV", ".jsonl": "JSON Lines", ".ndjson": "JSON Lines"}
# torch.save before 1.6 wrote pickles
_PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".bin", ".ckpt")


class UnknownZip(BadFile):
    """A whole archive that holds neither arrays nor tensors."""


def format_of(file: BinaryIO, path: str) -> str:
    """One word, by which the other verbs choose; raises ``BadFile``."""
    start = file.read(16)
    file.seek(0)
    name = os.path.splitext(path)[1].lower()
    for magic, kind in (
        (MAGIC, "npy"), (b"PK\x03\x04", "zip"), (b"PK\x05\x06", "zip"), (b"GGUF", "gguf"), (b"PAR1", "parquet"),
        (b"ARROW1", "arrow"), (b"\xff\xff\xff\xff", "arrow"),
    ):  # fmt: skip
        if start.startswith(magic):
            return kind
    for magic, packer in _PACKED.items():
        if start.startswith(magic):
            raise BadFile(
                path,
                f"is compressed with {packer}: what is in it is not known before it is unpacked",
                f"unpack it: {packer} -dk",
            )
    if name in _TEXT:
        return "jsonl" if _TEXT[name] == "JSON Lines" else "csv"
    if name == ".safetensors" or start[8:10] == b'{"':
        return "safetensors"
    if name in _PICKLES or start[:1] == b"\x80":
        return "pickle"
    if name in (".npz", ".npy", ".parquet", ".feather", ".arrow", ".gguf"):
        raise BadFile(path, f"does not begin as a {name} file does", "check what wrote it, or copy it again")
    raise BadFile(path, "has no format that is known here", f"known: {KNOWN}")


def load_cost(path: str) -> LoadCost:
    """What loading it costs, by reading headers only; raises ``OomproofError``."""
    with open_source(path) as file:
        kind = format_of(file, path)
        if kind == "zip":
            with open_zip(file, path) as archive:
                names = archive.namelist()
                if any(name.endswith("/data.pkl") for name in names):
                    return gguf_header.torch_cost(file, archive, path)
                if any(name.endswith(".npy") for name in names):
                    return npz_cost(file, archive, path)
            raise UnknownZip(
                path, "is a zip without arrays (.npz) or tensors (torch.save)", f"known: {KNOWN}"
            )
        if kind == "csv":
            return text_tables.csv_cost(file, path, tabs=path.lower().endswith((".tsv", ".tab")))
        if kind in ("parquet", "arrow"):
            from oomproof.sizing.data import column_files

            return (
                column_files.parquet_cost(file, path)
                if kind == "parquet"
                else column_files.arrow_cost(file, path)
            )
        readers = {
            "npy": npy_cost,
            "jsonl": text_tables.jsonl_cost,
            "safetensors": gguf_header.safetensors_cost,
            "gguf": gguf_header.gguf_cost,
            "pickle": pickle_cost,
        }
        return readers[kind](file, path)
