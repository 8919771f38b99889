"""The tracers of a window: each starts, compares what stays from a first look to a last one, and is off again."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_TOLD = 5  # lines
_MOSTLY = 0.5  # of what stays: then it is the user's own lines
# tracemalloc takes 60 bytes for an allocation that is alive, each of the two looks at them 200 more (measured)
_TABLES, _PYTHON_TAKES = 8 << 20, 64 << 20
_MEMRAY_TAKES = 96 << 20  # bytes in the process; its file is in the page cache
_FILE = 64 << 20  # bytes of memray's file at most
_SPACE = 4  # times that must be free on the disk: a full one ends jobs
_YOUNGEST = 1.0  # seconds: no trace ends before
_RAW, _WORDS = 0, 5  # PYMEM_DOMAIN_RAW; pointers of a PyMemAllocatorEx
_SAFETY = 2  # times what a tracer may take must be headroom


class PythonTracer:
    """tracemalloc: every allocation of Python's objects, and of NumPy's arrays, by line."""

    name = "tracemalloc"

    def __init__(self, frames: int, is_library: Callable[[str], bool]) -> None:
        self.frames, self._is_library = frames, is_library
        self._before: list[Any] = []
        self._running, self._begun = False, 0.0
        self._real_start: Any = None
        self._ours: Any = None

    def problem(self, headroom: int) -> str:
        if headroom < _SAFETY * _PYTHON_TAKES:
            return "too little headroom for tracemalloc"
        module = sys.modules.get("_tracemalloc") or sys.modules.get("tracemalloc")
        if module is not None and module.is_tracing():
            return "the job uses tracemalloc itself"
        if "t" in getattr(sys, "abiflags", ""):  # it crashes and hangs there where other threads run
            return "tracemalloc is not safe in a free-threaded Python"
        return ""

    def start(self) -> None:
        import tracemalloc

        raw = _RawAllocator()
        tracemalloc.start(self.frames)
        self._running = True
        raw.put_back()
        self._begun = time.monotonic()
        real = self._real_start = tracemalloc.start

        def start(*args: Any, **kwargs: Any) -> Any:
            self.stop()  # the job wants it for itself
            return real(*args, **kwargs)

        self._ours = tracemalloc.start = start

    def settle(self) -> bool:
        """What there is now is no growth. Summed up later: what is made while it traces is traced, and that takes seconds."""
        self._before = _traces()
        return True

    def is_full(self) -> bool:
        import tracemalloc

        return not self._running or tracemalloc.get_tracemalloc_memory() >= _TABLES

    def finish(self) -> dict[str, Any]:
        if not self._running:
            return {"lines": [], "traced": 0, "problem": "the job started tracemalloc itself"}
        after = _traces()
        self.stop()
        stays: dict[tuple[str, int, bool], list[int]] = {}
        for sign, traces in ((1, after), (-1, self._before)):
            for size, count, place in self._sums(traces):
                known = stays.setdefault(place, [0, 0])
                known[0] += sign * size
                known[1] += sign * count
        self._before = []
        rows = sorted(
            ((size, count, *place) for place, (size, count) in stays.items() if size > 0), reverse=True
        )
        traced, own = sum(row[0] for row in rows), sum(row[0] for row in rows if not row[4])
        lines = [[file, line, "", size, count, library] for size, count, file, line, library in rows[:_TOLD]]
        return {
            "lines": lines,
            "traced": traced,
            "frames": self.frames,
            "in_libraries": own < _MOSTLY * traced,
        }

    def _sums(self, traces: list[Any]) -> list[tuple[int, int, tuple[str, int, bool]]]:
        """Bytes, number and place, for each stack: the traces of one look share theirs."""
        sums: dict[int, list[Any]] = {}
        for trace in traces:
            known = sums.get(id(trace[2]))
            if known is None:
                sums[id(trace[2])] = [trace[1], 1, trace[2]]
            else:
                known[0] += trace[1]
                known[1] += 1
        placed = ((size, count, self._place(stack)) for size, count, stack in sums.values())
        return [(size, count, place) for size, count, place in placed if place is not None]

    def _place(self, stack: Any) -> Any:
        """The innermost line of the user's; of a library where none is in sight. None: our own."""
        if stack[0][0].startswith(_HERE):
            return None
        for file, line in stack:
            if not self._is_library(file):
                return (os.path.abspath(file), line, False)
        return (stack[0][0], stack[0][1], True)

    def stop(self) -> None:
        if self._running:
            # a thread that was counted in the very moment of the start has the GIL by then
            time.sleep(max(0.0, _YOUNGEST - (time.monotonic() - self._begun)))
            self.drop_in_child()

    def drop_in_child(self) -> None:
        if self._running:
            import tracemalloc

            self._running = False
            if tracemalloc.start is self._ours:
                tracemalloc.start = self._real_start
            tracemalloc.stop()


class _RawAllocator:
    """Of what is allocated without the GIL: never traced. A thread that waits for the GIL there to be counted, as one that decompresses does
    (zlib, lzma), ends the process by a segmentation fault when the trace ends first (gh-128679), and newer Pythons took a lock for it with
    which they hung (gh-130093, gh-139116, gh-144763). With the GIL held nothing of that can happen. Raises where it cannot be kept."""

    def __init__(self) -> None:
        import ctypes

        # by item: functions that nobody else gets, whatever their settings
        self._get, self._set = (ctypes.pythonapi[f"PyMem_{verb}Allocator"] for verb in ("Get", "Set"))
        self._set.restype = self._get.restype = None
        self._kept = (ctypes.c_void_p * _WORDS)()
        self._get(_RAW, self._kept)

    def put_back(self) -> None:
        self._set(_RAW, self._kept)


def _traces() -> list[Any]:
    """[(domain, size, ((file, line), …)), …]: what tracemalloc's own snapshot is made of, a tenth of its time."""
    import _tracemalloc

    return list(_tracemalloc._get_traces())


class MemrayTracer:
    """memray: every malloc and mmap, with its native and its Python stack, into a file that the run reads."""

    name = "memray"
    frames = 0
    ours = False  # whether it was us who imported it

    def __init__(self, path: str) -> None:
        self._path = path
        self._tracker: Any = None

    def problem(self, headroom: int) -> str:
        import importlib.util

        if "memray" in sys.modules and not MemrayTracer.ours:
            return "the job uses memray itself"
        if importlib.util.find_spec("memray") is None:
            return "memray is not installed in the job's environment"
        if sys.getprofile() is not None:
            return "the job runs under a profiler"
        if headroom < _SAFETY * _MEMRAY_TAKES:
            return "too little headroom for memray"
        disk = os.statvfs(os.path.dirname(self._path))
        return (
            "too little free disk for memray's file" if disk.f_bavail * disk.f_frsize < _SPACE * _FILE else ""
        )

    def start(self) -> None:
        MemrayTracer.ours = True
        import importlib

        self._tracker = importlib.import_module("memray").Tracker(self._path, native_traces=True)
        self._tracker.__enter__()

    def settle(self) -> bool:
        return False  # its file tells when each allocation was made

    def is_full(self) -> bool:
        try:
            disk = os.statvfs(self._path)
            return os.stat(self._path).st_size >= _FILE or disk.f_bavail * disk.f_frsize < _FILE
        except OSError:
            return True

    def finish(self) -> dict[str, Any]:
        self.stop()
        return {"file": self._path, "python": sys.executable}

    def stop(self) -> None:
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.__exit__(None, None, None)

    def drop_in_child(self) -> None:
        """memray itself has ended in a child; what it made there must only never be called again."""
        _kept.append(self._tracker)
        self._tracker = None


_kept: list[Any] = []
