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
_WORTH_A_LOOK = 8 * MIB  # the same where it is only asked whether a pause would hurt somebody
_WORTH_A_ROW = 64 * MIB
_ROWS = 5  # of one look: the largest
_LOOK_BACK = 5.0  # seconds over which growth is told, once looks are so close together
_LEAST_SECONDS = 0.2  # between the closest looks
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


@dataclass(frozen=True, slots=True)
class Grown:
    """An unmanaged job that grew between two looks."""

    key: Key
    seen: Seen
    bytes: int
    seconds: float

    @property
    def text(self) -> str:
        told = f"grew by {format_size(self.bytes)} in {format_duration(self.seconds)}"
        return f"{self.seen.name} (pid {self.key[0]}) {told}, held {format_size(self.seen.use)}"


@dataclass(frozen=True, slots=True)
class Culprit:
    """The unmanaged job that fills the machine, as of the last look."""

    job: Job
    name: str
    rate: float  # bytes per second
    tie: str  # why it must not be paused; empty: it may

    @property
    def key(self) -> Key:
        return self.job.pid, self.job.start

    @property
    def held(self) -> int:
        return self.job.use + self.job.swap


def fastest(
    before: MachineLook,
    now: MachineLook,
    prefer: Callable[[Key], bool] = lambda key: False,
    least: int = _WORTH_NAMING,
) -> Grown | None:
    """The unmanaged job that grew most between two looks, where one did; of those that are preferred first."""
    grown = [
        (seen.use - (before.jobs[key].use if key in before.jobs else 0), key, seen)
        for key, seen in now.jobs.items()
        if not seen.managed
    ]
    worth = [candidate for candidate in grown if candidate[0] >= least]
    if not worth:
        return None
    growth, key, seen = max(worth, key=lambda candidate: (prefer(candidate[1]), candidate[0]))
    return Grown(key, seen, growth, max(_LEAST_SECONDS, min(now.t - before.t, now.t - key[1] / _TICKS)))


class UnmanagedGrowth:
    """Looks when asked to; the answer is there at the next question."""

    def __init__(
        self,
        inside: str | None = None,
        proc: str = "/proc",
        tie: Callable[[Job], str] | None = None,
        prefer: Callable[[Job], bool] = lambda job: False,
    ) -> None:
        """``inside``: the cgroup whose limit is the machine here; only who is in it takes of it. ``tie`` tells why a job must
        not be paused; without it nobody is. ``prefer``: those that are paused before others that grow."""
        self._inside, self._proc, self._tie, self._prefer = inside, proc, tie, prefer
        self._busy = threading.Event()
        self._looks: deque[MachineLook] = deque(maxlen=16)
        self._rows = RowFilter()
        self.named = ""  # "python load.py (pid 812) grew by 1.2 GiB in 5 s, held 3.4 GiB"
        self.culprit: Culprit | None = None

    def knows(self) -> bool:
        """Whether the last look found somebody who fills the machine."""
        return self.culprit is not None

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
            others = self._others(ours, used)
            jobs = {(job.pid, job.start): job for job in others}
            now = MachineLook(t, {key: _seen(job) for key, job in jobs.items()})
            grown = self._grown(now, lambda key: self._prefer(jobs[key]))
            self.culprit = culprit = self._culprit(grown, others)
            not_paused = f" (not paused: {culprit.tie})" if culprit is not None and culprit.tie else ""
            worth = grown is not None and grown.bytes >= _WORTH_NAMING
            self.named = f"{grown.text}{not_paused}" if grown is not None and worth else ""
            for job in others[:_ROWS]:
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

    def _grown(self, now: MachineLook, prefer: Callable[[Key], bool]) -> Grown | None:
        looks = self._looks
        while len(looks) > 1 and now.t - looks[1].t >= _LOOK_BACK:
            looks.popleft()
        grown = fastest(looks[0], now, prefer, _WORTH_A_LOOK) if looks else None
        looks.append(now)
        return grown

    def _culprit(self, grown: Grown | None, others: Sequence[Job]) -> Culprit | None:
        job = next((job for job in others if grown is not None and (job.pid, job.start) == grown.key), None)
        if grown is None or job is None or self._tie is None:
            return None
        return Culprit(job, grown.seen.name, grown.bytes / grown.seconds, self._tie(job))


def _seen(job: Job) -> Seen:
    return Seen(_name(job), job.use + job.swap, job.managed)


def _name(job: Job) -> str:
    """Program and script, without arguments, which may be secret."""
    from oomproof.leaf.command_lines import short_name

    return short_name(job.command)
