"""Data files made with the standard library, so that these tests run without numpy."""

from __future__ import annotations

import json
import math
import struct
import zipfile
from pathlib import Path
from typing import Any

from oomproof.sizing.data.npy_header import NpyHeader


def npy(
    shape: tuple[int, ...], kind: Any = "<f4", item: int = 4, data: bytes | None = None, fortran: bool = False
) -> bytes:
    header = NpyHeader((1, 0), kind, fortran, shape, item, False, 0).encoded()
    return header + (bytes(item * math.prod(shape)) if data is None else data)


def npz(path: Path, members: dict[str, bytes], compressed: bool = False) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def safetensors(path: Path, shape: tuple[int, ...] = (10, 10), data: int | None = None) -> Path:
    size = 4 * math.prod(shape)
    header = json.dumps(
        {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}
    ).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size if data is None else data))
    return path


def gguf(path: Path, shape: tuple[int, ...] = (64, 10), kind: int = 8, data: int = 680) -> Path:
    """One tensor of Q8_0: 32 numbers take 34 bytes."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    entries = text("general.name") + struct.pack("<I", 8) + text("small")
    entries += text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    entries += text("counts") + struct.pack("<IIQ", 9, 4, 3) + struct.pack("<III", 1, 2, 3)
    tensor = text("w") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, 0)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 3) + entries + tensor + bytes(data))
    return path


def torch_zip(path: Path, *sizes: int) -> Path:
    members = {"archive/data.pkl": b"never read"} | {
        f"archive/data/{number}": bytes(size) for number, size in enumerate(sizes)
    }
    return npz(path, members)
