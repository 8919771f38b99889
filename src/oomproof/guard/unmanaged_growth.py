"""Who else is on the machine: a look over all other jobs from a thread of its own, recorded, and who of them grew."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from oomproof.machine import cgroups
from oomproof.recording.row_filter import RowFilter
from oomproof.records import dataclass
from oomproof.units import MIB, format_duration, format_size

if TYPE_CHECKING:  # read in by the first look, in its own thread
    from oomproof.machine.jobs import Job

_WORTH_NAMING = 32 * MIB  # growth; browsers breathe by less
_WORTH_A_ROW = 64 * MIB
_ROWS = 5  # of one look: the largest
_LOOK_BACK = 5.0  # seconds over which growth is told, once looks are so close together
_TICKS = os.sysconf("SC_CLK_TCK")

Key = tuple[int, int]  # pid and start: names a job for ever
Put = Callable[[str, tuple[object, ...]], None]  # a row of a table of the recording


@dataclass(frozen=True, slots=True)
class Seen:
    """One job of one look, in bytes."""

    name: str
    use: int
    managed: bool


@dataclass(frozen=True, slots=True)
class MachineLook:
    t: float
    jobs: dict[Key, Seen]


def fastest(before: MachineLook, now: MachineLook) -> str:
    """The unmanaged job that grew most between two looks, in words; empty where none did."""
    grown = [
        (seen.use - (before.jobs[key].use if key in before.jobs else 0), key, seen)
        for key, seen in now.jobs.items()
        if not seen.managed
    ]
    if not grown:
        return ""
    growth, (pid, start), seen = max(grown, key=lambda candidate: candidate[0])
    if growth < _WORTH_NAMING:
        return ""
    seconds = max(1.0, min(now.t - before.t, now.t - start / _TICKS))
    told = f"grew by {format_size(growth)} in {format_duration(seconds)}, held {format_size(seen.use)}"
    return f"{seen.name} (pid {pid}) {told}"


class UnmanagedGrowth:
    """Looks when asked to; the answer is there at the next question."""

    def __init__(self, inside: str | None = None, proc: str = "/proc") -> None:
        """``inside``: the cgroup whose limit is the machine here; only who is in it takes of it."""
        self._inside, self._proc = inside, proc
        self._busy = threading.Event()
        self._looks: deque[MachineLook] = deque(maxlen=16)
        self._rows = RowFilter()
        self.named = ""  # "python load.py (pid 812) grew by 1.2 GiB in 5 s, held 3.4 GiB"

    def look(self, t: float, ours: set[int], used: cgroups.JobMemory, put: Put) -> None:
        """Returns at once; one look at a time. ``used``: what the guarded job holds itself."""
        if self._busy.is_set():
            return
        thread = threading.Thread(target=self._look, args=(t, ours, used, put), name="unmanaged", daemon=True)
        self._busy.set()
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._busy.clear()
            raise

    def _look(self, t: float, ours: set[int], used: cgroups.JobMemory, put: Put) -> None:
        try:
            found = self._others(ours, used)
            self._name(MachineLook(t, {(job.pid, job.start): _seen(job) for job in found}))
            for job in found[:_ROWS]:
                held = job.use + job.swap
                if held >= _WORTH_A_ROW and self._rows.is_news(t, (job.pid, job.start), held):
                    row = (t, job.pid, job.start, job.uid, _name(job), int(job.managed), job.use, job.swap)
                    put("other_job", row)
            self._rows.forget(t)
        except Exception:  # /proc is hidden from us, no memory: then nobody can be named
            pass
        finally:
            self._busy.clear()

    def _others(self, ours: set[int], used: cgroups.JobMemory) -> Sequence[Job]:
        """Without walks over page tables, which hold up who is walked: sharing is estimated from the kernel's sums."""
        from oomproof.machine import jobs

        processes = jobs.scan(self._proc, self._inside)
        anon, shmem = jobs.totals(self._proc, self._inside)
        others = {pid: process for pid, process in processes.items() if pid not in ours}
        return jobs.heaviest(
            others,
            anon_total=max(1, anon - used.anon),
            shmem_total=max(1, shmem - used.shmem),
            walk=0,
            proc=self._proc,
        )

    def _name(self, now: MachineLook) -> None:
        looks = self._looks
        while len(looks) > 1 and now.t - looks[1].t >= _LOOK_BACK:
            looks.popleft()
        self.named = fastest(looks[0], now) if looks else ""
        looks.append(now)


def _seen(job: Job) -> Seen:
    return Seen(_name(job), job.use + job.swap, job.managed)


def _name(job: Job) -> str:
    """Program and script, without arguments, which may be secret."""
    from oomproof.leaf.command_lines import short_name

    return short_name(job.command)
