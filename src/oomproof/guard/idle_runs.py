"""Do the others get anywhere? A paused job that holds what they wait for is a deadlock; then nobody uses the CPU."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.ledger.live_runs import Live
from oomproof.machine import processes

_LOOK_EVERY = 5.0
# Two minutes without one tick of CPU in a whole job: a training that waits for its GPU or its loader polls more often.
IDLE_AFTER = 120.0


class Idleness:
    """Looks only while our job is paused."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self.reset(0.0)

    def reset(self, t: float) -> None:
        self._next = t
        self._ticks = -1
        self._moved = t

    def look(self, t: float, others: Sequence[Live]) -> bool:
        """True when the others that run have done nothing for long."""
        running = [other for other in others if not other.paused and other.pid]
        if not running:
            self._moved = t
            return False
        if t >= self._next:
            self._next = t + _LOOK_EVERY
            ticks = sum(self._cpu(run) for run in running)
            if ticks != self._ticks:  # a process that ended takes its ticks along: that is movement too
                self._ticks, self._moved = ticks, t
        return t - self._moved >= IDLE_AFTER

    def _cpu(self, run: Live) -> int:
        if not processes.is_alive(run.pid, run.start or None, self._proc):
            return 0
        total = 0
        for pid in (run.pid, *processes.descendants(run.pid, self._proc)):
            fields = processes.stat_fields(pid, self._proc)
            if fields and len(fields) > 12:
                total += int(fields[11]) + int(fields[12])
        return total
