"""The host refused memory: NumPy, Python, PyTorch's CPU allocator, C++, Rust."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.hit import Hit, Kind, Said
from oomproof.evidence.texts.quantities import SIZE, amount

ANCHORS = ("Unable to allocate", "MemoryError", "Cannot allocate memory", "Errno 12]", "CPUAllocator", "bad_alloc", "not enough memory",
           "memory allocation of", "ArrowMemory", "Insufficient memory", "malloc of size", "posix_memalign", "errno 12", "errno=12", "os error 12",
           "emory allocation failed", "WinError 1455", "aging file is too small", "C error: out of memory", "nsufficient memory", "memory pool", "bad allocation", "not enough RAM", "OutOfMemoryError()")  # fmt: skip

_NUMPY = re.compile(
    r"Unable to allocate (?:array|(?P<size>[\d.,]+) ?(?P<unit>[KMGTPE]?i?B|bytes)) ?(?:for an array )?with shape \((?P<shape>[\d, ]*)\) and data type (?P<type>\S+)"
)
_NUMPY_CUT = re.compile(
    rf"_ArrayMemoryError|Unable to allocate {SIZE} for an array|Unable to allocate array with shape"
)
_TORCH = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|not enough memory: you tried to allocate"
)
_TRIED = re.compile(
    r"tried to allocate (\d[\d.]*) ?([KMGT]?i?B|bytes|GB)|malloc of size (\d+)|requested buffer of size (\d+)|memory allocation of (\d+) bytes|Failed to allocate (\d+) bytes|alloc memory of (\d+) size|unable to mmap (\d+) bytes"
)
_PYTHON = re.compile(
    r"^(?:\w+\.)*MemoryError\b|\[Errno 12\]|: Cannot allocate memory|ArrowMemoryError|-4:Insufficient memory"
    r"|posix_memalign\([^\n]{0,80}== 0\. 12 vs 0|(?:mmap|malloc|alloc)\w*\([^\n]{0,40}\) failed[^\n]{0,40}errno[ =]12\b"
    r"|\(os error 12\)|WinError 1455|aging file is too small|C error: out of memory|insufficient memory \(attempted to allocate|not enough space in the context's memory pool"
    r"|Cannot allocate memory \(12\)|^\w+: fork: (?:retry: )?Cannot allocate|^OSError: Cannot allocate|\bOutOfMemoryError\(\)$"
)
# a library's exception in these words alone
_PLAIN = re.compile(r"Error: (?:[Oo]ut of memory|[Mm]emory allocation failed|not enough (?:memory|RAM))\b")
_BAD_ALLOC = re.compile(
    r"std::bad_alloc|Error: bad allocation\b|^\W*memory allocation of \d+ bytes failed|bad_array_new_length"
)
# a library that says so and goes on: "Could not lock memory - continuing anyway: Cannot allocate memory"
_GOES_ON = re.compile(r"continuing anyway|[Cc]ould not lock memory|mlock(?:all)?\b")
_GPU = re.compile(r"cudaError|CUDA|rmm|out_of_memory")


def recognise(said: Said) -> Hit | None:
    text = said.text
    if match := _NUMPY.search(text):
        size = _array_bytes(match["shape"], match["type"])
        if size is None and match["size"]:
            size = amount(match["size"], match["unit"])
        details = {"requested_bytes": str(size)} if size is not None else {}
        return Hit(
            "numpy-memory-error", "NumPy could not allocate an array", 0.95, _kind(said), details=details
        )
    if _NUMPY_CUT.search(text):
        return Hit("numpy-memory-error", "NumPy could not allocate an array", 0.9, _kind(said))
    if _TORCH.search(text):
        return Hit(
            "python-memory-error",
            "PyTorch could not allocate host memory",
            0.95,
            _kind(said),
            details=_tried(text),
        )
    if _BAD_ALLOC.search(text) and not _GPU.search(text):
        if (
            said.raised
            or "what()" in text
            or "terminate called" in text
            or "uncaught exception" in text
            or "failed" in text
            or text.endswith("bad_alloc")
        ):
            return Hit("bad-alloc", "C++ could not allocate memory", 0.93, _kind(said), details=_tried(text))
    elif _PYTHON.search(text) and not _GOES_ON.search(text) and not (said.quiet and not said.raised):
        return Hit(
            "python-memory-error",
            "Python could not get memory from the system",
            0.93 if said.raised else 0.7,
            details=_tried(text),
        )
    if said.raised and _PLAIN.search(text) and not _GPU.search(text):
        return Hit("python-memory-error", "the host refused memory", 0.7, details=_tried(text))
    return None


def _kind(said: Said) -> Kind:
    return "talk" if said.quiet else "failure"


def _tried(text: str) -> dict[str, str]:
    match = _TRIED.search(text)
    if not match:
        return {}
    number = next((group for group in match.groups()[2:] if group), None)
    size = int(number) if number else amount(match[1] or "", match[2] or "")
    return {"requested_bytes": str(size)} if size is not None else {}


_WIDTH = re.compile(
    r"^[<>|=]?(?:[a-z]+?(?P<bits>8|16|32|64|128|256)|[fiuc](?P<bytes>1|2|4|8|16)|(?P<bool>bool|\|?b1)|[<>]U(?P<chars>\d+)|(?P<object>object))$"
)


def _array_bytes(shape: str, kind: str) -> int | None:
    """NumPy rounds the size it prints to three digits; shape and type give it exactly."""
    width = _WIDTH.match(kind.strip("'\"`.,"))
    if not width:
        return None
    if width["bits"]:
        size = int(width["bits"]) // 8
    elif width["chars"]:
        size = 4 * int(width["chars"][:9])
    else:
        size = int(width["bytes"] or (8 if width["object"] else 1))
    parts = [part for part in shape.replace(" ", "").split(",") if part]
    for part in parts[:32]:
        size *= int(part[:18])
    return size if parts else None
