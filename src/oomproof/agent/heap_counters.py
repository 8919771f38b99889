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
]
_mallinfo: Any = None


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


def _malloc(ctypes: Any) -> dict[str, int]:
    """Of glibc from 2.33: in use (large blocks are mapped one by one), and free but not given back."""
    global _mallinfo
    if _mallinfo is None:
        _mallinfo = False
        try:
            info = type(
                "mallinfo2", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in _FIELDS]}
            )
            call = ctypes.CDLL(None).mallinfo2
            call.restype, call.argtypes = info, []
            _mallinfo = call
        except Exception:  # another C library, or an older one
            pass
    if not _mallinfo:
        return {}
    now = _mallinfo()
    return {"malloc": now.uordblks + now.hblkhd, "malloc_free": now.fordblks}
