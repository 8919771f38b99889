"""What comes after each look, once the guard has acted: rows, pauses by hand, the other runs, the forecast, unmanaged jobs.

Each is on its own: one that fails is told once and stops neither the others nor the next look.
"""

from __future__ import annotations

import os
import threading

from oomproof.guard import poll_interval
from oomproof.guard.guarded_job import NO_ROWS, RECORDING, GuardedJob, Look
from oomproof.guard.host_view import HostView
from oomproof.guard.unmanaged_growth import UnmanagedGrowth
from oomproof.guard.unmanaged_guard import LOOK_SECONDS, is_filling
from oomproof.guard.view import View
from oomproof.machine.cgroups import JobMemory, charge_doubt
from oomproof.records import replace
from oomproof.units import MIB

_MANUAL_CHECK_SECONDS = 3.0  # between looks for a pause by hand; sooner where rows come faster
_SCAN_ROWS = 5  # rows between looks for who else grows
_NOISE = MIB  # or 0.4 %: a look that is higher than the row beside it by less needs no row of its own
_HOLDERS_EVERY = 1.0  # seconds between looks for who may end, while the job itself fills the machine
_SCAN_LEAST = 1.0  # seconds; it reads every process of the machine
# Seconds; 300 processes take 5 ms of a thread: a hundredth of a percent of a core, so rarer where nobody can have grown.
_SCAN_FIRST, _SCAN_CALM, _SCAN_IDLE = 2.0, 60.0, 600.0
# Bytes more, or a quarter, since its processes were counted: they may be more by now (a pool forks in milliseconds)
_GROWN = 16 * MIB
_SCAN_CHANGE = 64 * MIB  # of the machine's headroom; a smaller job has no row


class BackgroundTasks:
    def __init__(
        self, guarded: GuardedJob, host: HostView, unmanaged: UnmanagedGrowth, acting: threading.RLock
    ) -> None:
        self._guarded, self._host, self._unmanaged, self._acting = guarded, host, unmanaged, acting
        self._try = guarded.best_effort
        self.next_row = self._next_manual_check = self._next_scan = 0.0
        self._row = Look(0.0, JobMemory(0, 0, 0, 0, 0, 0), 0, 0, None)  # the last one written
        self._most = 0  # that any row of the job holds
        self._charged: int | None = None  # the cgroup's own peak at the last row
        self._next_calm_scan: float | None = None
        self._next_idle_scan = 0.0
        self._most_headroom = 0  # of the machine since the last look at who else grows
        self._next_search = 0.0

    def run(self, t: float, view: View | None) -> None:
        """When a row is due. When the next is due is settled first, whatever fails then. No view: the job is gone."""
        if view is not None and self._search_is_due(t, view):
            self._try_to_scan(t, may_pause=True)
        if t < self.next_row and not self._is_calm_over():
            return
        guarded, moment = self._guarded, self._guarded.moment
        memory = moment.memory
        if view is None or memory is None:
            if self.next_row == 0.0:  # gone before the first look: what the machine held is still evidence
                self.next_row = t
                self._try(
                    RECORDING, lambda: self._record_host(t, moment.available, moment.swap_free), None, NO_ROWS
                )
            return
        was_calm = moment.is_calm
        moment.sample_seconds, guarded.writer.calm = self._sampling()
        self.next_row = t + moment.sample_seconds
        if moment.sample_seconds < poll_interval.SAMPLE_MAX / 2 or (was_calm and not moment.is_calm):
            moment.hurry.set()
        self._try(RECORDING, lambda: self._record(t, memory), None, NO_ROWS)
        if was_calm and not moment.is_calm and guarded.on_change is not None:
            guarded.on_change()
        if guarded.pause.by or t >= self._next_manual_check:  # a pause by hand may be noticed a little later
            self._next_manual_check = t + min(_MANUAL_CHECK_SECONDS, 3 * moment.sample_seconds)
            with self._acting:
                guarded.notice_hands(t)
        guarded.tell_the_others(memory.use, t)
        self._try("the forecast", lambda: self._forecast(t, memory.use), None, "no time to full is given")
        if self._scan_is_due(t):
            self._try_to_scan(t, may_pause=self._is_short() or is_filling(guarded.settings, view))
        self._try(RECORDING, guarded.writer.commit_if_due, None, NO_ROWS)

    def _sampling(self) -> tuple[float, bool]:
        guarded, moment = self._guarded, self._guarded.moment
        growth = guarded.growth.use
        return poll_interval.sampling(
            guarded.settings,
            moment.available + moment.swap_free,
            moment.limit_headroom,
            growth.rate(2.0),
            growth.is_still(),
            guarded.is_calm,
        )

    def _is_calm_over(self) -> bool:
        """Then its row is due at once: rows of a calm job are far apart."""
        return self._guarded.moment.is_calm and self._sampling()[0] < poll_interval.SAMPLE_CALM

    def _try_to_scan(self, t: float, may_pause: bool) -> None:
        memory = self._guarded.moment.memory
        if memory is not None:
            self._try(
                "looking for who else grows",
                lambda: self._look_at_others(t, memory, may_pause),
                None,
                "who else fills the machine is not named",
            )

    def _search_is_due(self, t: float, view: View) -> bool:
        settings, mine = self._guarded.settings, self._guarded.growth.use.rate(0.3)
        if t < self._next_search or not settings.pause_unmanaged or not is_filling(settings, view):
            return False
        # where it is the job itself, only to know for whose end it could wait
        self._next_search = t + (LOOK_SECONDS if view.shrink > 2 * mine else _HOLDERS_EVERY)
        return True

    def _scan_is_due(self, t: float) -> bool:
        """Each second where the machine is short, else so seldom that it costs nothing."""
        moment = self._guarded.moment
        headroom = moment.available + moment.swap_free
        self._most_headroom = max(self._most_headroom, headroom)
        if self._next_calm_scan is None:  # a job that ends at once is not worth one
            self._next_calm_scan = self._next_idle_scan = t + _SCAN_FIRST
        has_shrunk = self._most_headroom - headroom >= _SCAN_CHANGE
        calm = self._next_calm_scan if has_shrunk else self._next_idle_scan
        if t < (self._next_scan if self._is_short() else calm):
            return False
        self._next_scan = t + max(_SCAN_LEAST, _SCAN_ROWS * moment.sample_seconds)
        self._next_calm_scan, self._next_idle_scan = t + _SCAN_CALM, t + _SCAN_IDLE
        self._most_headroom = headroom
        return True

    def _is_short(self) -> bool:
        moment = self._guarded.moment
        return moment.available + moment.swap_free <= self._guarded.settings.margin

    def _look_at_others(self, t: float, memory: JobMemory, may_pause: bool) -> None:
        job = self._guarded.job
        ours = {job.leader, *job.known_pids(), os.getpid()}
        self._unmanaged.look(t, ours, memory, self._guarded.writer.put, may_pause)

    def _record(self, t: float, memory: JobMemory) -> None:
        """A row for the reading of now, and before it one for what was higher since the last: no peak is lost between two."""
        moment = self._guarded.moment
        now = Look(t, memory, moment.available, moment.swap_free, moment.limit_headroom)
        highest, moment.highest = moment.highest, None
        if highest is not None and highest.t < t and self._is_higher(highest, memory.use):
            self._record_look(highest, "guard")
        if (burst := self._burst(now)) is not None:
            self._record_look(burst, "cgroup")
        self._put(now)

    def record_last(self) -> None:
        """When the guard leaves: what it saw after the last row, of a job that has ended meanwhile."""
        highest, self._guarded.moment.highest = self._guarded.moment.highest, None
        if highest is not None and highest.t > self._row.t and self._is_higher(highest, self._row.memory.use):
            self._try(RECORDING, lambda: self._record_look(highest, "guard"), None, NO_ROWS)

    def _is_higher(self, look: Look, row: int) -> bool:
        """Worth a row: more than any before, or by more than noise than the one beside it."""
        return look.memory.use > max(row, min(self._most, row + max(_NOISE, row // 256)))

    def _burst(self, now: Look) -> Look | None:
        """What came and went between two looks: the cgroup's own peak less page cache. Cache that went too, as that of a file
        which a newer one replaced, stands in that peak and in no row: a process must have been as large."""
        before, charged = self._charged, self._guarded.job.most_charged()
        self._charged = charged
        if charged is None or before is None or charged <= before:
            return None
        memory, last = now.memory, self._row.memory
        cache, known = max(memory.file, last.file), max(memory.use, last.use, self._most)
        enough = known + charge_doubt(charged, cache)
        use = charged - cache - max(memory.kernel, last.kernel) + memory.swap
        if use > enough:
            use = min(use, memory.use + self._guarded.job.shrunk())
        if use <= enough:
            return None
        headroom = now.limit_headroom
        return Look(
            (self._row.t + now.t) / 2,
            replace(memory, anon=use - memory.shmem - memory.swap),
            now.available,
            now.swap_free,
            None if headroom is None else max(0, headroom - (use - memory.use)),
        )

    def _record_look(self, look: Look, source: str) -> None:
        self._guarded.writer.put("look", (look.t, source))
        self._put(look)

    def _put(self, look: Look) -> None:
        moment, memory = self._guarded.moment, look.memory
        self._row, self._most = look, max(self._most, memory.use)
        self._record_host(look.t, look.available, look.swap_free)
        grown = memory.use - moment.counted_use
        processes = moment.processes if grown < max(_GROWN, moment.counted_use // 4) else None
        self._guarded.writer.put(
            "job",
            (look.t, memory.anon, memory.shmem, memory.file, memory.swap, memory.kernel, look.limit_headroom,
             processes, *(moment.shm or (None, None))),
        )  # fmt: skip

    def _record_host(self, t: float, available: int, swap_free: int) -> None:
        host = self._host
        row = (t, host.ram, available, None, host.swap_total, swap_free, *host.psi)
        self._guarded.writer.put("host", row)

    def _forecast(self, t: float, use: int) -> None:
        guarded = self._guarded
        guarded.moment.time_to_full = None  # an old answer is none, should the new one fail
        guarded.growth.row(t, use, guarded.headroom())
        guarded.moment.time_to_full = guarded.growth.time_to_full
        if guarded.moment.time_to_full is not None and guarded.on_growth is not None:
            guarded.on_growth()
