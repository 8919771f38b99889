"""Which of a job's processes died of memory while the job itself continues: a trial of a sweep's agent, a worker of a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from oomproof.guard.actuator import PROGRAM_LOST as PROGRAM_LOST
from oomproof.guard.actuator import shown_command
from oomproof.leaf.proc_files import command_line
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
