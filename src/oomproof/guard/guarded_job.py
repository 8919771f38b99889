"""One job in the guard's hands: how it is read, by which settings, and the means to act on it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from oomproof.guard.best_effort import BestEffort
from oomproof.guard.guard_actions import Actions
from oomproof.guard.job_growth import JobGrowth
from oomproof.guard.job_handle import Job
from oomproof.guard.job_pause import Pause
from oomproof.guard.poll_interval import SAMPLE_CALM, SAMPLE_MAX
from oomproof.guard.view import JobKey, JobView, Settings
from oomproof.leaf.action_kinds import PAUSE, RESUME
from oomproof.ledger import live_runs as ledger
from oomproof.ledger.live_runs import LiveRun
from oomproof.machine.cgroups import JobMemory
from oomproof.machine.clock import boottime
from oomproof.records import dataclass, field

if TYPE_CHECKING:
    from oomproof.recording.writer import Writer  # a guard of the machine does without SQLite

# What fails is named so once, with what that means.
RECORDING, NO_ROWS = "the recording", "rows are missing, the guard continues"
OTHERS, ALONE = "the runtime folder", "this run does not take your other runs into account"
_AS_BEFORE = "the guard uses its last reading"


@dataclass(frozen=True, slots=True)
class Look:
    """One reading of the guard: what a row of the recording is made of."""

    t: float
    memory: JobMemory
    available: int
    swap_free: int
    limit_headroom: int | None


@dataclass
class LatestReading:
    """The newest reading, for the status line and the sampler."""

    t: float = 0.0
    available: int = 0
    swap_free: int = 0
    memory: JobMemory | None = None
    highest: Look | None = None  # since the last row: the guard looks far more often than it records
    limit_headroom: int | None = None
    time_to_full: float | None = None  # by the guard's own, over minutes: what it acts on
    full_at: float | None = None  # boottime, of a leak that was told: by its trend over hours
    sample_seconds: float = SAMPLE_MAX
    processes: int | None = None
    counted_use: int = 0  # what the job held when its processes were counted
    largest_rss: int = 0  # of any of its processes, as the sampler saw their high-water marks
    paused_since: float | None = None  # boottime
    shm: tuple[int, int] | None = None  # total and free of /dev/shm, as the job sees it
    # headroom is thin: the sampler looks more often too
    hurry: threading.Event = field(default_factory=threading.Event)

    @property
    def is_calm(self) -> bool:
        """As of the last row."""
        return self.sample_seconds >= SAMPLE_CALM

    @property
    def headroom(self) -> int:
        """What the job can still get: up to its limit, or of the machine, whichever is nearer."""
        return self.available if self.limit_headroom is None else min(self.available, self.limit_headroom)


class GuardedJob:
    def __init__(
        self,
        job: Job,
        settings: Settings,
        actions: Actions,
        pause: Pause,
        writer: Writer,
        live: LiveRun | None,
        say: Callable[[str, str], None],
        best_effort: BestEffort,
    ) -> None:
        """``say`` tells the user of an action."""
        self.name = live.name if live is not None else ""
        self.job, self.settings, self.actions, self.pause = job, settings, actions, pause
        self.writer, self.live, self.say = writer, live, say
        self.best_effort = best_effort
        self.growth = JobGrowth(settings)
        self.is_asked = False  # a request to stop stands, and is taken back in time
        self._counts_bursts = job.is_exact and job.most_charged() is not None
        self.moment = LatestReading()
        self.on_growth: Callable[[], None] | None = None  # with each row while growth is foreseen
        self.on_change: Callable[[], None] | None = None  # when it is no longer calm

    def on_unmanaged(self, kind: str, text: str, job: JobKey) -> None:
        """A job that was not started by us was paused or resumed, for the sake of this one."""
        self.event(boottime(), kind, text, pid=job[0])
        self.best_effort("telling the user", lambda: self.say(kind, text), None)

    def read(self, t: float, available: int, swap_free: int) -> JobView | None:
        """None once it is gone."""
        moment, growth = self.moment, self.growth
        moment.t, moment.available, moment.swap_free = t, available, swap_free
        memory = self._memory(available)
        if memory is None:
            return None
        limit = self.settings.limit
        limit_headroom = None if limit is None else limit - max(memory.charged + memory.swap, 0)
        moment.memory, moment.limit_headroom = memory, limit_headroom
        use = memory.use
        if self.job.is_exact and (moment.highest is None or use > moment.highest.memory.use):
            moment.highest = Look(t, memory, available, swap_free, limit_headroom)
        growth.add(t, use - self.job.corrected)
        return JobView(
            self.name,
            use,
            growth.use.rate(0.3),
            self.pause.by,
            self.settings.protected,
            self.settings.need is not None,
            growth.use.sustained(),
            memory.swap,
            self.pause.can_push,
            self.pause.limit,
            limit_headroom,
            **growth.near_limit(t, limit_headroom),
            time_to_full=moment.time_to_full,
            still=growth.use.is_still(),
            calm=self.is_calm,
        )

    @property
    def is_calm(self) -> bool:
        """Only where its cgroup keeps a burst between two looks, so that rarer ones lose none, and nothing is to be undone."""
        return self.growth.is_calm and self._counts_bursts and not self.is_asked and not self.pause.by

    def glance(self, t: float, available: int, swap_free: int) -> None:
        """Nothing has changed since the last look: said to the others, and noticed if the user paused it."""
        moment, memory = self.moment, self.moment.memory
        moment.t, moment.available, moment.swap_free = t, available, swap_free
        if memory is not None:
            self.growth.unchanged(t, memory.use - self.job.corrected, moment.limit_headroom)
        live = self.live
        if live is not None:
            self.best_effort(OTHERS, lambda: live.confirm(t), None, ALONE)
        self.notice_hands(t)

    def _memory(self, available: int) -> JobMemory | None:
        """None once it is gone. One that lives and cannot be read holds what it held."""
        memory = self.best_effort(
            "reading the job's memory",
            lambda: self.job.memory(available, self.headroom()),
            None,
            _AS_BEFORE,
        )
        if memory is not None or self.job.is_gone():
            return memory
        self.best_effort.failed("reading the job's memory", OSError("nothing of it can be read"), _AS_BEFORE)
        return self.moment.memory or JobMemory(0, 0, 0, 0, 0, 0)

    def headroom(self) -> int:
        """Up to the nearest line, as of the last look."""
        moment = self.moment
        available = moment.available + moment.swap_free - self.settings.floor
        return max(0, available if moment.limit_headroom is None else min(available, moment.limit_headroom))

    def event(self, t: float, kind: str, text: str, **data: object) -> None:
        self.best_effort(RECORDING, lambda: self.writer.event(t, kind, text, **data), None, NO_ROWS)

    def tell_the_others(self, use: int, t: float) -> None:
        live = self.live
        if live is not None:
            paused = {"guard": ledger.BY_GUARD, "hand": ledger.BY_HAND}.get(self.pause.by, ledger.RUNS)
            rate = self.growth.use.rate(0.3)
            self.best_effort(OTHERS, lambda: live.update(use, t, rate, paused), None, ALONE)

    def notice_hands(self, t: float) -> None:
        """`oomproof pause` and `resume` came from outside."""
        self.best_effort("looking for a pause by hand", lambda: self._check_manual_pause(t), None)

    def _check_manual_pause(self, t: float) -> None:
        before, freezer = self.pause.by, self.job.freezer
        self.pause.look()
        if self.pause.by == before:
            return
        if not self.pause.by:
            # Whoever resumed it did so before; but if our own pause came in between, nobody would end that one.
            freezer.resume()
            self.pause.look()
        if self.pause.by == "hand" and not freezer.is_paused():
            self.pause.look()  # `resume` first marks a job whose GPU memory it will move, then lets it run
            if self.pause.by == "hand" and not self.pause.moving:
                freezer.pause()  # a resume of ours crossed it
        self.moment.paused_since = t if self.pause.by else None
        self.event(t, PAUSE if self.pause.by else RESUME, "by hand")
