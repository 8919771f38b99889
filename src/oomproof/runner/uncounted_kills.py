"""Kernel kills in a job without a cgroup of its own: the machine's counter tells of one, the kernel's log whom it took."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from oomproof.machine import kill_counters
from oomproof.machine.processes import ProcessMemory
from oomproof.runner.lost_programs import Program, kill_text, waits_for_ever

_VICTIM = re.compile(r"Killed process (\d+)(?:, UID \d+,)? \(([^)\n]{1,15})\)")
_NUMBERED_NEAR = 64  # pids that a machine hands out between two processes of one pool


def _log_since(since: float) -> list[str] | None:
    """None where it may not be read."""
    from oomproof.machine import kernel_log  # most runs never ask

    log = kernel_log.read(since)
    return [line.text for line in log.lines] if log.reason is None else None


class UncountedKills:
    """Asked with every sample."""

    def __init__(
        self,
        leader: int,
        count: Callable[[], int | None] = kill_counters.machine_kills,
        log: Callable[[float], Sequence[str] | None] = _log_since,
    ) -> None:
        self._leader, self._count, self._log = leader, count, log
        self._counted, self._looked = count(), 0.0
        self._told: set[int] = set()

    def look(self, t: float, samples: Iterable[ProcessMemory], gone: list[Program]) -> str | None:
        """What to say; None where nothing of this job was killed, or the whole of it."""
        before, since = self._counted, self._looked
        self._counted, self._looked = self._count(), t
        if before is None or self._counted is None or self._counted <= before:
            return None
        alive = list(samples)
        if self._leader not in {sample.pid for sample in alive}:
            return None
        lines = self._log(since)
        if lines is not None:
            return self._named(lines, alive, gone)
        if not gone:
            return None
        return (
            f"the kernel killed a process on this machine for memory, and {gone[0].shown} of this job is gone. "
            f"{waits_for_ever(gone[0])}"
        )

    def _named(self, lines: Sequence[str], alive: list[ProcessMemory], gone: list[Program]) -> str | None:
        for line in reversed(lines):
            match = _VICTIM.search(line)
            if match is None or (pid := int(match[1])) in self._told:
                continue
            self._told.add(pid)
            known = next((program for program in gone if program.pid == pid), None)
            if known is not None:
                return kill_text([known], len(self._told))[0]
            # one that lived between two samples: called like the job's own, and numbered among them
            if any(
                sample.name == match[2] and 0 < abs(pid - sample.pid) <= _NUMBERED_NEAR for sample in alive
            ):
                return (
                    f"the kernel killed {match[2]} (pid {pid}) for memory, called and numbered like processes of the job. "
                    f"{waits_for_ever(None)}"
                )
        return None
