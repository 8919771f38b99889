"""Which of the kernel's victims were processes of this job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from oomproof.evidence.facts import CaseFile, ProcessSeen
from oomproof.evidence.kernel_lines import KernelKill

# include/linux/proc_ns.h, PROC_PID_INIT_INO: the inode of the first pid namespace on every kernel
_INIT_PID_NAMESPACE = "pid:[4026531836]"
_AFTER = 30.0  # a process may outlive its last sample by as long as the guard was starved
_BEFORE = 2.0  # and have been born a sample earlier than first seen


def same_or_below(path: str | None, cgroups: tuple[str, ...]) -> bool:
    """Whether the kernel's ``path`` is one of ours or inside it; in a container ours is only its end."""
    if path is None:
        return False
    return any((path + "/").find(ours + "/") >= 0 for ours in cgroups)


@dataclass(frozen=True, slots=True)
class Ours:
    leader: int | None
    started: float
    processes: Mapping[int, ProcessSeen]
    cgroups: tuple[str, ...]
    pids_comparable: bool  # the kernel prints pids of the first namespace; in a container ours are others

    @classmethod
    def of(cls, case: CaseFile, proc: str) -> Ours:
        try:
            comparable = os.readlink(f"{proc}/self/ns/pid") == _INIT_PID_NAMESPACE
        except OSError:
            comparable = True  # no namespaces in this kernel
        return cls(case.leader, case.started or 0.0, case.processes, case.cgroups, comparable)

    def owns(self, pid: int, when: float) -> bool:
        """By pid and time: numbers are used again."""
        if not self.pids_comparable:
            return False
        seen = self.processes.get(pid)
        if seen is not None and seen.first - _BEFORE <= when <= seen.last + _AFTER:
            return True
        return pid == self.leader and when >= self.started - _BEFORE

    def owns_kill(self, kill: KernelKill) -> bool:
        # the cgroup is the stronger tie: it holds for workers that lived shorter than one sample
        return same_or_below(kill.task_memcg, self.cgroups) or self.owns(kill.pid, kill.time)
