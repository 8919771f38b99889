"""The trial of a sweep's agent that fills memory: it is ended alone, as the kernel would end it, and the agent starts the next one."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from oomproof.leaf.proc_files import command_line
from oomproof.leaf.process_signals import send_signal
from oomproof.machine import processes
from oomproof.machine.processes import ProcessMemory
from oomproof.printable import one_line
from oomproof.recording.secrets import mask_argv
from oomproof.records import dataclass
from oomproof.units import format_size

_LONGEST = 240  # characters of a command
_FIRST_WORDS = 6  # env, an interpreter and its options come before the program


@dataclass(frozen=True, slots=True)
class Trial:
    pid: int
    start: int
    command: str  # masked
    held: int  # with what it started
    pids: tuple[int, ...]  # the trial and what it started

    @property
    def shown(self) -> str:
        return f"{self.command} (pid {self.pid}, held {format_size(self.held)})"


def shown_command(words: Iterable[str]) -> str:
    text = one_line(shlex.join(mask_argv(words)))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def is_sweep_agent(words: Sequence[str]) -> bool:
    """`wandb agent SWEEP`: a program that starts one trial after the other and lives on whatever becomes of them."""
    names = [os.path.basename(word) for word in words[: _FIRST_WORDS + 1]]
    return any(name == "wandb" and after == "agent" for name, after in pairwise(names))


def trial_to_end(samples: Sequence[ProcessMemory], command: Callable[[int], list[str]]) -> Trial | None:
    """The one below an agent that holds the most, where that is most of the job; None where no agent is in it."""
    known = {sample.pid: sample for sample in samples}
    use = {sample.pid: sample.anon + sample.shmem + sample.swap for sample in samples}
    agents = {pid for pid in known if is_sweep_agent(command(pid))}
    agents -= {pid for pid in agents if known[pid].parent in agents}  # a fork of the agent itself is no agent
    best: Trial | None = None
    for root in (pid for pid in known if known[pid].parent in agents):
        pids = _with_descendants(root, known)
        held = sum(use[pid] for pid in pids)
        if best is None or held > best.held:
            best = Trial(root, known[root].start, shown_command(command(root)), held, pids)
    if best is None or 2 * best.held < sum(use.values()):
        return None
    return best


def _with_descendants(root: int, known: Mapping[int, ProcessMemory]) -> tuple[int, ...]:
    found = [root]
    for pid in found:
        found += [child for child in known if known[child].parent == pid and child not in found]
    return tuple(found)


def end_trial(pids: Sequence[int]) -> Trial | None:
    """Kills it; None, and nothing done, where the job's processes ``pids`` are no agent with a trial. Some milliseconds."""
    samples = [sample for pid in pids if (sample := processes.memory(pid)) is not None]
    trial = trial_to_end(samples, command_line)
    if trial is None:
        return None
    started = {sample.pid: sample.start for sample in samples}
    for pid in trial.pids:
        if processes.is_alive(pid, started[pid]):  # never one that got the pid of another
            send_signal(pid, signal.SIGKILL)
    return trial
