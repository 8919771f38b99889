"""What a job without a cgroup holds: the sum over its processes, with pages that forked ones share counted once.

A process counts what it has mapped, so a page shared by fork counts once per process. How much of that is shared only
a walk over its page tables tells (PSS), too slow for every look. So each process has a deduction: what the last walk
found to be counted elsewhere too. A process that was just forked shares all it has with its parent: until its first
walk, which follows at once, only what it takes from then on counts. In doubt that is the smaller figure.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable

from oomproof.machine import processes
from oomproof.machine.cgroups import JobMemory

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MIB = 1 << 20
_HAS_PROC = sys.platform != "darwin"
# Reading a kept descriptor takes 1 µs, opening it anew 4. So the heaviest are read at every look; the others, and the
# list of processes, as often as these shares of a core allow (500 processes: every 0.4 s and, while processes are started
# somewhere on the machine, every 2 s), or at once when the machine loses memory that the known growth does not explain.
# A light process that starts to grow, or a new one, is seen after that at the latest; until then it counts too little.
_KEPT = 64
_LIGHT_SHARE, _LIST_SHARE = 0.005, 0.004
_LONGEST = 1.0  # seconds between looks at the light ones, where they cost next to nothing
_HURRY_SHARE = 0.1  # instead of these, while memory vanishes without explanation
# or an eighth of the headroom: what the machine may lose before everybody is looked at
_UNEXPLAINED = 32 * _MIB
_WALK_SHARE = 0.02  # of a core for page-table walks that nobody waits for; _HURRY_SHARE when memory vanishes
_SMALL = 8 * _MIB  # what all but the heaviest process count together: no walk is worth that


class _Member:
    __slots__ = ("anon", "anon_extra", "fd", "file", "pid", "shared", "shmem", "shmem_extra", "start", "swap",
                 "swap_extra", "text")  # fmt: skip

    def __init__(self, memory: processes.ProcessMemory, forked: bool) -> None:
        self.pid, self.start = memory.pid, memory.start
        self.anon, self.shmem, self.file, self.swap = memory.anon, memory.shmem, memory.file, memory.swap
        # what is counted elsewhere too
        self.anon_extra = memory.anon if forked else 0
        self.shmem_extra = memory.shmem if forked else 0
        self.swap_extra = memory.swap if forked else 0
        self.fd: int | None = None
        self.text = b""  # statm as it was read last
        self.shared = -1  # of it, in pages

    @property
    def counted(self) -> int:
        return self.anon + self.shmem + self.swap

    @property
    def extra(self) -> int:
        return self.anon_extra + self.shmem_extra + self.swap_extra

    def clamp(self) -> None:
        """A deduction is never more than what there is: exec and munmap end what was shared."""
        self.anon_extra = min(self.anon_extra, self.anon)
        self.shmem_extra = min(self.shmem_extra, self.shmem)
        self.swap_extra = min(self.swap_extra, self.swap)

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class ProcessTree:
    """``list_pids`` names the job's processes; it is asked only when a process was started on this machine."""

    def __init__(self, list_pids: Callable[[], list[int]], proc: str = "/proc") -> None:
        self._list_pids, self._proc = list_pids, proc
        self._lock = threading.Lock()
        self._members: dict[int, _Member] = {}
        self._newest: bytes | None = b""  # the pid that the machine gave out last
        self._loadavg = _open(f"{proc}/loadavg")
        self._next_list = self._next_light = self._next_hurry = 0.0
        self._known_sum: JobMemory | None = None  # until a figure changes
        # What the machine has available plus what the job holds, at most, since everybody was looked at.
        self._most = 0
        self._forked = False  # processes came or went since the last walk
        # Bytes by which walks changed the figure for that reason: no growth of the job's.
        self.corrected = 0
        self._walker = _Walker(self)
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._kept = _KEPT if soft < 0 else min(_KEPT, soft // 8)

    def memory(self, available: int | None = None, headroom: int = 0) -> JobMemory | None:
        """None when no process is left. ``available`` is the machine's; without it everybody is measured, walks and all."""
        with self._lock:
            self._look(available, headroom)
            # Under one lock: a walk between look and sum may have seen one end, and its pages would count twice.
            if available is not None:
                return self._sum() if self._members else None
        self.walk()
        with self._lock:
            return self._sum() if self._members else None

    def _look(self, available: int | None, headroom: int) -> None:
        now, begun = time.monotonic(), time.thread_time()
        newest = self._newest_pid()
        started = newest is None or newest != self._newest
        self._measure(kept=True)
        everybody = available is None or not self._members
        if available is not None:
            self._most = max(self._most, available + self._use())
            if now >= self._next_hurry and self._lost(available) > max(_UNEXPLAINED, headroom // 8):
                everybody = True
        if everybody or (started and now >= self._next_list):
            self._list(newest)
        if everybody or now >= self._next_light:
            light = time.thread_time()
            self._measure(kept=False)
            self._next_light = now + min(_LONGEST, (time.thread_time() - light) / _LIGHT_SHARE)
        if everybody and available is not None:
            if self._lost(available) > _UNEXPLAINED and self._extra():
                self._walker.ask(_HURRY_SHARE)  # copies of shared pages change no process's own figure
            self._most = available + self._use()
            self._next_hurry = now + (time.thread_time() - begun) / _HURRY_SHARE

    def _lost(self, available: int) -> int:
        """What the machine has lost since everybody was looked at and the job's known growth does not explain."""
        return self._most - available - self._use()

    def _newest_pid(self) -> bytes | None:
        """Every new process and thread changes it; None where the kernel does not tell."""
        if self._loadavg is None:
            return None
        try:
            return os.pread(self._loadavg, 128, 0).rpartition(b" ")[2] or None
        except OSError:
            return None

    def _list(self, newest: bytes | None) -> None:
        """Adds who is new. Who has gone is noticed by reading it, so an empty list for want of descriptors ends nobody."""
        begun = time.thread_time()
        pids = self._list_pids()
        known = {*pids}
        for pid in pids:
            memory = processes.memory(pid, self._proc) if pid not in self._members else None
            if memory is not None:
                self._members[pid] = _Member(memory, forked=_HAS_PROC and bool(self._members))
                self._forked, self._known_sum = True, None
        for member in [*self._members.values()]:
            if member.pid not in known and member.fd is None:  # the number may be somebody else's by now
                start = processes.start_time(member.pid, self._proc)
                if start is not None and start != member.start:
                    self._drop(member)
        self._keep_descriptors()
        if pids:
            self._newest = newest
        if self._forked and len(self._members) > 1:
            self._walker.ask()
        self._next_list = time.monotonic() + (time.thread_time() - begun) / _LIST_SHARE

    def _keep_descriptors(self) -> None:
        heaviest = sorted(self._members.values(), key=lambda member: member.counted, reverse=True)
        for index, member in enumerate(heaviest):
            if index >= self._kept:
                member.close()
            elif member.fd is None and _HAS_PROC:
                member.fd = _open(f"{self._proc}/{member.pid}/statm")
                # between the list and the open the number may have changed hands
                if member.fd is not None and processes.start_time(member.pid, self._proc) not in (
                    None,
                    member.start,
                ):
                    self._drop(member)

    def _measure(self, kept: bool) -> None:
        for member in [member for member in self._members.values() if (member.fd is not None) == kept]:
            try:
                if not _HAS_PROC:
                    self._read_all(member)
                    continue
                text = self._statm(member)
            except (FileNotFoundError, ProcessLookupError):
                self._drop(member)
                continue
            except OSError:  # no descriptor, no memory: it holds what it held
                continue
            if text != member.text:
                self._note(member, text)

    def _statm(self, member: _Member) -> bytes:
        if member.fd is not None:
            return os.pread(member.fd, 128, 0)
        fd = os.open(f"{self._proc}/{member.pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, 128, 0)
        finally:
            os.close(fd)

    def _note(self, member: _Member, text: bytes) -> None:
        fields = text.split(None, 3)
        try:
            resident, shared = int(fields[1]), int(fields[2])
        except (IndexError, ValueError):
            return
        member.text, self._known_sum = text, None
        anon = max(0, resident - shared) * _PAGE
        # the rest of the figures may have changed too
        if shared != member.shared or anon < member.anon or member.swap:
            member.shared = shared
            self._read_all(member)
        else:
            member.anon = anon

    def _read_all(self, member: _Member) -> None:
        memory = processes.memory(member.pid, self._proc)
        if memory is not None and memory.start == member.start:
            member.anon, member.shmem, member.file, member.swap = (
                memory.anon,
                memory.shmem,
                memory.file,
                memory.swap,
            )
            member.clamp()
            self._known_sum = None
        elif not _HAS_PROC:
            self._drop(member)

    def _drop(self, member: _Member) -> None:
        member.close()
        self._members.pop(member.pid, None)
        self._known_sum = None
        if member.counted > _MIB:  # what it shared is counted by nobody now
            self._forked = True
            self._walker.ask()

    def _sum(self) -> JobMemory:
        if self._known_sum is None:
            self._known_sum = self._add_up()
        return self._known_sum

    def _add_up(self) -> JobMemory:
        anon = shmem = file = swap = 0
        for member in self._members.values():
            anon += member.anon - member.anon_extra
            shmem += member.shmem - member.shmem_extra
            swap += member.swap - member.swap_extra
            file += member.file
        return JobMemory(anon, shmem, file, swap, 0, anon + shmem)

    def _use(self) -> int:
        return self._sum().use

    def _extra(self) -> int:
        return sum(member.extra for member in self._members.values())

    # --- shared pages ---------------------------------------------------------------------------------------------

    def settle(self, seconds: float) -> None:
        """Before an act that ends or stops the job: a walk now, waited for at most that long."""
        with self._lock:
            sizes = [member.counted for member in self._members.values()]
        if sum(sizes) - max(sizes, default=0) > _SMALL:
            self._walker.wait(seconds)

    def walk(self, most: int | None = None) -> dict[int, int]:
        """Finds out what is shared, of the heaviest ``most`` processes; pid → bytes that others count too."""
        with self._lock:
            heaviest = sorted(self._members.values(), key=lambda member: member.counted, reverse=True)[:most]
            forked = self._forked
            if most is None:
                self._forked = False
        overlaps = [
            (member, overlap) for member in heaviest if (overlap := processes.overlap(member.pid, self._proc))
        ]
        with self._lock:
            before = self._use()
            for member, overlap in overlaps:
                member.anon_extra, member.swap_extra = overlap.anon, overlap.swap
                member.shmem_extra = max(0, member.shmem - overlap.shmem_pss)
                member.clamp()
            self._known_sum = None
            if forked:
                self.corrected += self._use() - before
            return {member.pid: member.extra for member, _ in overlaps}

    def pids(self) -> list[int]:
        with self._lock:
            return [*self._members]

    def close(self) -> None:
        self._walker.close()
        with self._lock:
            for member in self._members.values():
                member.close()
            if self._loadavg is not None:
                os.close(self._loadavg)
                self._loadavg = None


class _Walker:
    """Walks in a thread of its own: a process that waits for its swap or its disk may hold a walk up for seconds."""

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asked = self._hurry = self._closed = False
        self._begun = self._done = 0  # walks
        self._share = _WALK_SHARE
        self._ended = self._spent = 0.0  # when the last walk ended, and the CPU seconds it took

    def ask(self, share: float = _WALK_SHARE) -> None:
        """A walk, as soon as that share of a core allows; returns at once."""
        with self._changed:
            self._asked, self._share = True, max(share, self._share if self._asked else 0.0)
            self._start()
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Returns after a walk that began after this call, or when the time is over."""
        with self._changed:
            wanted = self._begun + 1
            self._asked = self._hurry = True
            if self._start():
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._done >= wanted, seconds)

    def _start(self) -> bool:
        if self._thread is None and not self._closed:
            thread = threading.Thread(target=self._work, name="shared-pages", daemon=True)
            try:
                thread.start()
            except (
                RuntimeError
            ):  # no more threads: the deductions stay as they are, and the next ask tries again
                return False
            self._thread = thread
        return self._thread is not None

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked or self._closed)
                while not (self._hurry or self._closed) and (left := self._wait_left()) > 0:
                    self._changed.wait(left)
                if self._closed:
                    return
                self._asked = self._hurry = False
                self._begun += 1
                number = self._begun
            begun = time.thread_time()
            try:
                self._tree.walk()
            except Exception:  # no memory, a bug of ours: the deductions stay as they are
                pass
            with self._changed:
                self._done = number
                self._ended, self._spent = time.monotonic(), time.thread_time() - begun
                self._changed.notify_all()

    def _wait_left(self) -> float:
        return self._ended + self._spent / self._share - time.monotonic()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(1.0)


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
