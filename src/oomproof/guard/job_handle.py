"""The job as the guard holds it: its cgroup or its process tree, what it uses, and the means to end it whole."""

from __future__ import annotations

import os
import signal
from typing import Any

from oomproof.guard.freezer import Freezer
from oomproof.guard.process_tree import ProcessTree
from oomproof.leaf.process_signals import send_signal
from oomproof.machine import cache_faults, processes
from oomproof.machine.cache_faults import CacheFaults
from oomproof.machine.cgroups import (
    Cgroup,
    CgroupV1,
    CgroupV2,
    ChargeAlarm,
    JobMemory,
    all_procs_files,
    read_pids,
)
from oomproof.machine.kill_counters import kills_in

_GENERATIONS = 4  # a shell, a launcher, its agent, the trainers


class Job:
    """Built from started.json, so that `watch` and `stop` hold the same job as the guard that began it."""

    def __init__(self, started: dict[str, Any]) -> None:
        self.leader = int(started["job"]["pid"])
        self.leader_start: int | None = started["job"].get("start")
        self.keeper = int(started["keeper"]["pid"])
        backend = started.get("backend", {})
        self.limit: int | None = backend.get("limit")
        self._memory_dir: str | None = backend.get("memory")
        self._procs_dir: str | None = backend.get("procs")
        self._cgroup: Cgroup | None = None
        if self._memory_dir:
            self._cgroup = (
                CgroupV2(self._memory_dir) if backend.get("version") == 2 else CgroupV1(self._memory_dir)
            )
        is_v1 = isinstance(self._cgroup, CgroupV1)
        self.alarm = ChargeAlarm(self._memory_dir) if is_v1 and self._memory_dir else None
        self._tree = ProcessTree(self._descendants)
        self._kill_fd = self._open_kill(backend.get("kill"))
        self._leader_fd = self._open_leader()
        freezer = backend.get("freezer")
        self.freezer = Freezer(freezer, self.pids)
        # the unified one, which has the job's pressure on a machine of version 1 too
        self._unified = os.path.dirname(freezer) if freezer and freezer.endswith("cgroup.freeze") else None
        self.reclaim: str | None = backend.get("reclaim")

    @staticmethod
    def _open_kill(path: str | None) -> int | None:
        """Kept open: at the bad moment even opening a file may fail."""
        try:
            return os.open(path, os.O_WRONLY | os.O_CLOEXEC) if path else None
        except OSError:
            return None

    def _open_leader(self) -> int | None:
        if not hasattr(os, "pidfd_open") or not processes.is_alive(self.leader, self.leader_start):
            return None
        try:
            fd = os.pidfd_open(self.leader)
        except OSError:
            return None
        # the pid may have been recycled between the look and the open; after it, it cannot
        if not processes.is_alive(self.leader, self.leader_start):
            os.close(fd)
            return None
        return fd

    def pids(self) -> list[int]:
        """Everybody, as of now: for signals that must reach all."""
        pids = read_pids(*all_procs_files(self._procs_dir)) if self._procs_dir else []
        return pids or self._descendants()  # no cgroup, or it can no longer be read

    def _descendants(self) -> list[int]:
        pids = processes.descendants(self.keeper) if self.keeper else []
        if not pids and processes.is_alive(self.leader, self.leader_start):  # the keeper was killed
            pids = [self.leader, *processes.descendants(self.leader)]
        return pids

    def known_pids(self) -> list[int]:
        """Everybody, as of the last looks: for what may come a little later."""
        return (self._tree.pids() if self._cgroup is None else []) or self.pids()

    def memory(self, available: int | None = None, headroom: int = 0) -> JobMemory | None:
        """None once the job is gone. The guard says what the machine has left, which spares a tree most of the reading."""
        memory = self._cgroup.memory() if self._cgroup is not None else None
        return memory if memory is not None else self._tree.memory(available, headroom)

    def charge(self) -> int | None:
        """What its cgroup is charged with now, page cache and all: one number of the kernel's, read in microseconds. None where
        there is none."""
        return self._cgroup.charge() if self._cgroup is not None else None

    def most_charged(self) -> int | None:
        """The most its cgroup was ever charged with, page cache and all; None where nobody counts that."""
        return self._cgroup.most_charged() if self._cgroup is not None else None

    def shrunk(self) -> int:
        """By how much its living processes were larger once than they are, all together."""
        known = (processes.memory(pid) for pid in self.pids())
        return sum(
            max(0, process.largest_rss - process.anon - process.shmem - process.file - process.swap)
            for process in known
            if process is not None
        )

    def settle(self, seconds: float) -> None:
        """Before it is ended or stopped: what its processes share is counted anew, where no cgroup counts it."""
        self._tree.settle(seconds)

    @property
    def is_exact(self) -> bool:
        """Whether what it holds is the kernel's own count; else pages shared by fork may count twice until they are walked."""
        return self._cgroup is not None

    @property
    def corrected(self) -> int:
        """Bytes by which the figure changed so far because shared pages were counted anew: no growth."""
        return self._tree.corrected

    @property
    def counts_kills(self) -> bool:
        """Whether a cgroup of its own does."""
        return self._memory_dir is not None

    def kernel_kills(self) -> int:
        """Processes of the job that the kernel has killed for memory so far, where a cgroup of its own counts them."""
        version = 2 if isinstance(self._cgroup, CgroupV2) else 1
        return kills_in(self._memory_dir, version) if self._memory_dir else 0

    def cache_faults(self, pids: list[int]) -> CacheFaults | None:
        """What it reads from disk again for lack of page cache; None where the kernel does not tell."""
        if self._memory_dir is None:
            return cache_faults.of_processes(pids)
        version = 2 if isinstance(self._cgroup, CgroupV2) else 1
        return cache_faults.of_cgroup(self._memory_dir, version, self._unified)

    def shared(self, samples: list[processes.ProcessMemory]) -> dict[int, int]:
        """Pid → what others of its sharers count (its memory less its PSS), of the heaviest given. From the sampler, now and
        then: the kernel walks page tables for it."""
        if self._cgroup is None:
            return self._tree.walk(len(samples))
        overlaps = {process: processes.overlap(process.pid) for process in samples}
        return {
            process.pid: overlap.anon + overlap.swap + max(0, process.shmem - overlap.shmem_pss)
            for process, overlap in overlaps.items()
            if overlap is not None
        }

    def limit_left(self, memory: JobMemory | None) -> int | None:
        """What the kernel's limit over this job still gives it; None where there is none, or the job is gone."""
        return self.limit - memory.charged if self.limit is not None and memory is not None else None

    def is_gone(self) -> bool:
        """Whether its leader has ended, asked without opening anything: at the bad moment that may fail."""
        if self._leader_fd is None:
            return not processes.is_alive(self.leader, self.leader_start)
        return not self.signal_leader(0)

    def signal_leader(self, number: int) -> bool:
        """Through the pidfd: it can never hit another process that got the pid."""
        try:
            if self._leader_fd is not None:
                signal.pidfd_send_signal(self._leader_fd, number)
            elif not hasattr(os, "pidfd_open") and processes.is_alive(
                self.leader, self.leader_start
            ):  # macOS
                os.kill(self.leader, number)
            else:
                return False
        except OSError:
            return False
        return True

    def hears(self, number: int) -> bool:
        """Whether anybody answers that signal; also True where nobody can tell."""
        return bool(self._listeners(number))

    def _listeners(self, number: int) -> list[int]:
        """The leader; where that does not answer, its nearest descendants that do (below a shell, a launcher)."""
        if processes.answers(self.leader, number) is not False:  # also where nobody can tell
            return [self.leader]
        level = [self.leader]
        for _ in range(_GENERATIONS):
            level = [child for pid in level for child in processes.children(pid)]
            if listeners := [pid for pid in level if processes.answers(pid, number)]:
                return listeners
        return []

    def ask_by_signal(self, number: int) -> bool:
        """False, and nothing sent, where nobody answers it: such a signal ends a process unsaved."""
        listeners = self._listeners(number)
        for pid in listeners:
            if pid == self.leader:
                self.signal_leader(number)
            else:
                send_signal(pid, number)
        return bool(listeners)

    def kill(self) -> None:
        """The whole job at once: cgroup.kill where there is one, else every process in rounds until none is left."""
        if self._kill_fd is not None:
            try:
                os.write(self._kill_fd, b"1")
                if self.freezer.kill_needs_resume:
                    self.freezer.resume()
                return
            except OSError:
                pass  # before Linux 5.14, or vanished: the rounds below find out
        if self.freezer.kill_needs_resume:
            self.freezer.resume()
        for _ in range(10):
            pids = self.pids()
            if not pids:
                return
            for pid in pids:
                send_signal(pid, signal.SIGKILL)

    def rehearse(self) -> bool:
        """Signal 0 through the same path as the kill: proves at the start that it will work at the end."""
        return self.signal_leader(0) and (not self._procs_dir or os.path.isdir(self._procs_dir))

    def close(self) -> None:
        for fd in (self._kill_fd, self._leader_fd):
            if fd is not None:
                os.close(fd)
        self.freezer.close()
        self._tree.close()
        if self.alarm is not None:
            self.alarm.clear()
        if self._cgroup is not None:
            self._cgroup.close()
