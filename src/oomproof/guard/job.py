"""The job as the guard holds it: its cgroup or its process tree, what it uses, and the means to end it whole."""

from __future__ import annotations

import os
import signal
from typing import Any

from oomproof.guard.freezing import Freezer
from oomproof.machine import processes
from oomproof.machine.cgroups import Cgroup, CgroupV1, CgroupV2, JobMemory, all_procs_files, read_pids


class Job:
    """Built from started.json, so that `watch` and `stop` hold the same job as the guard that began it."""

    def __init__(self, started: dict[str, Any]) -> None:
        self.leader = int(started["job"]["pid"])
        self.leader_start: int | None = started["job"].get("start")
        self.keeper = int(started["keeper"]["pid"])
        rung = started.get("rung", {})
        self.limit: int | None = rung.get("limit")
        self._memory_dir: str | None = rung.get("memory")
        self._procs_dir: str | None = rung.get("procs")
        self._pss_ratio = 1.0  # true share of what the tree's processes count together; set by the sampler
        self._cgroup: Cgroup | None = None
        if self._memory_dir:
            self._cgroup = (
                CgroupV2(self._memory_dir) if rung.get("version") == 2 else CgroupV1(self._memory_dir)
            )
        self._kill_fd = self._open_kill(rung.get("kill"))
        self._leader_fd = self._open_leader()
        self.freezer = Freezer(rung.get("freeze"), self.pids)
        self.reclaim: str | None = rung.get("reclaim")

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
        if self._procs_dir:
            return read_pids(*all_procs_files(self._procs_dir))
        found = processes.descendants(self.keeper)
        if not found and processes.is_alive(self.leader, self.leader_start):  # the keeper was killed
            found = [self.leader, *processes.descendants(self.leader)]
        return found

    def memory(self) -> JobMemory | None:
        if self._cgroup is not None:
            return self._cgroup.memory()
        return self._tree_memory()

    def _tree_memory(self) -> JobMemory | None:
        """Sums over the tree, scaled by the last measured share so that forked pages do not count twice."""
        anon = shmem = file = swap = 0
        found = False
        for pid in self.pids():
            one = processes.memory(pid)
            if one is not None:
                found = True
                anon, shmem, file, swap = anon + one.anon, shmem + one.shmem, file + one.file, swap + one.swap
        if not found:
            return None
        anon, shmem = int(anon * self._pss_ratio), int(shmem * self._pss_ratio)
        return JobMemory(anon, shmem, file, swap, 0, anon + shmem)

    def limit_left(self, memory: JobMemory | None) -> int | None:
        """What the kernel's limit over this job still gives it; None where there is none, or the job is gone."""
        return self.limit - memory.charged if self.limit is not None and memory is not None else None

    def calibrate(self, counted: int, shared_once: int) -> None:
        """From the sampler, now and then: what the processes count together, and what PSS says it is."""
        if counted > 0:
            self._pss_ratio = min(1.0, max(0.01, shared_once / counted))

    def signal_leader(self, number: int) -> bool:
        """Through the pidfd: it can never hit a stranger who got the pid."""
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

    def kill(self) -> None:
        """The whole job at once: cgroup.kill where there is one, else every process in rounds until none is left."""
        if self._kill_fd is not None:
            try:
                os.write(self._kill_fd, b"1")
                if self.freezer.kill_needs_thaw:
                    self.freezer.thaw()
                return
            except OSError:
                pass  # before Linux 5.14, or vanished: the rounds below find out
        if self.freezer.kill_needs_thaw:
            self.freezer.thaw()
        for _ in range(10):
            pids = self.pids()
            if not pids:
                return
            for pid in pids:
                self._kill_one(pid)

    @staticmethod
    def _kill_one(pid: int) -> None:
        try:
            if not hasattr(os, "pidfd_open"):  # macOS
                os.kill(pid, signal.SIGKILL)
                return
            fd = os.pidfd_open(pid)
            try:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            finally:
                os.close(fd)
        except OSError:
            pass  # gone already

    def rehearse(self) -> bool:
        """Signal 0 through the same path as the kill: proves at the start that it will work at the end."""
        return self.signal_leader(0) and (not self._procs_dir or os.path.isdir(self._procs_dir))

    def close(self) -> None:
        for fd in (self._kill_fd, self._leader_fd):
            if fd is not None:
                os.close(fd)
        self.freezer.close()
        if self._cgroup is not None:
            self._cgroup.close()
