"""The tensors of a file of torch.save: names and types out of its pickle's opcodes, which are read and never executed."""

from __future__ import annotations

import math
import pickletools
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice

from oomproof.sizing.data.load_cost import Part

_LONGEST = 16 << 20  # bytes of the pickle that are read: some hundred thousand tensors
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
    if pickled is not None and pickled.file_size <= _LONGEST:
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
