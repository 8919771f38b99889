"""One job in the guard's hands: how it is read, by which settings, and the means to act on it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from oomproof.guard.best_effort import BestEffort
from oomproof.guard.detect_limit import EARLY_SHARE, OUTGROWN
from oomproof.guard.guard_actions import Actions
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
from oomproof.trend import growth
from oomproof.units import MIB

if TYPE_CHECKING:
    from oomproof.recording.writer import Writer  # a guard of the machine does without SQLite


_HISTORY = 600  # points kept for the forecast, one a second: ten minutes
_BLINK = 0.3  # seconds, as for the rate of what the job holds
_LOOK_AGAIN = 0.2  # seconds; near a limit there are a hundred looks a second
_PEAK_WINDOW = 5.0  # seconds, or two steps of the job: its highest point is in there
# A job that fills its limit in twenty seconds would else be asked to stop before the second forecast, never warned.
_FORECAST_EVERY, _FORECAST_EVERY_NEAR = 10.0, 1.0
# A cache or a buffer that fills looks like a leak until it is full: with a limit 5 % above its peak, it ends with a
# twentieth of its growth left to the limit.
_SEEN_LONGER = 20.0
_CALM_AFTER = 60.0  # seconds


class JobGrowth:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.use = growth.Growth()
        self.warm_up = growth.WarmUp()  # told by the agent's thread
        self._steady = growth.Steady(MIB)
        self.is_calm = False  # it has held the same for a minute
        self.time_to_full: float | None = None
        self.is_sure = False  # whether the growth behind ``time_to_full`` will hardly end by itself
        self._charged, self._new_highs = growth.Lasting(), growth.NewHighs(_BLINK)
        self._history: deque[tuple[float, int]] = deque(maxlen=_HISTORY)
        self._forecast_at = float("-inf")
        self._lasted = (float("-inf"), 0.0)  # when growth that lasts was looked for, and what was found
        self._since: float | None = None  # since when each forecast has found growth
        self._peak_headroom: int | None = None

    def add(self, t: float, use: int) -> None:
        """With each look: what the job holds."""
        self.use.add(t, use)
        self.is_calm = self._steady.seconds(t, use) >= _CALM_AFTER and self.use.is_still()

    def unchanged(self, t: float, use: int, limit_headroom: int | None) -> None:
        """With each glance: the series have a point where a look would have made one."""
        self.use.add(t, use)
        self.near_limit(t, limit_headroom)

    def near_limit(self, t: float, limit_headroom: int | None) -> dict[str, Any]:
        """With each look: the facts about the job's own limit."""
        limit, self._peak_headroom = self._settings.limit, None
        if limit is None or limit_headroom is None:
            return {}
        rate = self._new_highs.rate(t, limit - limit_headroom)
        lasting = self._lasting(t, limit, limit_headroom)
        return {"limit_rate": rate, "lasting": lasting, "peak_headroom": self._peak_headroom}

    def _lasting(self, t: float, limit: int, limit_headroom: int) -> float:
        """Growth that continues after loading and the first steps; asked only where a request may be due."""
        if not self.warm_up.is_over(t):
            self._charged.clear()
            return 0.0
        if self.warm_up.counts(t):
            self._charged.add(t, limit - limit_headroom)
        step = self.warm_up.step_seconds(t)
        self._peak_headroom = peak_headroom = limit - self._charged.highest(max(_PEAK_WINDOW, 2 * step))
        if peak_headroom > limit * EARLY_SHARE:
            return 0.0
        if abs(t - self._lasted[0]) >= _LOOK_AGAIN:
            self._lasted = (t, self._charged.rate(step))
        lasting = self._lasted[1]
        left = self.time_to_full
        # a drip shows over minutes only
        if lasting == 0 and left is not None and left <= self._settings.grace:
            lasting = max(0.0, peak_headroom / max(left, 1.0))
        return lasting

    def row(self, t: float, use: int, headroom: int) -> None:
        """With each recorded row: what the job holds, and what it can still get. Forecasts now and then."""
        history = self._history
        if not self.warm_up.is_over(t):
            history.clear()
        elif self.warm_up.counts(t) and (not history or t - history[-1][0] >= 0.9):
            history.append((t, use))
        limit, left = self._settings.limit, self.time_to_full
        shown = bool(history) and t - history[0][0] >= _FORECAST_EVERY
        close = shown and limit is not None and headroom <= limit * EARLY_SHARE
        near = close or (left is not None and left < 300)
        if t - self._forecast_at >= (_FORECAST_EVERY_NEAR if near else _FORECAST_EVERY):
            self._forecast_at = t
            self.time_to_full = self._forecast(t, use, headroom)

    def _forecast(self, t: float, use: int, headroom: int) -> float | None:
        """Never for longer than the growth was seen."""
        usual = self._settings.usual_peak
        if not self._history or (usual is not None and use <= usual < use + headroom):
            left = None  # it held as much before, and ended well
        else:
            least = headroom if self._peak_headroom is None else min(headroom, self._peak_headroom)
            left = growth.time_to_full(list(self._history), max(0, least))
        if left is None:
            self._since, self.is_sure = None, False
            return None
        self._since = self._history[0][0] if self._since is None else self._since
        seen = t - self._since
        outgrown = usual is not None and use > usual * OUTGROWN
        self.is_sure = outgrown or left <= seen / _SEEN_LONGER
        return left if left <= seen else None


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
