"""What the process's allocators hold, from counters they keep anyway: tells later what kind of memory it was that grew."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FIELDS = [
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
]  # of mallinfo2
_mallinfo: Any = None
_jemalloc: Any = None


def counters() -> dict[str, int]:
    """Bytes, and Python's own small blocks in numbers. What this process has not loaded is left out, and not loaded for it."""
    held: dict[str, int] = {}
    if hasattr(sys, "getallocatedblocks"):
        held["blocks"] = sys.getallocatedblocks()
    ctypes = sys.modules.get("ctypes")  # of NumPy and PyTorch
    if ctypes is not None:
        held.update(_malloc(ctypes))
    arrow = sys.modules.get("pyarrow")
    try:
        if arrow is not None:
            held["arrow"] = int(arrow.default_memory_pool().bytes_allocated())
    except Exception:  # half imported, or of another version
        pass
    return held


def give_back() -> bool:
    """Asks the C library for what it keeps though nobody uses it; whether it could be asked. Milliseconds for 100 MiB."""
    ctypes = sys.modules.get("ctypes")
    if ctypes is None or not _malloc(ctypes) or _jemalloc:
        return False
    try:
        trim = ctypes.CDLL(None).malloc_trim
        trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
        trim(0)
        return True
    except Exception:  # another C library
        return False


def _malloc(ctypes: Any) -> dict[str, int]:
    """In use, and free but not given back: of jemalloc where it takes malloc's place, else of glibc."""
    global _mallinfo, _jemalloc
    if _mallinfo is None:
        _mallinfo = False
        try:
            library = ctypes.CDLL(None)
            if hasattr(library, "mallctl"):
                _jemalloc = library.mallctl
            info = type(
                "mallinfo2", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in _FIELDS]}
            )
            call = library.mallinfo2
            call.restype, call.argtypes = info, []
            _mallinfo = call
        except Exception:  # another C library, or one before glibc 2.33
            pass
    if _jemalloc:
        return _of_jemalloc(ctypes)
    if not _mallinfo:
        return {}
    now = _mallinfo()  # large blocks are mapped one by one
    return {"malloc": now.uordblks + now.hblkhd, "malloc_free": now.fordblks}


def _of_jemalloc(ctypes: Any) -> dict[str, int]:
    figures = []
    value, size = ctypes.c_uint64(1), ctypes.c_size_t(8)
    # its figures are of the last time one asked so
    _jemalloc(b"epoch", None, None, ctypes.byref(value), size)
    for name in (b"stats.allocated", b"stats.resident"):
        size = ctypes.c_size_t(8)
        if _jemalloc(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)):
            return {}
        figures.append(value.value)
    return {"malloc": figures[0], "malloc_free": max(0, figures[1] - figures[0]), "jemalloc": 1}
