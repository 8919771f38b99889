"""The guard's loop: read memory, decide, act, hand a row to the recording, sleep as long as it is safe to."""

from __future__ import annotations

import ctypes
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from oomproof import trend
from oomproof.guard import pausing, policy
from oomproof.guard.actions import Actions
from oomproof.guard.facts import Action, Facts, Settings, State
from oomproof.guard.growth import JobGrowth
from oomproof.guard.job import Job
from oomproof.guard.pause import Pause
from oomproof.guard.strangers import Strangers
from oomproof.guard.waiting import Idleness
from oomproof.ledger import live as ledger
from oomproof.ledger.live import LiveRun
from oomproof.machine import limits, swap
from oomproof.machine.cgroups import Cgroup, CgroupV1, CgroupV2, JobMemory
from oomproof.machine.clock import boottime
from oomproof.machine.pressure import PressureReader
from oomproof.recording.writer import Writer
from oomproof.units import format_size

if sys.platform == "darwin":
    from oomproof.machine.macos_memory import MemoryReader
else:
    from oomproof.machine.memory import MemoryReader

_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_SAMPLE_MAX, _SAMPLE_MIN = 1.0, 0.1  # seconds between recorded rows, calm and thin
_STALL_WINDOW = 2.0


def lock_memory() -> bool:
    """So that the guard is not swapped out just when it is needed. Ordinary users often may not (8 MiB limit)."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) == 0)
    except (OSError, AttributeError):
        return False


@dataclass
class Moment:
    """The newest reading, for the status line and the sampler."""

    t: float = 0.0
    available: int = 0
    swap_free: int = 0
    memory: JobMemory | None = None
    limit_headroom: int | None = None
    time_to_full: float | None = None
    sample_seconds: float = _SAMPLE_MAX
    processes: int | None = None
    paused_since: float | None = None  # boottime
    shm: tuple[int, int] | None = None  # total and free of /dev/shm, as the job sees it
    hurry: threading.Event = field(
        default_factory=threading.Event
    )  # room is thin: the sampler shall look too


class HostView:
    """What the machine, or the container around us, can still give."""

    def __init__(self) -> None:
        self._memory = MemoryReader()
        self._pressure = PressureReader()
        first = self._memory.read()
        self.mem_total = first.total
        areas = swap.read()
        self._has_zram = any(area.zram is not None for area in areas)
        self.swap_total = swap.disk(areas)[0] if self._has_zram else first.swap_total
        # Every limit over us: one higher up may leave less than a smaller one below it.
        self._outer: list[tuple[int, Cgroup]] = []
        over_us = limits.read()
        self._swap_limit = over_us.swap_limit
        for level in over_us.levels:
            if level.limit < first.total:
                v2 = os.path.exists(f"{level.path}/memory.current")
                view: Cgroup = CgroupV2(level.path) if v2 else CgroupV1(level.path)
                self._outer.append((level.limit, view))
        self._stalls: deque[tuple[float, int]] = deque()
        self.psi = (0, 0)

    @property
    def inside_a_limit(self) -> bool:
        """Whether a container's or another cgroup's limit, not the machine, is what runs out first."""
        return bool(self._outer)

    @property
    def ram(self) -> int:
        return min([self.mem_total, *(limit for limit, _ in self._outer)])

    def read(self, t: float) -> tuple[int, int, float]:
        """(available, free disk swap, share of the last two seconds in which everybody stalled)."""
        available, swap_free = self._memory.available_and_swap_free()
        if self._has_zram and swap_free:
            swap_free = swap.disk(swap.read())[1]
        for limit, view in self._outer:
            inside = view.memory()
            if inside is not None:
                available = min(available, max(0, limit - inside.charged))
                if self._swap_limit is not None:
                    swap_free = min(swap_free, max(0, self._swap_limit - inside.swap))
        if self._swap_limit == 0:
            swap_free = 0
        self.psi = self._pressure.totals()
        stalls = self._stalls
        stalls.append((t, self.psi[1]))
        while t - stalls[0][0] > _STALL_WINDOW:
            stalls.popleft()
        elapsed = t - stalls[0][0]
        stall = (self.psi[1] - stalls[0][1]) / 1e6 / elapsed if elapsed > 0.2 else 0.0
        return available, swap_free, stall


def open_pressure_trigger() -> int | None:
    """A descriptor that wakes us when tasks stall for 150 ms of 2 s: a second witness beside our own polling.

    Unprivileged since Linux 6.4 for windows that are multiples of 2 s; None elsewhere.
    """
    try:
        fd = os.open("/proc/pressure/memory", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.write(fd, b"some 150000 2000000\0")
    except OSError:
        os.close(fd)
        return None
    return fd


class Guard:
    """One thread. Everything it needs at the bad moment is opened at the start."""

    def __init__(
        self,
        job: Job,
        host: HostView,
        settings: Settings,
        actions: Actions,
        writer: Writer,
        live: LiveRun | None,
        say: Callable[[str, str], None],
        pause: Pause,
    ) -> None:
        self.settings = settings
        self.moment = Moment()
        self._pause = pause
        self._idleness = Idleness()
        self._job, self._actions, self._writer, self._live = job, actions, writer, live
        self._say = say
        self._host = host
        self._state = State()
        self.growth = JobGrowth(settings)
        self.on_growth: Callable[[], None] | None = None  # with each row while growth is foreseen
        self._room = trend.Growth()
        self._rows = 0
        self._strangers = Strangers()
        self._next_row = 0.0
        self._stumbled = False
        self._calm_since: float | None = None
        self._unasked_since: float | None = None
        self._wake_read, self._wake_write = os.pipe()
        self._trigger = open_pressure_trigger()
        self._poller = select.poll()
        self._poller.register(self._wake_read, select.POLLIN)
        if self._trigger is not None:
            self._poller.register(self._trigger, select.POLLPRI)
        self._thread = threading.Thread(target=self._loop, name="guard", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        os.write(self._wake_write, b".")
        self._thread.join(2.0)

    def _loop(self) -> None:
        stopping = False
        while not stopping:
            try:
                facts = self.step(boottime())
            except Exception as error:  # no memory, no descriptors, a bug of ours: a guard must not die of it
                facts = None
                self._stumble(error)
            seconds = policy.poll_seconds(self.settings, facts) if facts else policy.POLL_MIN_CALM
            seconds = min(seconds, max(policy.POLL_MIN, self._next_row - boottime()))
            for fd, event in self._poller.poll(seconds * 1000):
                if fd == self._wake_read:
                    stopping = True
                elif event & (select.POLLERR | select.POLLHUP):
                    self._poller.unregister(fd)  # PSI was switched off under us

    def _stumble(self, error: Exception) -> None:
        """Told once; the next look may go well."""
        if not self._stumbled:
            self._stumbled = True
            self._say("warn", f"the guard stumbled and goes on ({type(error).__name__}: {error})")

    def step(self, t: float) -> Facts | None:
        """One look and, when needed, one action. None once the job is gone."""
        facts = self._look(t)
        if facts is None:
            return None
        self._notice_the_end_of_a_shortage(facts)
        self._keep_the_pause(facts)
        action = policy.decide(self.settings, facts, self._state)
        if action.kind != "none":
            # Choosing took time; what was true then may not be true now (earlyoom re-reads for the same reason).
            facts = self._look(boottime()) or facts
            action = policy.decide(self.settings, facts, self._state)
        if action.kind != "none":
            self._act(action, facts)
        return facts

    def _keep_the_pause(self, facts: Facts) -> None:
        """What changed about the pause since the last look: the room, a time limit, the user's own word."""
        state = self._state
        if state.frozen_at is None:
            return
        if self._pause.by != "guard":  # thawed or taken over by hand: then that counts, for this shortage
            self._state = pausing.thawed(state, gave_up=True)
            self.moment.paused_since = None
            return
        if self._pause.limit is not None:
            state = replace(state, frozen_until=min(state.frozen_until, state.frozen_at + self._pause.limit))
        back = pausing.room_is_back(facts, state)
        self._state = replace(state, room_since=(state.room_since or facts.t) if back else None)

    def _notice_the_end_of_a_shortage(self, facts: Facts) -> None:
        """Days later, an old SIGTERM must not make a kill of the next warning."""
        if self._state.frozen_at is not None:
            self._calm_since = None
            return
        self._notice_the_end_of_a_request(facts)
        if self._state == State() or policy.wanted(self.settings, facts).kind != "none":
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = facts.t
        elif facts.t - self._calm_since > policy.SHORTAGE_OVER:
            self._state = State(warned_at=self._state.warned_at)
            self._calm_since = None
            self._actions.withdraw("memory is no longer short", self._say)

    def _notice_the_end_of_a_request(self, facts: Facts) -> None:
        """A job that has stopped growing under its limit is no longer asked to stop."""
        if not policy.request_is_over(self.settings, facts, self._state):
            self._unasked_since = None
        elif self._unasked_since is None:
            self._unasked_since = facts.t
        elif facts.t - self._unasked_since > policy.REQUEST_OVER:
            self._state = replace(self._state, asked_at=None, asked_for="")
            self._unasked_since = None
            self._actions.withdraw("the job no longer grows", self._say)

    def _look(self, t: float) -> Facts | None:
        available, swap_free, stall = self._host.read(t)
        memory = self._job.memory()
        if memory is None:
            if self._next_row == 0.0:  # gone before the first look: what the machine held is still evidence
                self._next_row = t
                self._record_host(t, available, swap_free)
            return None
        use = memory.use
        limit = self.settings.limit
        limit_headroom = None if limit is None else limit - max(memory.charged + memory.swap, 0)
        self.growth.use.add(t, use)
        self._room.add(t, available + swap_free)
        moment = self.moment
        moment.t, moment.available, moment.swap_free = t, available, swap_free
        moment.memory, moment.limit_headroom = memory, limit_headroom
        if t >= self._next_row:
            self._record(t, memory, limit_headroom)
        near = available + swap_free <= self.settings.margin or available <= self.settings.floor
        facts = Facts(
            t=t,
            available=available,
            swap_free=swap_free,
            stall=stall,
            use=use,
            rate=self.growth.use.rate(0.3),
            sustained=self.growth.use.sustained(),
            shrink=-self._room.rate(0.3),
            drain=-self._room.rate(5.0) if near else 0.0,
            limit_headroom=limit_headroom,
            **self.growth.near_limit(t, limit_headroom),
            time_to_full=moment.time_to_full,
            frozen=self._pause.by,
            swap=memory.swap,
            can_push=swap_free > self.settings.floor // 8 and self._pause.can_push,
        )
        return self._among_the_others(facts) if near or facts.frozen else facts

    def _among_the_others(self, facts: Facts) -> Facts:
        """Whose turn it is. Only when it matters: it reads a file per live run."""
        if self._live is None:  # no runtime folder: this run acts for itself alone
            return replace(facts, freeze_turn=True)
        me = self._live.me(facts.use, facts.t, facts.rate)
        others = self._live.others(facts.t)
        turns = ledger.turns(me, others, self.settings.floor // 8, max(0.0, facts.shrink), facts.can_push)
        return replace(
            facts,
            my_turn=turns.to_end,
            freeze_turn=turns.to_freeze,
            thaw_turn=turns.to_thaw,
            running=turns.running,
            waiting=turns.waiting,
            others_idle=self._idleness.look(facts.t, others) if facts.frozen else False,
        )

    def _record(self, t: float, memory: JobMemory, limit_headroom: int | None) -> None:
        moment = self.moment
        self._record_host(t, moment.available, moment.swap_free)
        self._writer.put(
            "job",
            (t, memory.anon, memory.shmem, memory.file, memory.swap, memory.kernel, limit_headroom,
             moment.processes, *(moment.shm or (None, None))),
        )  # fmt: skip
        if self._pause.by or self._rows % 3 == 0:  # a pause by hand may be noticed a little later
            self._notice_hands(t)
        self._tell_the_others(memory.use, t)
        self._rows += 1
        self.growth.row(t, memory.use, self._room_to_grow())
        moment.time_to_full = self.growth.time_to_full
        if moment.time_to_full is not None and self.on_growth is not None:
            self.on_growth()
        thin = self._thinness()
        moment.sample_seconds = max(_SAMPLE_MIN, min(_SAMPLE_MAX, _SAMPLE_MAX * thin))
        self._next_row = t + moment.sample_seconds
        if moment.sample_seconds < _SAMPLE_MAX / 2:
            moment.hurry.set()
        if moment.available + moment.swap_free <= self.settings.margin and self._rows % 5 == 0:
            self._strangers.look({self._job.leader, *self._job.pids(), os.getpid()})

    def _notice_hands(self, t: float) -> None:
        """`oomproof freeze` and `thaw` came from outside."""
        before = self._pause.by
        self._pause.look()
        if self._pause.by != before:
            self.moment.paused_since = t if self._pause.by else None
            self._writer.event(t, "freeze" if self._pause.by else "thaw", "by hand")

    def _tell_the_others(self, use: int, t: float) -> None:
        if self._live is not None:
            frozen = {"guard": ledger.BY_GUARD, "hand": ledger.BY_HAND}.get(self._pause.by, ledger.RUNS)
            self._live.update(use, t, self.growth.use.rate(0.3), frozen)

    def _record_host(self, t: float, available: int, swap_free: int) -> None:
        host = self._host
        self._writer.put("host", (t, host.mem_total, available, None, host.swap_total, swap_free, *host.psi))

    def _thinness(self) -> float:
        """1 with ample room; towards 0 as the nearest line comes near or growth eats the room within seconds."""
        moment, settings = self.moment, self.settings
        room = (moment.available + moment.swap_free - settings.floor) / max(1, settings.margin)
        if moment.limit_headroom is not None and settings.limit:
            room = min(room, moment.limit_headroom / (settings.limit / 4))
        rate = self.growth.use.rate(2.0)
        if rate > 0:
            left = moment.available + moment.swap_free - settings.floor
            if moment.limit_headroom is not None:
                left = min(left, moment.limit_headroom)
            room = min(room, left / rate / 30.0)
        return max(0.0, room)

    def _room_to_grow(self) -> int:
        moment = self.moment
        room = moment.available + moment.swap_free - self.settings.floor
        if moment.limit_headroom is not None:
            room = min(room, moment.limit_headroom)
        return max(0, room)

    def _act(self, action: Action, facts: Facts) -> None:
        machine_wide = action.scope == "machine" and action.kind in ("freeze", "thaw", "term", "kill")
        thaw = action.kind == "thaw"
        pause = pausing.THAW_PAUSE if thaw else ledger.ACTION_PAUSE
        if machine_wide and self._live is not None and not self._live.take_latch(facts.t, pause, thaw):
            return  # another run's guard acted a moment ago: see first what that brings
        why = action.why
        if action.scope == "machine" and "not this job's" in why and self._strangers.named:
            why = f"{why}: {self._strangers.named}"
        if not self.settings.watch_only or action.kind == "warn":
            self._actions.take(action.kind, why, asdict(facts))
        if action.kind == "freeze":
            self._begin_pause(why, facts)
        elif self._state.frozen_at is not None or facts.frozen:
            self._end_pause(action, facts)
        if action.kind not in ("freeze", "thaw"):
            self._state = policy.taken(self._state, action.kind, facts.t, action.scope)
        self._writer.event(facts.t, action.kind, why, scope=action.scope)
        self._say(action.kind, why)

    def _begin_pause(self, why: str, facts: Facts) -> None:
        self._state = pausing.frozen(self.settings, facts, self._state)
        self._idleness.reset(facts.t)
        self.moment.paused_since = facts.t
        self._pause.begin(why, time.time() + self.settings.freeze_max, facts.can_push)
        # at once: the next guard must not freeze one more for nothing
        self._tell_the_others(facts.use, facts.t)

    def _end_pause(self, action: Action, facts: Facts) -> None:
        self._state = pausing.thawed(self._state, action.gave_up)
        self.moment.paused_since = None
        self._pause.end()
        self._tell_the_others(facts.use, facts.t)

    def pause_terms(self) -> str:
        """For the user: what the pause brings, and when it ends. Right after a freeze."""
        state = self._state
        latest = time.strftime("%H:%M", time.localtime(time.time() + self.settings.freeze_max))
        if self._pause.can_push and self.moment.swap_free:
            brings = "it is pushed out to swap"
        else:
            brings = "only its growth is stopped, what it holds stays in RAM (no disk swap to push it out to)"
        return f"{brings}; goes on when {format_size(state.thaw_room)} of RAM are available, at the latest {latest}"

    def let_go(self, why: str) -> None:
        """From the terminal's thread: a signal for a frozen job, which could not hear it; or the guard leaves."""
        self._pause.look()  # it may have been frozen by hand a moment ago
        if self._pause.by:
            self._actions.take("thaw", why)
            self._pause.end()
            self.moment.paused_since = None
            self._writer.event(boottime(), "thaw", why)

    def close(self) -> None:
        for fd in (self._wake_read, self._wake_write, self._trigger):
            if fd is not None:
                os.close(fd)
