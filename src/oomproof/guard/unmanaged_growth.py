"""Who else is on the machine: a look over all other jobs from a thread of its own, recorded, and who of them grew."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from oomproof.machine import cgroups
from oomproof.machine.clock import boottime
from oomproof.recording.row_filter import RowFilter
from oomproof.records import dataclass, replace
from oomproof.units import MIB, format_duration, format_size

if TYPE_CHECKING:  # read in by the first look, in its own thread
    from oomproof.machine.jobs import Job

_WORTH_NAMING = 32 * MIB  # growth; browsers breathe by less
_WORTH_A_LOOK = 8 * MIB  # the same where it is only asked whether a pause would hurt somebody
_WORTH_A_ROW = 64 * MIB
_ROWS = 5  # of one look: the largest
_LOOK_BACK = 5.0  # seconds over which growth is told, once looks are so close together
_RECENT = 1.0  # seconds over which a rate is taken: what has loaded all it needs no longer grows
_LARGE_PART = 0.25  # of the fastest one's growth
_ASKED = 3  # jobs of one look: each costs a read of all its open files
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
    t: float = 0.0  # since when it is known
    took: float = 0.0  # seconds that the look took: the next one will be as slow

    @property
    def key(self) -> Key:
        return self.job.pid, self.job.start

    @property
    def held(self) -> int:
        return self.job.use + self.job.swap


def growing(before: MachineLook, now: MachineLook, least: int = _WORTH_NAMING) -> list[Grown]:
    """The unmanaged jobs that grew by so much between two looks, the fastest first."""
    grown = []
    for key, seen in now.jobs.items():
        growth = seen.use - (before.jobs[key].use if key in before.jobs else 0)
        if growth >= least and not seen.managed:
            seconds = max(_LEAST_SECONDS, min(now.t - before.t, now.t - key[1] / _TICKS))
            grown.append(Grown(key, seen, growth, seconds))
    return sorted(grown, key=lambda job: -job.bytes)


class UnmanagedGrowth:
    """Looks when asked to; the answer is there at the next question."""

    def __init__(
        self,
        inside: str | None = None,
        proc: str = "/proc",
        tie: Callable[[Job], str] | None = None,
        prefer: Callable[[Job], bool] = lambda job: False,
        holding: int = 0,
    ) -> None:
        """``inside``: the cgroup whose limit is the machine here; only who is in it takes of it. ``tie`` tells why a job must
        not be paused; without it nobody is. ``prefer``: those that are paused before others that grow. ``holding``: bytes that one
        holds whose end would help a run that waits; 0: nobody is asked for."""
        self._inside, self._proc, self._tie, self._prefer = inside, proc, tie, prefer
        self._holding = holding
        self._busy = threading.Event()
        self._looks: deque[MachineLook] = deque(maxlen=16)
        self._rows = RowFilter()
        self.named = ""  # "python load.py (pid 812) grew by 1.2 GiB in 5 s, held 3.4 GiB"
        self.named_pid = 0
        # those that may be paused, newest first; else one that may not
        self.culprits: tuple[Culprit, ...] = ()
        # the largest that could be paused and do not grow: they may end
        self.holders: tuple[Culprit, ...] = ()

    @property
    def culprit(self) -> Culprit | None:
        return self.culprits[0] if self.culprits else None

    def knows(self, since: float) -> bool:
        """Whether a look since then found somebody who fills the machine."""
        return self.culprit is not None and self.culprit.t >= since

    def look(
        self, t: float, ours: set[int], used: cgroups.JobMemory, put: Put, may_pause: bool = True
    ) -> None:
        """Returns at once; one look at a time. ``used``: what the guarded job holds itself. ``may_pause``: whether somebody
        may have to be paused; while memory is ample nobody is asked for, and nothing is made ready for it."""
        if self._busy.is_set():
            return
        thread = threading.Thread(
            target=self._look, args=(t, ours, used, put, may_pause), name="unmanaged", daemon=True
        )
        self._busy.set()
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._busy.clear()
            raise

    def _look(
        self, t: float, ours: set[int], used: cgroups.JobMemory, put: Put, may_pause: bool = True
    ) -> None:
        try:
            began = boottime()
            others = self._others(ours, used)
            jobs = {(job.pid, job.start): job for job in others}
            grown = self._growing(MachineLook(t, {key: _seen(job) for key, job in jobs.items()}))
            found = self._culprits(grown, jobs) if may_pause else ()
            if may_pause and self._holding:
                self.holders = tuple(self._holders(others, {culprit.key for culprit in found}, t))
            took = boottime() - began
            self.culprits = tuple(replace(culprit, t=t + took, took=took) for culprit in found)
            culprit = self.culprit
            not_paused = f" (not paused: {culprit.tie})" if culprit is not None and culprit.tie else ""
            worth = grown and grown[0].bytes >= _WORTH_NAMING
            self.named, self.named_pid = (
                (f"{grown[0].text}{not_paused}", grown[0].key[0]) if worth else ("", 0)
            )
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

    def _growing(self, now: MachineLook) -> list[Grown]:
        looks = self._looks
        while len(looks) > 1 and (now.t - looks[1].t >= _LOOK_BACK or now.t - looks[0].t > 2 * _LOOK_BACK):
            looks.popleft()
        before = looks[0] if looks else now
        looks.append(now)
        if 0 < now.t - before.t <= 2 * _LOOK_BACK:
            return growing(before, now, _WORTH_A_LOOK)
        # what a job held an hour ago says little about how fast it grows: those that began since then come first
        return growing(_older(now), now, _WORTH_A_LOOK) or growing(before, now, _WORTH_A_LOOK)

    def _culprits(self, grown: Sequence[Grown], jobs: Mapping[Key, Job]) -> Sequence[Culprit]:
        """Of those that have a large part in it the newest that may be paused first, as with our own runs; where none may, the fastest."""
        if self._tie is None or not grown:
            return ()
        part = [job for job in grown if job.bytes >= grown[0].bytes * _LARGE_PART]
        part.sort(key=lambda job: (self._prefer(jobs[job.key]), job.key[1]), reverse=True)
        asked = part[:_ASKED] if grown[0] in part[:_ASKED] else [*part[:_ASKED], grown[0]]
        found = [
            Culprit(jobs[job.key], job.seen.name, self._recent_rate(job), self._tie(jobs[job.key]))
            for job in asked
        ]
        return [culprit for culprit in found if not culprit.tie] or found[-1:]

    def _holders(self, others: Sequence[Job], culprits: set[Key], t: float) -> list[Culprit]:
        """Those whose end would help, of the largest."""
        assert self._tie is not None
        large = [job for job in others if not job.managed and job.use + job.swap >= self._holding]
        found = [
            Culprit(job, _name(job), 0.0, self._tie(job), t)
            for job in large[:_ASKED]
            if (job.pid, job.start) not in culprits
        ]
        return [holder for holder in found if not holder.tie]

    def _recent_rate(self, job: Grown) -> float:
        """Bytes per second since the newest look that is a second old; over all looks where each is slower than that."""
        now = self._looks[-1]
        before = next((look for look in reversed(self._looks) if now.t - look.t >= _RECENT), None)
        if before is None or job.key not in before.jobs:
            return job.bytes / job.seconds
        return max(0, job.seen.use - before.jobs[job.key].use) / (now.t - before.t)


def _older(now: MachineLook) -> MachineLook:
    """A look some seconds ago that nobody made: who was there already counts as unchanged."""
    t = now.t - _LOOK_BACK
    return MachineLook(t, {key: seen for key, seen in now.jobs.items() if key[1] / _TICKS <= t})


def _seen(job: Job) -> Seen:
    return Seen(_name(job), job.use + job.swap, job.managed)


def _name(job: Job) -> str:
    """Program and script, without arguments, which may be secret."""
    from oomproof.leaf.command_lines import short_name

    return short_name(job.command)
