"""The guard's loop: read, decide, act; then the background tasks; then sleep as long as it is safe to."""

from __future__ import annotations

import ctypes
import math
import os
import select
import threading
import time
from collections.abc import Collection, Sequence

from oomproof.guard import detect_resume, guard_policy, poll_interval
from oomproof.guard.action_text import pause_terms
from oomproof.guard.actuator import Actuator
from oomproof.guard.background_tasks import BackgroundTasks
from oomproof.guard.best_effort import BestEffort
from oomproof.guard.guarded_job import ALONE, OTHERS, GuardedJob
from oomproof.guard.host_view import HostView, open_pressure_trigger
from oomproof.guard.unmanaged_guard import UnmanagedGuard
from oomproof.guard.view import Action, Figures, JobState, View
from oomproof.guard.view_reader import LEFT_ALONE, UNMANAGED, ViewReader
from oomproof.leaf.action_kinds import RESUME, WARN, WITHDRAW, ActionReason
from oomproof.ledger.live_runs import ACTION_PAUSE
from oomproof.machine.cgroups import ChargeAlarm
from oomproof.machine.clock import boottime
from oomproof.records import replace

_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_M_ARENA_MAX = -8
# A walk over the page tables of forked workers, before the job is ended or stopped: 9 of 200 MiB take 3 ms.
_SETTLE_SECONDS = 0.05
_GLANCE_TOLD = 1.5  # seconds since the others were told: a write may wait for a disk
# A job between two looks, and what it was charged with at the first.
Glanced = tuple[GuardedJob, int, poll_interval.Glances]


def prepare_threads() -> None:
    """Before the first one: they are shallow, and share one heap. glibc gives each its own, which took 0.6 of 20 MiB."""
    threading.stack_size(256 * 1024)
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    except (OSError, AttributeError):  # another C library
        pass


def lock_memory() -> bool:
    """So that the guard is not swapped out just when it is needed. Ordinary users often may not (8 MiB limit)."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) == 0)
    except (OSError, AttributeError):
        return False


class Guard:
    """One thread. Everything it needs at the bad moment is opened at the start."""

    def __init__(
        self, host: HostView, jobs: Sequence[GuardedJob], best_effort: BestEffort, by: str = "oomproof"
    ) -> None:
        """``by`` names this guard to others."""
        self._jobs = {job.name: job for job in jobs}
        self._settings = {job.name: job.settings for job in jobs}
        self._state: dict[str, JobState] = {}
        self._try = best_effort
        self._unmanaged = UnmanagedGuard(
            jobs[0].settings, by, self._leaders, jobs[0].on_unmanaged, host.limit_folder, beside_runs=True
        )
        self._reader = ViewReader(host, jobs, self._try, self._unmanaged)
        growth = self._unmanaged.growth
        self._actuators = {job.name: Actuator(job, growth) for job in jobs}
        self._acting = threading.RLock()  # the terminal's thread may resume a job (let_go)
        self._background = [BackgroundTasks(job, host, growth, self._acting) for job in jobs]
        self._stopping = threading.Event()
        self._wake_read, self._wake_write = _pipe()
        self._trigger = open_pressure_trigger()
        self._poller = select.poll()
        self._alarms: dict[int, ChargeAlarm] = {}  # by their descriptors
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
        self._try("resuming unmanaged jobs", self._unmanaged.close, None)
        for tasks in self._background:
            tasks.record_last()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            view = self._try("a step of the guard", lambda: self.step(boottime()), None)
            if not self._try("sleeping", lambda: self._sleep(view), False):  # noqa: B023 - called at once
                self._stopping.wait(poll_interval.POLL_MIN)

    def step(self, t: float) -> View | None:
        """One look and, when needed, actions. None once the jobs are gone."""
        with self._acting:
            view = self._reader.read(t)
            if view.jobs:
                view = self._decide_and_act(view)
        there = {job.name for job in view.jobs}
        for name, tasks in zip(self._jobs, self._background, strict=True):
            tasks.run(t, view if name in there else None)
        return view if view.jobs else None

    def _decide_and_act(self, view: View) -> View:
        if view.unmanaged:
            self._try(
                UNMANAGED, lambda: self._unmanaged.decide_and_act(view, self._may_act), None, LEFT_ALONE
            )
        pauses = self._unmanaged.state
        actions, self._state = guard_policy.decide(self._settings, view, self._state, pauses)
        for name, state in self._state.items():
            self._jobs[name].is_asked = state.done.asked_at is not None
        later = [action for action in actions if action.kind != WITHDRAW]
        self._carry_out([action for action in actions if action.kind == WITHDRAW])
        if not later:
            return view
        for name in {action.job for action in later if action.kind not in (WARN, RESUME)}:
            settle = self._jobs[name].job.settle
            self._try("counting shared pages", lambda settle=settle: settle(_SETTLE_SECONDS), None)  # type: ignore[misc]
        # Choosing took time; what was true then may not be true now (earlyoom re-reads for the same reason).
        again = self._reader.read(boottime())
        if again.jobs:
            view = again
        self._carry_out(guard_policy.choose(self._settings, view, self._state, pauses))
        return view

    def _may_act(self, resume: bool) -> bool:
        """On an unmanaged job: one guard at a time."""
        live = next((job.live for job in self._jobs.values() if job.live is not None), None)
        if live is None:
            return True
        pause = detect_resume.RESUME_INTERVAL if resume else ACTION_PAUSE
        return self._try(OTHERS, lambda: live.take_latch(boottime(), pause, resume), True, ALONE)

    def _leaders(self) -> set[int]:
        """The first processes of all runs: never paused as unmanaged, nor what they started."""
        pids = {job.job.leader for job in self._jobs.values()}
        for job in self._jobs.values():
            if job.live is not None:
                pids.update(run.pid for run in job.live.others(boottime()))
        return pids - {0}

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            actuator, state = self._actuators[action.job], self._state[action.job]
            if action.facts is not None and actuator.act(action, action.facts):
                self._state[action.job] = guard_policy.carried_out(self._settings[action.job], action, state)
                actuator.afterwards(action, action.facts, state.done.paused_at is not None)

    def seconds_to_next_look(self, view: View | None, now: float, glanced_at: Collection[str] = ()) -> float:
        """The soonest that any job or any row calls for."""
        if view is None:
            return poll_interval.POLL_MIN_CALM
        settings = self._settings
        seconds = min(
            poll_interval.poll_seconds(settings[job.name], view, job, job.still, job.name in glanced_at)
            for job in view.jobs
        )
        rows = min(tasks.next_row for tasks in self._background)
        return min(seconds, max(poll_interval.POLL_MIN, rows - now))

    def _sleep(self, view: View | None) -> bool:
        watch = self._glances(view)
        seconds = self.seconds_to_next_look(view, boottime(), [job.name for job, _, _ in watch])
        if view is None or not watch:
            self._doze(seconds)
            return True
        end = time.monotonic() + seconds
        least = view.available + view.swap_free - min(glances.shrink for _, _, glances in watch)
        machine_every = min(glances.machine_every for _, _, glances in watch)
        every = min(glances.every for _, _, glances in watch)
        every = seconds / math.ceil(seconds / every)  # the last part ends with the look
        machine_by = time.monotonic() + machine_every
        while True:
            left = end - time.monotonic()
            if self._doze(max(0.0, min(left, every))) or left < 1.5 * every:
                return True
            if any(not _is_same(job.job.charge(), charge, glances.change) for job, charge, glances in watch):
                return True
            now = time.monotonic()
            if now + every > machine_by:
                machine_by = now + machine_every
                if self._machine_changed(least, watch):
                    return True

    def _machine_changed(self, least: int, watch: Sequence[Glanced]) -> bool:
        """Whether it has less than ``least`` now, or the user has paused a job."""
        t = boottime()
        try:
            available, swap_free = self._reader.glance(t)
        except OSError:
            return True  # the look says what is wrong
        if available + swap_free < least:
            return True
        with self._acting:
            for job, _, _ in watch:
                if t - job.moment.t >= _GLANCE_TOLD:
                    job.glance(t, available, swap_free)
        return any(job.pause.by for job, _, _ in watch)

    def _glances(self, view: View | None) -> list[Glanced]:
        """The jobs that are only glanced at until the next look: the count to compare with, and how often."""
        watch: list[Glanced] = []
        if view is None:
            return []
        for seen in view.jobs:
            glances = poll_interval.glances(self._settings[seen.name], view, seen)
            job = self._jobs[seen.name]
            charge = job.job.charge() if glances is not None else None
            if glances is not None and charge is not None:
                if glances.every < glances.machine_every and self._has_alarm(job, charge, glances.change):
                    glances = replace(glances, every=glances.machine_every)
                watch.append((job, charge, glances))
        return watch

    def _has_alarm(self, job: GuardedJob, charge: int, change: int) -> bool:
        """Whether the kernel wakes us as soon as the job is charged with more: then only the machine is glanced at."""
        alarm = job.job.alarm
        if alarm is None or self._wake_read is None:
            return False
        if alarm.stands(charge + change, change // 4):
            return True
        self._clear(alarm)
        if alarm.set(charge + change) and alarm.fd is not None:
            self._poller.register(alarm.fd, select.POLLIN)
            self._alarms[alarm.fd] = alarm
        # what it grew by before the alarm was set wakes nobody
        return alarm.fd is not None and _is_same(job.job.charge(), charge, change)

    def _clear(self, alarm: ChargeAlarm) -> None:
        if alarm.fd is not None:
            self._poller.unregister(alarm.fd)
            del self._alarms[alarm.fd]
        alarm.clear()

    def _doze(self, seconds: float) -> bool:
        """Whether something woke us before its time."""
        if self._wake_read is None:  # no descriptor was left for it
            return self._stopping.wait(seconds)
        woken = self._poller.poll(seconds * 1000)
        for fd, event in woken:
            if fd in self._alarms:
                self._clear(self._alarms[fd])  # the look that comes now may set it anew
                continue
            if fd != self._wake_read and event & (select.POLLERR | select.POLLHUP):
                self._poller.unregister(fd)  # PSI was switched off under us
        return bool(woken)

    def pause_terms(self, job: GuardedJob) -> str:
        """For the user: what the pause brings, and when it ends. Right after a pause."""
        return pause_terms(
            self._state[job.name].done.resume_headroom,
            time.time() + job.settings.pause_max,
            bool(job.pause.can_push and job.moment.swap_free),
        )

    def let_go(self, job: GuardedJob, reason: ActionReason, figures: Figures) -> None:
        """From the terminal's thread."""
        with self._acting:
            self._actuators[job.name].let_go(reason, figures)

    def close(self) -> None:
        for fd in (self._wake_read, self._wake_write, self._trigger):
            if fd is not None:
                os.close(fd)


def _is_same(charge: int | None, before: int, change: int) -> bool:
    return charge is not None and abs(charge - before) <= change


def _pipe() -> tuple[int | None, int | None]:
    try:
        return os.pipe()
    except OSError:  # no descriptors left: the end is then noticed a poll later
        return None, None
