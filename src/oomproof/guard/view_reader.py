"""Reads the view: the machine, the jobs of this guard and, where they matter, those of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oomproof.guard.best_effort import BestEffort
from oomproof.guard.guarded_job import ALONE, OTHERS, GuardedJob
from oomproof.guard.host_view import HostView
from oomproof.guard.policy_input import DRAIN_SECONDS
from oomproof.guard.unmanaged_guard import UnmanagedGuard
from oomproof.guard.view import JobView, Settings, UnmanagedView, View, is_near, runs_explain
from oomproof.ledger.live_runs import BY_GUARD, BY_HAND, Live
from oomproof.machine import processes
from oomproof.trend import growth

_LOOK_EVERY = 5.0
# Two minutes without one tick of CPU in a whole job: a training that waits for its GPU or its loader polls more often.
IDLE_AFTER = 120.0


class Idleness:
    """Looks only while our job is paused."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self.reset(0.0)

    def reset(self, t: float) -> None:
        self._next = t
        self._ticks = -1
        self._moved = t

    def look(self, t: float, others: Sequence[Live]) -> bool:
        """True when the others that run have done nothing for long."""
        running = [other for other in others if not other.paused and other.pid]
        if not running:
            self._moved = t
            return False
        if t >= self._next:
            self._next = t + _LOOK_EVERY
            ticks = sum(self._cpu(run) for run in running)
            if ticks != self._ticks:  # a process that ended takes its ticks along: that is movement too
                self._ticks, self._moved = ticks, t
        return t - self._moved >= IDLE_AFTER

    def _cpu(self, run: Live) -> int:
        if not processes.is_alive(run.pid, run.start or None, self._proc):
            return 0
        total = 0
        for pid in (run.pid, *processes.descendants(run.pid, self._proc)):
            fields = processes.stat_fields(pid, self._proc)
            if fields and len(fields) > 12:
                total += int(fields[11]) + int(fields[12])
        return total


UNMANAGED, LEFT_ALONE = "looking at unmanaged jobs", "none of them is paused"
_ONLY_THE_LIMIT = "only the job's own limit is guarded"
_BY = {BY_GUARD: "guard", BY_HAND: "hand"}


class ViewReader:
    def __init__(
        self,
        host: HostView,
        jobs: Sequence[GuardedJob],
        best_effort: BestEffort,
        unmanaged: UnmanagedGuard | None = None,
        settings: Sequence[Settings] = (),
        runs: Callable[[float], list[Live]] | None = None,
    ) -> None:
        """A guard without jobs of its own gives the ``settings`` it goes by, and who lists the ``runs``."""
        self._host, self._jobs, self._try = host, jobs, best_effort
        self._unmanaged, self._runs = unmanaged, runs
        self._settings = settings or [job.settings for job in jobs]
        self._headroom = growth.Growth()
        self._idleness = Idleness()
        self._idle_users: dict[int, Idleness] = {}
        self._was_paused = False

    def read(self, t: float) -> View:
        """What cannot be read is unknown, not full and not gone."""
        headroom = self._try("reading the machine's memory", self._host.headroom, None, _ONLY_THE_LIMIT)
        stall = self._try("reading memory pressure", lambda: self._host.stall(t), 0.0)
        available, swap_free = headroom if headroom is not None else (self._host.ram, 0)
        jobs = [view for job in self._jobs if (view := job.read(t, available, swap_free)) is not None]
        if headroom is not None:
            self._headroom.add(t, available + swap_free)
        shrink = -self._headroom.rate(0.3)
        near = any(is_near(settings, available, swap_free) for settings in self._settings)
        unmanaged = self._unmanaged_jobs(near)
        waits = any(job.paused == "guard" for job in unmanaged)
        paused = waits or any(job.paused for job in jobs)
        are_there = jobs or not self._jobs
        others = self._others(t) if are_there and (near or paused) else []
        if paused and not self._was_paused:
            self._idleness.reset(t)
            self._idle_users.clear()
        self._was_paused = paused
        runs = tuple(map(_seen, others))
        unexplained = shrink > 0 and not runs_explain(shrink, (*jobs, *runs))
        return View(
            t,
            available,
            swap_free,
            stall,
            shrink=shrink,
            drain=-self._headroom.rate(DRAIN_SECONDS) if near else 0.0,
            jobs=tuple(jobs),
            others=runs,
            others_idle=paused and self._idleness.look(t, [*others, *(self._own(jobs) if waits else ())]),
            idle_users=self._idle_of(t, others) if paused else frozenset(),
            unmanaged=unmanaged,
            searching=near
            and unexplained
            and self._unmanaged is not None
            and self._unmanaged.is_searching(t),
        )

    def glance(self, t: float) -> tuple[int, int]:
        """What the machine has left (available, free disk swap), between two looks. Raises OSError where that cannot be read."""
        available, swap_free = self._host.headroom()
        self._headroom.add(t, available + swap_free)
        return available, swap_free

    def _idle_of(self, t: float, others: Sequence[Live]) -> frozenset[int]:
        """The users all of whose runs do nothing; asked by a guard for all users."""
        owners = {run.uid for run in others if run.uid is not None}
        for uid in owners - self._idle_users.keys():
            self._idle_users[uid] = Idleness()
            self._idle_users[uid].reset(t)
        return frozenset(
            uid for uid in owners if self._idle_users[uid].look(t, [run for run in others if run.uid == uid])
        )

    def _unmanaged_jobs(self, near: bool) -> tuple[UnmanagedView, ...]:
        guard, nobody = self._unmanaged, tuple[UnmanagedView, ...]()
        return (
            self._try(UNMANAGED, lambda: guard.view(near), nobody, LEFT_ALONE)
            if guard is not None
            else nobody
        )

    def _own(self, views: Sequence[JobView]) -> list[Live]:
        """An unmanaged job may hold what our own wait for."""
        running = {view.name for view in views if not view.paused}
        jobs = (job for job in self._jobs if job.name in running)
        return [Live(job.name, pid=job.job.leader, start=job.job.leader_start or 0) for job in jobs]

    def _others(self, t: float) -> list[Live]:
        """A file per live run is read for it. Without a runtime folder this guard's jobs are alone."""
        if self._runs is not None:
            return self._runs(t)
        live = next((job.live for job in self._jobs if job.live is not None), None)
        if live is None:
            return []
        mine, nobody = {job.name for job in self._jobs}, list[Live]()
        others = self._try(OTHERS, lambda: live.others(t), nobody, ALONE)
        return [run for run in others if run.name not in mine]


def _seen(run: Live) -> JobView:
    """Another guard's job."""
    return JobView(
        run.name, run.use, run.rate, _BY.get(run.paused, ""), run.protected, run.reserved, uid=run.uid,
        pending=max(0, run.need - run.use),
    )  # fmt: skip
