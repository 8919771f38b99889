"""Which of a job's processes died of memory while the job itself continues: a trial of a sweep's agent, a worker of a pool."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from oomproof.guard.actuator import PROGRAM_LOST as PROGRAM_LOST
from oomproof.guard.actuator import shown_command
from oomproof.leaf.proc_files import command_line
from oomproof.machine import kill_counters
from oomproof.machine.processes import ProcessMemory
from oomproof.records import dataclass
from oomproof.units import MIB, format_size

_LEAST = 8 * MIB  # smaller ones are shells and helpers
_MOST = 256  # processes remembered


@dataclass(frozen=True, slots=True)
class Program:
    pid: int
    command: str  # masked
    held: int
    own: bool  # a program of its own, not its parent's copy

    @property
    def shown(self) -> str:
        return f"{self.command} (pid {self.pid}, held {format_size(self.held)})"


class LostPrograms:
    """Fed with every sample; asked when the kernel has killed one."""

    def __init__(self, leader: int, read: Callable[[int], list[str]] = command_line) -> None:
        self._leader, self._read = leader, read
        self._known: dict[tuple[int, int], Program] = {}

    def note(self, samples: Iterable[ProcessMemory]) -> list[Program]:
        """Those that are gone since the last sample, the heaviest first."""
        alive = {(sample.pid, sample.start): sample for sample in samples if sample.pid != self._leader}
        gone = [program for key, program in self._known.items() if key not in alive]
        self._known = {key: program for key, program in self._known.items() if key in alive}
        for key, sample in alive.items():
            held = sample.anon + sample.shmem + sample.swap
            known = self._known.get(key)
            if known is not None:
                self._known[key] = Program(known.pid, known.command, max(held, known.held), known.own)
            elif held >= _LEAST and len(self._known) < _MOST:
                words, parent = self._read(sample.pid), self._read(sample.parent)
                if words:
                    self._known[key] = Program(sample.pid, shown_command(words), held, words != parent)
        return sorted(gone, key=lambda program: -program.held)


def kill_text(gone: list[Program], kills: int) -> tuple[str, Program | None]:
    """What to say of a kill by the kernel, and the program that was a trial or a tool of its own."""
    victim = gone[0] if gone else None
    if victim is not None and victim.own:
        return (
            f"the kernel killed {victim.shown} for memory ({kills} so far); {waits_for_ever(victim)}"
        ), victim
    who = f"a process of the job ({victim.shown})" if victim is not None else "a process of the job"
    return f"the kernel killed {who} for memory ({kills} so far). {waits_for_ever(victim)}", None


def waits_for_ever(victim: Program | None) -> str:
    """What its loss means for the job."""
    if victim is not None and victim.own:
        return (
            "the job that started it continues. Start it smaller, "
            "or run the trials with oomproof sweep, which skips what cannot fit"
        )
    return (
        "If the job waits for its result, as multiprocessing.Pool does, it never ends: stop it, then fewer "
        "or smaller workers"
    )


def exception_of_program(fields: Mapping[str, Any], pid: int, text: str) -> str:
    """Of a program inside the job that a memory error ended; ``text``: the error and its line."""
    argv = fields.get("argv")
    words = [str(word) for word in argv] if isinstance(argv, list) else []
    command = shown_command(words) if words else "a program of the job"
    return f"{command} (pid {pid}) ran out of memory: {text}"


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
