"""Kernel kills in a job without a cgroup of its own: the machine's counter tells of one, the kernel's log whom it took."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from oomproof.machine import kill_counters
from oomproof.machine.processes import ProcessMemory
from oomproof.runner.lost_programs import Program, kill_text, waits_for_ever

_VICTIM = re.compile(r"Killed process (\d+)(?:, UID \d+,)? \(([^)\n]{1,15})\)")
_NUMBERED_NEAR = 64  # pids that a machine hands out between two processes of one pool
# The kernel counts a kill before it writes of it, and the victim's memory can take longer than a sample to be freed.
_LOOKS = 8
_LOOKS_WITHOUT_LOG = 2  # where a process that is gone is all there is to go by


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
        self._counted = count()
        self._looked: float | None = None
        self._told: set[int] = set()
        self._looks = 0  # samples since a kill was counted that is not explained yet; 0: there is none
        self._since = 0.0
        self._gone: list[Program] = []  # since then
        # pid → name, of the job's processes in the last sample and since then
        self._sampled: dict[int, str] = {}

    def look(self, t: float, samples: Iterable[ProcessMemory], gone: list[Program]) -> str | None:
        """What to say; None where nothing of this job was killed, or the whole of it."""
        alive = list(samples)
        before, since = self._counted, t if self._looked is None else self._looked
        self._counted, self._looked = self._count(), t
        if before is not None and self._counted is not None and self._counted > before:
            self._since = self._since if self._looks else since
            self._looks = 1
        elif self._looks:
            self._looks += 1
        names = {sample.pid: sample.name for sample in alive}
        if self._leader not in names or not 0 < self._looks <= _LOOKS:
            self._looks, self._gone, self._sampled = 0, [], names
            return None
        self._gone += gone
        self._sampled |= names
        lines = self._log(self._since)
        if lines is not None:
            return self._named(lines, alive)
        if not self._gone or self._looks > _LOOKS_WITHOUT_LOG:
            return None
        lost, self._gone = max(self._gone, key=lambda program: program.held), []
        return (
            f"the kernel killed a process on this machine for memory, and {lost.shown} of this job is gone. "
            f"{waits_for_ever(lost)}"
        )

    def _named(self, lines: Sequence[str], alive: list[ProcessMemory]) -> str | None:
        for line in reversed(lines):
            match = _VICTIM.search(line)
            if match is None or (pid := int(match[1])) in self._told:
                continue
            known = next((program for program in self._gone if program.pid == pid), None)
            if known is not None:
                self._told.add(pid)
                return kill_text([known], len(self._told))[0]
            if any(sample.pid == pid for sample in alive):
                continue  # it is still dying: the next sample tells what it was
            if self._sampled.get(pid) == match[2]:
                self._told.add(pid)
                return (
                    f"the kernel killed {match[2]} (pid {pid}) of the job for memory. {waits_for_ever(None)}"
                )
            # one that lived between two samples: called like the job's own, and numbered among them
            if any(sample.name == match[2] and abs(pid - sample.pid) <= _NUMBERED_NEAR for sample in alive):
                self._told.add(pid)
                return (
                    f"the kernel killed {match[2]} (pid {pid}) for memory, called and numbered like processes of the job. "
                    f"{waits_for_ever(None)}"
                )
        return None
