"""Compares the mappings of the job's largest process with what they were when it had loaded: when memory leaks, in words."""

from __future__ import annotations

import time

from oomproof.machine.mapping_sizes import ARENAS, SHARED, STACKS, MappingClass, grown_class, mapping_sizes
from oomproof.recording.writer import Writer
from oomproof.units import MIB, format_size, format_time

_LEAST = 16 * MIB  # that one class must have grown by


class MappingWatch:
    """A look reads one file: 1 to 3 ms for a PyTorch process."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._pid, self._since = 0, 0.0
        self._before: dict[MappingClass, tuple[int, int]] = {}

    def begin(self, pid: int) -> None:
        """What there is now is no growth."""
        sizes = mapping_sizes(pid)
        if sizes is not None:
            self._pid, self._since, self._before = pid, time.time(), sizes

    def look(self, t: float, pid: int) -> None:
        """Written down where one class became many more; its last word counts."""
        now = mapping_sizes(pid) if pid == self._pid else None
        grown = grown_class(self._before, now) if now is not None else None
        if grown is not None and (grown[2] >= _LEAST or grown[0].kind == STACKS):
            text = mapping_text(*grown, format_time(self._since, date=False, zone=False))
            self._writer.event(
                t, "mappings", text, pid=pid, number=grown[1], size=grown[0].size, bytes=grown[2]
            )


def mapping_text(of: MappingClass, number: int, size: int, since: str) -> str:
    """``24 more mappings of 64 MiB since 14:02: glibc's arenas, one for a thread …``."""
    if of.kind == SHARED:
        return (
            f"{number} more mappings of shared memory ({format_size(size)}) since {since}: batches or tensors that came "
            "from other processes and are still kept"
        )
    begin = f"{number} more mappings of {format_size(of.size)} since {since}"
    if of.kind == ARENAS:
        return f"{begin}: arenas of the C library, one for a thread (MALLOC_ARENA_MAX=2 keeps it to two)"
    if of.kind == STACKS:
        return f"{begin}: stacks of threads that do not end"
    return f"{begin}: mapped one by one by a library that keeps them"
