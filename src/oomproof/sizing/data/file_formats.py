"""Which format a file has, by its first bytes and then by its name; and what loading it costs."""

from __future__ import annotations

import os
from typing import BinaryIO

from oomproof.sizing.data import array_files, pickle_opcodes, tensor_files, text_tables
from oomproof.sizing.data.load_cost import LoadCost
from oomproof.sizing.data.npy_header import MAGIC
from oomproof.sizing.data.npz_members import open_zip
from oomproof.sizing.data.source_file import BadFile, open_source

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
                    return tensor_files.torch_cost(file, archive, path)
                if any(name.endswith(".npy") for name in names):
                    return array_files.npz_cost(file, archive, path)
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
            "npy": array_files.npy_cost,
            "jsonl": text_tables.jsonl_cost,
            "safetensors": tensor_files.safetensors_cost,
            "gguf": tensor_files.gguf_cost,
            "pickle": pickle_opcodes.pickle_cost,
        }
        return readers[kind](file, path)
