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
from oomproof.guard.best_effort import BestEffort
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
_DRAIN_SECONDS = 5.0  # what others take counts over this long
_HANDS_ROWS, _SCAN_ROWS = 3, 5  # rows between looks for a pause by hand, and for who else grows
_SCAN_LEAST = 1.0  # seconds; it reads every process of the machine
# A walk over the page tables of forked workers, before the job is ended or stopped: 9 of 200 MiB take 3 ms.
_SETTLE_SECONDS = 0.05
# What fails is named so once, with what that means.
_RECORDING, _NO_ROWS = "the recording", "rows are missing, the guard goes on"
_OTHERS, _ALONE = "the runtime folder", "this run acts alone, without regard to your other runs"
_ONLY_THE_LIMIT = "only the job's own limit is guarded"
_AS_BEFORE = "the guard goes by what it held last"


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

    def __init__(self, proc: str = "/proc", sys: str = "/sys") -> None:
        self._memory = MemoryReader(proc)
        self._pressure = PressureReader(f"{proc}/pressure/memory")
        first = self._memory.read()
        self.mem_total = first.total
        self._proc, self._sys = proc, sys
        areas = swap.read(proc, sys)
        self._has_zram = any(area.zram is not None for area in areas)
        self.swap_total = swap.disk(areas)[0] if self._has_zram else first.swap_total
        # Every limit over us: one higher up may leave less than a smaller one below it. Each is compared with what
        # that very cgroup holds.
        over_us = limits.read("self", proc, sys)
        wanted = [level for level in over_us.levels if level.limit < first.total]
        paths = [*(level.path for level in wanted), *(level.path for level in over_us.swap_levels)]
        self._views: dict[str, Cgroup] = {
            path: CgroupV2(path) if os.path.exists(f"{path}/memory.current") else CgroupV1(path)
            for path in paths
        }
        self._outer = [(level.path, level.limit) for level in wanted]
        self._outer_swap = [(level.path, level.limit) for level in over_us.swap_levels]
        self._stalls: deque[tuple[float, int]] = deque()
        self.psi = (0, 0)

    @property
    def inside_a_limit(self) -> bool:
        """Whether a container's or another cgroup's limit, not the machine, is what runs out first."""
        return bool(self._outer)

    @property
    def ram(self) -> int:
        return min([self.mem_total, *(limit for _, limit in self._outer)])

    def room(self) -> tuple[int, int]:
        """(available, free disk swap)"""
        available, swap_free = self._memory.available_and_swap_free()
        if self._has_zram and swap_free:
            swap_free = swap.disk(swap.read(self._proc, self._sys))[1]
        inside = {path: view.memory() for path, view in self._views.items()}
        for path, limit in self._outer:
            held = inside[path]
            if held is not None:
                available = min(available, max(0, limit - held.charged))
        for path, limit in self._outer_swap:
            held = inside[path]
            if held is not None or limit == 0:
                swap_free = min(swap_free, max(0, limit - (held.swap if held else 0)))
        return available, swap_free

    def stall(self, t: float) -> float:
        """Share of the last two seconds in which everybody stalled."""
        self.psi = self._pressure.totals()
        stalls = self._stalls
        stalls.append((t, self.psi[1]))
        while t - stalls[0][0] > _STALL_WINDOW:
            stalls.popleft()
        elapsed = t - stalls[0][0]
        return (self.psi[1] - stalls[0][1]) / 1e6 / elapsed if elapsed > 0.2 else 0.0


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
    """One thread. Everything it needs at the bad moment is opened at the start.

    A step reads, decides and acts. What comes after that (the recording, the other runs, the forecast, unmanaged jobs,
    pauses by hand) is each on its own: one that fails is told once and stops neither the others nor the next step.
    """

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
        tell: Callable[[str], None],
    ) -> None:
        """``say`` tells the user of an action, ``tell`` of trouble."""
        self.settings = settings
        self.moment = Moment()
        self._pause = pause
        self._idleness = Idleness()
        self._job, self._actions, self._writer, self._live = job, actions, writer, live
        self._say = say
        self._try = BestEffort(tell)
        self._host = host
        self._state = State()
        self.growth = JobGrowth(settings)
        self.on_growth: Callable[[], None] | None = None  # with each row while growth is foreseen
        self._room = trend.Growth()
        self._strangers = Strangers()
        self._next_row = self._next_hands = self._next_scan = 0.0
        self._calm_since: float | None = None
        self._waiting, self._other_paused_at = 0, float("-inf")  # others that their guards have paused
        self._unasked_since: float | None = None
        self._acting = threading.RLock()  # the terminal's thread may let the job go on (let_go)
        self._stopping = threading.Event()
        self._wake_read, self._wake_write = _pipe()
        self._trigger = open_pressure_trigger()
        self._poller = select.poll()
        if self._wake_read is not None:
            self._poller.register(self._wake_read, select.POLLIN)
        if self._trigger is not None:
            self._poller.register(self._trigger, select.POLLPRI)
        self._thread = threading.Thread(target=self._loop, name="guard", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._wake_write is not None:
            os.write(self._wake_write, b".")
        if self._thread.is_alive():
            self._thread.join(2.0)

    def _loop(self) -> None:
        while not self._stopping.is_set():
            facts = self._try("a step of the guard", lambda: self.step(boottime()), None)
            if not self._try("sleeping", lambda: self._sleep(facts), False):  # noqa: B023 - called at once
                self._stopping.wait(policy.POLL_MIN_CALM)

    def _sleep(self, facts: Facts | None) -> bool:
        if self._wake_read is None:  # no descriptor was left for it: the loop waits without
            return False
        seconds = policy.POLL_MIN_CALM
        if facts is not None:
            seconds = policy.poll_seconds(self.settings, facts)
            seconds = min(seconds, max(policy.POLL_MIN, self._next_row - boottime()))
        for fd, event in self._poller.poll(seconds * 1000):
            if fd != self._wake_read and event & (select.POLLERR | select.POLLHUP):
                self._poller.unregister(fd)  # PSI was switched off under us
        return True

    def step(self, t: float) -> Facts | None:
        """One look and, when needed, one action. None once the job is gone."""
        facts = self._look(t)
        if facts is not None:
            with self._acting:
                facts = self._decide_and_act(facts)
        self._afterwards(t, facts)
        return facts

    def _decide_and_act(self, facts: Facts) -> Facts:
        self._notice_the_end_of_a_shortage(facts)
        self._keep_the_pause(facts)
        action = policy.decide(self.settings, facts, self._state)
        if action.kind != "none":
            if action.kind not in ("warn", "thaw"):
                self._try("counting shared pages", lambda: self._job.settle(_SETTLE_SECONDS), None)
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

    # --- read -----------------------------------------------------------------------------------------------------

    def _look(self, t: float) -> Facts | None:
        room = self._try("reading the machine's memory", self._host.room, None, _ONLY_THE_LIMIT)
        stall = self._try("reading memory pressure", lambda: self._host.stall(t), 0.0)
        available, swap_free = room if room is not None else (self._host.ram, 0)
        moment = self.moment
        moment.t, moment.available, moment.swap_free = t, available, swap_free
        memory = self._read_job(available)
        if memory is None:
            return None
        use = memory.use
        limit = self.settings.limit
        limit_headroom = None if limit is None else limit - max(memory.charged + memory.swap, 0)
        self.growth.use.add(t, use - self._job.corrected)
        if room is not None:
            self._room.add(t, available + swap_free)
        moment.memory, moment.limit_headroom = memory, limit_headroom
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
            drain=-self._room.rate(_DRAIN_SECONDS) if near else 0.0,
            limit_headroom=limit_headroom,
            **self.growth.near_limit(t, limit_headroom),
            time_to_full=moment.time_to_full,
            frozen=self._pause.by,
            swap=memory.swap,
            can_push=swap_free > self.settings.floor // 8 and self._pause.can_push,
        )
        return self._among_the_others(facts) if near or facts.frozen else facts

    def _read_job(self, available: int) -> JobMemory | None:
        """None once it is gone. One that lives and cannot be read holds what it held."""
        memory = self._try(
            "reading the job's memory",
            lambda: self._job.memory(available, self._headroom()),
            None,
            _AS_BEFORE,
        )
        if memory is not None or self._job.is_gone():
            return memory
        self._try.failed("reading the job's memory", OSError("nothing of it can be read"), _AS_BEFORE)
        return self.moment.memory or JobMemory(0, 0, 0, 0, 0, 0)

    def _headroom(self) -> int:
        """Up to the nearest line, as of the last look."""
        moment = self.moment
        room = moment.available + moment.swap_free - self.settings.floor
        return max(0, room if moment.limit_headroom is None else min(room, moment.limit_headroom))

    def _among_the_others(self, facts: Facts) -> Facts:
        """Whose turn it is. Only when it matters: it reads a file per live run."""
        alone = replace(facts, freeze_turn=True)  # no runtime folder: this run acts for itself alone
        live = self._live
        if live is None:
            return alone
        return self._try(_OTHERS, lambda: self._with_others(facts, live), alone, _ALONE)

    def _with_others(self, facts: Facts, live: LiveRun) -> Facts:
        me = live.me(facts.use, facts.t, facts.rate)
        others = live.others(facts.t)
        turns = ledger.turns(me, others, self.settings.floor // 8, max(0.0, facts.shrink), facts.can_push)
        if turns.waiting > self._waiting:
            self._other_paused_at = facts.t
        self._waiting = turns.waiting
        return replace(
            facts,
            # what a run took before it was paused is no growth to come
            drain=facts.drain if facts.t - self._other_paused_at > _DRAIN_SECONDS else 0.0,
            my_turn=turns.to_end,
            freeze_turn=turns.to_freeze,
            thaw_turn=turns.to_thaw,
            running=turns.running,
            waiting=turns.waiting,
            others_idle=self._idleness.look(facts.t, others) if facts.frozen else False,
        )

    # --- act ------------------------------------------------------------------------------------------------------

    def _act(self, action: Action, facts: Facts) -> None:
        if not self._may_act(action, facts):
            return  # another run's guard acted a moment ago: see first what that brings
        why = action.why
        if action.scope == "machine" and "not this job's" in why and self._strangers.named:
            why = f"{why}: {self._strangers.named}"
        if action.kind == "thaw":
            self._notice_hands(facts.t)
            if self._pause.by == "hand":
                return  # the user has taken the pause over since the last row
        if not self.settings.watch_only or action.kind == "warn":
            self._actions.take(action.kind, why, asdict(facts))
        if action.kind == "freeze":
            self._begin_pause(why, facts)
        elif self._state.frozen_at is not None or facts.frozen:
            self._end_pause(action, facts)
        if action.kind not in ("freeze", "thaw"):
            self._state = policy.taken(self._state, action.kind, facts.t, action.scope)
        self._event(facts.t, action.kind, why, scope=action.scope)
        self._try("telling the user", lambda: self._say(action.kind, why), None)

    def _may_act(self, action: Action, facts: Facts) -> bool:
        live = self._live
        machine_wide = action.scope == "machine" and action.kind in ("freeze", "thaw", "term", "kill")
        if not machine_wide or live is None:
            return True
        thaw = action.kind == "thaw"
        pause = pausing.THAW_PAUSE if thaw else ledger.ACTION_PAUSE
        return self._try(_OTHERS, lambda: live.take_latch(facts.t, pause, thaw), True, _ALONE)

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
        self._notice_hands(facts.t)  # a pause by hand that came in this very moment counts
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
        with self._acting:
            self._pause.look()  # it may have been frozen by hand a moment ago
            if self._pause.by:
                self._actions.take("thaw", why)
                self._pause.end()
                self.moment.paused_since = None
                self._event(boottime(), "thaw", why)

    # --- afterwards: each on its own ------------------------------------------------------------------------------

    def _afterwards(self, t: float, facts: Facts | None) -> None:
        """The rows and all that comes with one. When the next is due is settled first, whatever fails then."""
        if t < self._next_row:
            return
        first = self._next_row == 0.0
        memory = self.moment.memory
        if facts is None or memory is None:
            if first:  # gone before the first look: what the machine held is still evidence
                self._next_row = t
                self._try(_RECORDING, lambda: self._record_host(t), None, _NO_ROWS)
            return
        moment = self.moment
        moment.sample_seconds = max(_SAMPLE_MIN, min(_SAMPLE_MAX, _SAMPLE_MAX * self._thinness()))
        self._next_row = t + moment.sample_seconds
        if moment.sample_seconds < _SAMPLE_MAX / 2:
            moment.hurry.set()
        self._try(_RECORDING, lambda: self._record(t, memory), None, _NO_ROWS)
        if self._pause.by or t >= self._next_hands:  # a pause by hand may be noticed a little later
            self._next_hands = t + _HANDS_ROWS * moment.sample_seconds
            with self._acting:
                self._notice_hands(t)
        self._tell_the_others(memory.use, t)
        self._try("the forecast", lambda: self._forecast(t, memory.use), None, "no time to full is told")
        if moment.available + moment.swap_free <= self.settings.margin and t >= self._next_scan:
            self._next_scan = t + max(_SCAN_LEAST, _SCAN_ROWS * moment.sample_seconds)
            self._try(
                "looking for who else grows",
                lambda: self._strangers.look({self._job.leader, *self._job.known_pids(), os.getpid()}),
                None,
                "who else fills the machine is not named",
            )

    def _record(self, t: float, memory: JobMemory) -> None:
        moment = self.moment
        self._record_host(t)
        self._writer.put(
            "job",
            (t, memory.anon, memory.shmem, memory.file, memory.swap, memory.kernel, moment.limit_headroom,
             moment.processes, *(moment.shm or (None, None))),
        )  # fmt: skip

    def _record_host(self, t: float) -> None:
        host, moment = self._host, self.moment
        row = (t, host.mem_total, moment.available, None, host.swap_total, moment.swap_free, *host.psi)
        self._writer.put("host", row)

    def _event(self, t: float, kind: str, text: str, **data: object) -> None:
        self._try(_RECORDING, lambda: self._writer.event(t, kind, text, **data), None, _NO_ROWS)

    def _notice_hands(self, t: float) -> None:
        """`oomproof freeze` and `thaw` came from outside."""
        self._try("looking for a pause by hand", lambda: self._look_for_hands(t), None)

    def _look_for_hands(self, t: float) -> None:
        before = self._pause.by
        self._pause.look()
        if self._pause.by == before:
            return
        freezer = self._job.freezer
        if not self._pause.by:
            # Whoever let it go on did so before; but if our own pause came in between, nobody would end that one.
            freezer.thaw()
            self._pause.look()
        if self._pause.by == "hand" and not self._pause.moving and not freezer.is_frozen():
            freezer.freeze()  # a thaw of ours crossed it
        self.moment.paused_since = t if self._pause.by else None
        self._event(t, "freeze" if self._pause.by else "thaw", "by hand")

    def _tell_the_others(self, use: int, t: float) -> None:
        live = self._live
        if live is not None:
            frozen = {"guard": ledger.BY_GUARD, "hand": ledger.BY_HAND}.get(self._pause.by, ledger.RUNS)
            self._try(_OTHERS, lambda: live.update(use, t, self.growth.use.rate(0.3), frozen), None, _ALONE)

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

    def _forecast(self, t: float, use: int) -> None:
        self.moment.time_to_full = None  # an old answer is none, should the new one fail
        self.growth.row(t, use, self._headroom())
        self.moment.time_to_full = self.growth.time_to_full
        if self.moment.time_to_full is not None and self.on_growth is not None:
            self.on_growth()

    def close(self) -> None:
        for fd in (self._wake_read, self._wake_write, self._trigger):
            if fd is not None:
                os.close(fd)


def _pipe() -> tuple[int | None, int | None]:
    try:
        return os.pipe()
    except OSError:  # no descriptors left: the end is then noticed a poll later
        return None, None
