"""What a pickle would take in memory, from its opcodes: they are read, never executed."""

from __future__ import annotations

import pickletools
import struct
import sys
from typing import BinaryIO, cast

from oomproof.sizing.data.load_cost import AT_LEAST, SAMPLED, LoadCost, call
from oomproof.sizing.data.source_file import CUT, BadFile, file_size

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
