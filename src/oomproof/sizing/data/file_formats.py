"""Which format a file has, by its first bytes and then by its name; and what loading it costs."""

from __future__ import annotations

import csv
import json
import os
import pickletools
import shlex
import struct
import sys
import zipfile
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, cast

from oomproof.sizing.data import gguf_header
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
from oomproof.sizing.data.text_sample import (
    TextSample,
    object_size,
    objects_per_row,
    pandas_version,
    read_sample,
    text_is_arrow,
)

# What loading CSV and JSON Lines costs, estimated from rows all over the file.

# What pandas takes for a missing value, in short.
_MISSING = {"", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "<NA>", "#N/A", "n/a"}
# What splitting lines into cells takes, from pandas' sources: version 2 splits 2^19 cells at a time (8 bytes for where
# each begins, 8 for a pointer, and its text), version 3 splits blocks of 4 MiB in up to six threads.
_CELLS_AT_ONCE = 1 << 19
_BLOCK, _THREADS = 4 << 20, 6


def csv_cost(file: BinaryIO, path: str, tabs: bool = False) -> LoadCost:
    sample = read_sample(file, path)
    heading = _decoded(path, [(0, sample.first)])[0]
    separator = "\t" if tabs else max(",;\t|", key=heading.count)
    names = next(csv.reader([heading], delimiter=separator), [])
    rows, taken = _csv_rows(sample, path, separator)
    if not rows:
        raise BadFile(path, "has a heading and no rows", "check what wrote it")
    width = len(rows[0])
    # pandas makes cells without a name the index
    names = [*["(index)"] * (width - len(names)), *names][:width]
    count = sample.rows(len(rows), taken, len(sample.first) + 1)
    pandas, arrow = pandas_version(), text_is_arrow()
    columns = [
        _csv_column(name, values, count, arrow)
        for name, values in zip(names, zip(*rows, strict=True), strict=True)
    ]
    kept = sum(column.bytes or 0 for column in columns)
    cells = count * len(columns)
    # Chunks are joined column by column: numbers are copied; before pandas 3 also the pointers to texts.
    copied = (
        sum(column.bytes or 0 for column in columns if column.type != "text") if pandas >= 3 else 8 * cells
    )
    splitting = _splitting(pandas, cells, sample.size)
    usual = call("pd.read_csv", path, *([] if separator == "," else [f"sep={separator!r}"]))
    return LoadCost(
        "TSV" if separator == "\t" else "CSV",
        "csv",
        f"{'' if sample.whole else 'about '}{plural(count, 'row')} of {plural(len(names), 'column')}",
        sample.size,
        usual,
        kept + max(copied, splitting),  # one after the other
        kept,
        SAMPLED,
        tuple(columns),
        cheaper=(
            usual[:-1] + ", chunksize=100_000): a part at a time",
            usual[:-1] + ", usecols=[…], dtype={…: 'float32', …: 'category'})",
            f"oomproof data split {shlex.quote(path)} --rows 100000",
        ),
    )


def _csv_rows(sample: TextSample, path: str, separator: str) -> tuple[list[list[str]], int]:
    """Rows of the usual width (a line break within quotes makes others), and the bytes they take."""
    by_width: dict[int, list[list[str]]] = {}
    sizes: dict[int, int] = {}
    lines = [(at, line) for at, line in sample.lines if at != 0]
    for text, (_, line) in zip(_decoded(path, lines), lines, strict=True):
        try:
            fields = next(csv.reader([text], delimiter=separator), [])
        except csv.Error:
            continue
        by_width.setdefault(len(fields), []).append(fields)
        sizes[len(fields)] = sizes.get(len(fields), 0) + len(line) + 1
    width = max(by_width, key=lambda width: len(by_width[width]), default=0)
    return by_width.get(width, []), sizes.get(width, 0)


def _csv_column(name: str, values: Sequence[str], rows: int, arrow: bool) -> Part:
    there = [value for value in values if value not in _MISSING]
    if not there:
        return Part(name, "float64", (rows,), 8 * rows)
    if all(value in ("True", "False", "TRUE", "FALSE", "true", "false") for value in there):
        whole = len(there) == len(values)
        return Part(name, "bool" if whole else "objects", (rows,), (1 if whole else 8) * rows)
    if all(map(_is_number, there)):
        whole = len(there) == len(values) and all(map(_is_integer, there))
        return Part(name, "int64" if whole else "float64", (rows,), 8 * rows)
    if arrow:  # an offset of 8 bytes, the text, a bit for missing
        size = 8 + 1 / 8 + sum(len(value.encode()) for value in there) / len(values)
    else:
        size = objects_per_row([value or None for value in values])
    return Part(name, "text", (rows,), int(size * rows))


def _splitting(pandas: int, cells: int, size: int) -> int:
    if pandas >= 3:
        blocks = min(size, _BLOCK * min(_THREADS, os.cpu_count() or 1))
        return blocks + 24 * cells * blocks // size
    return min(cells, _CELLS_AT_ONCE) * (16 + size // max(1, cells))


def _is_integer(text: str) -> bool:
    text = text.strip()
    return text.removeprefix("-").removeprefix("+").isdecimal() and len(text) < 20


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def jsonl_cost(file: BinaryIO, path: str) -> LoadCost:
    sample = read_sample(file, path)
    texts = _decoded(path, sample.lines)
    held, taken, cut = 0, 0, False
    for (at, line), text in zip(sample.lines, texts, strict=True):
        try:
            held += _deep_size(json.loads(text)) + 9  # its slot in a list that grows by an eighth
        except (ValueError, RecursionError) as error:
            if at + len(line) >= file_size(file) - 1 and len(texts) > 1:
                cut = True  # the last line, of a file that is being written
                continue
            problem = getattr(error, "msg", "too deep")
            raise BadFile(
                path, f"the line at byte {at:,} is not JSON ({problem})", "check that line"
            ) from None
        taken += len(line) + 1
    rows = len(texts) - cut
    count = sample.rows(rows, taken, 0)
    kept = held * count // max(1, rows)
    return LoadCost(
        "JSON Lines",
        "jsonl",
        f"{'' if sample.whole else 'about '}{plural(count, 'row')}",
        sample.size,
        f"[json.loads(line) for line in {call('open', path)}]",
        kept,
        kept,
        SAMPLED,
        notes=("the last line is cut: the file is still being written, or was not finished",) if cut else (),
        cheaper=(
            f"for line in {call('open', path)}: a row at a time, nothing is kept",
            f'datasets.load_dataset("json", data_files={call("", path)[1:-1]}): converted once, then mapped',
            f"oomproof data split {shlex.quote(path)} --rows 50000",
        ),
    )


def _deep_size(value: Any) -> int:
    """What a row takes as Python objects; keys are made anew for each row, but once in it."""
    counted: set[int] = set()

    def size(value: Any) -> int:
        if id(value) in counted or value is None or isinstance(value, bool):
            return 0
        if type(value) is int and -5 <= value <= 256:
            return 0  # made once for all
        counted.add(id(value))
        inner: Iterable[Any] = ()
        if isinstance(value, dict):
            inner = (*value.keys(), *value.values())
        elif isinstance(value, list):
            inner = value
        return object_size(value) + sum(map(size, inner))

    return size(value)


def _decoded(path: str, lines: Iterable[tuple[int, bytes]]) -> list[str]:
    texts = []
    for at, line in lines:
        try:
            texts.append(line.decode("utf-8-sig" if at == 0 else "utf-8"))
        except UnicodeDecodeError as error:
            raise BadFile(
                path,
                f"is not UTF-8 at byte {at + error.start:,}",
                "iconv -f WINDOWS-1252 -t UTF-8 makes it UTF-8, if that is what it is",
            ) from None
    return texts


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
            return csv_cost(file, path, tabs=path.lower().endswith((".tsv", ".tab")))
        if kind in ("parquet", "arrow"):
            from oomproof.sizing.data import column_files

            return (
                column_files.parquet_cost(file, path)
                if kind == "parquet"
                else column_files.arrow_cost(file, path)
            )
        readers = {
            "npy": npy_cost,
            "jsonl": jsonl_cost,
            "safetensors": gguf_header.safetensors_cost,
            "gguf": gguf_header.gguf_cost,
            "pickle": pickle_cost,
        }
        return readers[kind](file, path)
