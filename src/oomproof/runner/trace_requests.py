"""Asks the agent in the job for a closer look when memory leaks, reads what its tracer wrote, and tells it."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oomproof.leaf.attempt_names import TRACE_REQUEST
from oomproof.leaf.small_files import replace_file
from oomproof.machine.clock import boottime
from oomproof.recording.json_shapes import parse
from oomproof.units import MIB, format_size

_EVERY = 600.0  # seconds between two requests
_MOST = 3  # in one run
_READ_SECONDS = 120.0  # for memray's file: native symbols of PyTorch take 3 s and 250 MB
_READ_MEMORY = 2 << 30  # bytes of address space
READER = Path(__file__).with_name("memray_lines.py")  # run by the Python of the job, which has memray
_LONGEST = 1 << 20  # characters of what the reader prints


class TraceRequests:
    def __init__(
        self,
        folder: Path,
        tell: Callable[[str], None],
        store: Callable[[float, str, str, int, dict[str, Any]], None],
    ) -> None:
        self._folder, self._tell, self._store = folder, tell, store
        self._asked, self._next = 0, 0.0
        self._began = time.time()

    def ask(self, headroom: int) -> bool:
        """Of the process that makes the steps or, where none does, that is looked into. Whether it was asked."""
        now = boottime()
        if self._asked >= _MOST or now < self._next:
            return False
        self._asked, self._next = self._asked + 1, now + _EVERY
        with contextlib.suppress(OSError):  # a full disk: then without
            request = json.dumps({"headroom": headroom, "t": now})
            replace_file(self._folder / TRACE_REQUEST, request.encode(), synced=False)
            return True
        return False

    def take(self, t: float, pid: int, fields: dict[str, Any]) -> None:
        """What a window found, or why there was none."""
        if isinstance(fields.get("file"), str):
            threading.Thread(target=self._read, args=(t, pid, fields), name="trace", daemon=True).start()
        else:
            self._told(t, pid, fields)

    def take_trim(self, t: float, pid: int, fields: dict[str, Any]) -> None:
        text = trim_text(fields)
        self._store(t, "agent:trim", text, pid, fields)
        if text:
            self._tell(text)

    def close(self) -> None:
        """What windows that were cut off left behind."""
        for path in (self._folder / TRACE_REQUEST, *self._folder.glob("*.memray")):
            with contextlib.suppress(OSError):
                path.unlink()

    def _told(self, t: float, pid: int, fields: dict[str, Any]) -> None:
        from oomproof.recording.traced_lines import trace_of, trace_text  # most runs ask for none

        trace = trace_of(fields)
        text = trace_text(trace, self._began) if trace is not None else str(fields.get("problem") or "")
        self._store(t, "agent:trace", text, pid, fields)
        if trace is not None and text and not fields.get("more"):
            self._tell(f"what grows: {text}")

    def _read(self, t: float, pid: int, fields: dict[str, Any]) -> None:
        import subprocess

        path = self._folder / os.path.basename(str(fields["file"]))
        found: dict[str, Any] = {}
        try:
            process = subprocess.Popen(
                [str(fields.get("python") or ""), str(READER), str(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            _make_it_last(process.pid)
            try:
                output = process.communicate(timeout=_READ_SECONDS)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                output = process.communicate()[0]  # what it had printed before the symbols
            lines = output[:_LONGEST].decode("utf-8", "replace").splitlines()
            told = parse(lines[-1]) if lines else None
            found = told if isinstance(told, dict) else {}
        except (OSError, ValueError) as error:
            found = {"problem": f"memray's file could not be read: {error}"}
        with contextlib.suppress(OSError):
            path.unlink()
        kept = {name: value for name, value in fields.items() if name not in ("file", "python")}
        self._told(t, pid, {**kept, **(found or {"problem": "memray's file could not be read"})})


def _make_it_last(pid: int) -> None:
    """After the job and us, whoever is short of time or memory."""
    import resource

    with contextlib.suppress(OSError, ValueError, AttributeError):  # macOS has no prlimit
        os.setpriority(os.PRIO_PROCESS, pid, 10)
        resource.prlimit(pid, resource.RLIMIT_AS, (_READ_MEMORY, _READ_MEMORY))
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


def trim_text(fields: dict[str, Any]) -> str:
    """What `malloc_trim` proved; empty where it was told incompletely."""
    given, free = fields.get("given"), fields.get("free")
    if not isinstance(given, int) or not isinstance(free, int) or free < MIB:
        return ""
    if given * 2 < free:
        return (
            f"the C library keeps {format_size(free)} that nothing uses, and could give back only {format_size(max(0, given))}: "
            "holes between what is in use (fragmentation), not a leak. jemalloc has fewer: LD_PRELOAD=libjemalloc.so.2"
        )
    return (
        f"the C library kept {format_size(free)} that nothing used: malloc_trim gave {format_size(given)} back; not a leak. "
        "MALLOC_ARENA_MAX=2 or LD_PRELOAD=libjemalloc.so.2 keeps less"
    )
