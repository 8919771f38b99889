"""The guard of the whole machine: it looks at jobs that nobody started with oomproof, and pauses the one that fills it."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oomproof.guard import poll_interval
from oomproof.guard.best_effort import BestEffort
from oomproof.guard.card_watch import CardGrowth, CardHolder, CardWatch, warning
from oomproof.guard.detect_pause import PAUSE_STALLED
from oomproof.guard.host_view import HostView, open_pressure_trigger
from oomproof.guard.unmanaged_guard import LOOK_SECONDS, Choice, Tell, UnmanagedGuard, is_filling
from oomproof.guard.view import JobKey, Settings, View, is_near
from oomproof.guard.view_reader import LEFT_ALONE, UNMANAGED, ViewReader
from oomproof.leaf.action_kinds import WARN
from oomproof.ledger import live_runs
from oomproof.ledger.live_runs import Live
from oomproof.machine.cgroups import JobMemory
from oomproof.machine.clock import boottime
from oomproof.machine.kill_counters import machine_kills
from oomproof.units import format_size

if TYPE_CHECKING:
    from oomproof.machine.gpu import Gpu

CARDS_EVERY = 2.0  # seconds
_COUNT_EVERY = 10.0
_WARN_EVERY = 600.0
_WARN_OF_ANOTHER = 20.0  # seconds after which a second job that fills it is named too
_NOTHING = JobMemory(0, 0, 0, 0, 0, 0)


class MachineGuard:
    def __init__(
        self,
        host: HostView,
        settings: Settings,
        choice: Choice,
        tell: Tell,
        best_effort: BestEffort,
        folder: Callable[[], Path],
        on_kills: Callable[[], None] = lambda: None,
        cards: Callable[[], Sequence[Gpu]] | None = None,
    ) -> None:
        """``folder``: where it writes down whom it has paused. ``on_kills``: the kernel killed somebody for want of memory.
        ``cards``: the last reading of them, at once."""
        self._cards, self._card_watch, self._next_cards = cards, CardWatch(), 0.0
        self._on_kills, self._kills, self._next_count = on_kills, machine_kills(), 0.0
        self._settings, self._try = settings, best_effort
        self._choice = choice
        self._unmanaged = UnmanagedGuard(
            settings, "oomproof guard", self._leaders, tell, host.limit_folder, choice, folder
        )
        self._runs: Callable[[float], list[Live]] = live_runs.everybody
        if choice.every_user:
            from oomproof.ledger.all_users_runs import AllUsersRuns

            self._runs = AllUsersRuns()
        self._reader = ViewReader(host, (), best_effort, self._unmanaged, [settings], self._runs)
        self._next_look = 0.0
        self._warned: dict[JobKey | None, float] = {}  # when, of whom

    def step(self, t: float) -> float:
        """One look and, when needed, an action. Seconds to the next."""
        view = self._reader.read(t)
        short = is_near(self._settings, view.available, view.swap_free)
        if view.unmanaged:
            self._try(
                UNMANAGED, lambda: self._unmanaged.decide_and_act(view, lambda resume: True), None, LEFT_ALONE
            )
        fills = is_filling(self._settings, view) or (short and view.stall > PAUSE_STALLED)
        if fills and t >= self._next_look:
            self._next_look = t + LOOK_SECONDS
            self._try("looking at all processes", lambda: self._look(t), None)
        if short:
            self._warn(t, view)
        if self._cards is not None and t >= self._next_cards:
            self._next_cards = t + CARDS_EVERY
            self._try("looking at the cards", lambda: self._look_at_cards(t), None)
        if t >= self._next_count:
            self._next_count = t + _COUNT_EVERY
            self._try("counting kills", self._count_kills, None)
        return self._seconds(view, fills)

    def _look(self, t: float) -> None:
        self._unmanaged.growth.look(t, {os.getpid()}, _NOTHING, lambda table, row: None)

    def _look_at_cards(self, t: float) -> None:
        for growth in self._card_watch.look(t, self._cards() if self._cards is not None else ()):
            # from a thread: recordings are read for it
            threading.Thread(target=self._warn_of_card, args=(t, growth), name="card", daemon=True).start()

    def _warn_of_card(self, t: float, growth: CardGrowth) -> None:
        from oomproof.guard.card_runs import ask_for_idle, holders_of
        from oomproof.leaf.command_lines import short_name
        from oomproof.leaf.proc_files import command_line

        pids = {growth.pid: growth.held, **growth.holders}
        nobody: dict[int, CardHolder] = {}
        runs = self._try("naming the runs on a card", lambda: holders_of(pids, self._runs(t)), nobody)
        own = runs.get(growth.pid)
        others = {holder.run: holder for pid, holder in runs.items() if own is None or holder.run != own.run}
        name = short_name(command_line(growth.pid)) or "a process"
        asked: list[str] = []
        if not (self._choice.dry_run or self._settings.watch_only):
            asked = self._try(
                "asking for unused card memory", lambda: ask_for_idle(list(others.values())), asked
            )
        text = warning(growth, name, own.run if own is not None else "", list(others.values()), asked)
        self._unmanaged.tell_later("gpu-full", text, (0, 0))

    def _count_kills(self) -> None:
        before, self._kills = self._kills, machine_kills()
        if self._kills != before:
            self._on_kills()

    def _warn(self, t: float, view: View) -> None:
        """Once in ten minutes of each job, and only where somebody can be named or nothing is left to be done."""
        named, culprit = self._unmanaged.growth.named, self._unmanaged.growth.culprit
        if not named and view.available + view.swap_free > self._settings.floor:
            return
        who = culprit.key if named and culprit is not None else None
        self._warned = {key: at for key, at in self._warned.items() if t - at < _WARN_EVERY}
        if not may_warn(t, who, self._warned):
            return
        self._warned[who] = t
        available = format_size(view.available + view.swap_free)
        text = f"memory is getting short: {available} of RAM and disk swap left"
        self._unmanaged.tell_later(
            WARN, f"{text}; {named}; {self._what_follows()}" if named else text, (0, 0)
        )

    def _what_follows(self) -> str:
        """After a warning that names a job."""
        culprit = self._unmanaged.growth.culprit
        if culprit is None or culprit.tie or self._settings.watch_only:
            return "close something, or stop it; who holds what: oomproof top"
        will = "would" if self._choice.dry_run else "will"
        return f"it {will} be paused when {format_size(self._settings.floor)} are left"

    def _leaders(self) -> set[int]:
        return {run.pid for run in self._runs(boottime())} - {0}

    def _seconds(self, view: View, fills: bool) -> float:
        left = view.available + view.swap_free - self._settings.floor
        eager = fills and not is_settled(self._settings, view)
        least = poll_interval.POLL_MIN if eager else poll_interval.POLL_MIN_CALM
        return min(poll_interval.POLL_STILL, max(least, left / poll_interval.FASTEST_FILL))

    def close(self) -> None:
        self._unmanaged.close()


def is_settled(settings: Settings, view: View) -> bool:
    """Whether whoever filled the machine is paused, nobody else can be, and nothing fills it fast: then what comes next is known
    by the next look at all processes, and a hundred wake-ups a second until the pause is over would be for nothing."""
    paused = any(job.paused for job in view.unmanaged)
    # one that was let run again is in the view without its size, only to be waited for
    pausable = any(not job.paused and not job.tie and job.use for job in view.unmanaged)
    return paused and not pausable and view.shrink < settings.floor / 2


def may_warn(t: float, who: JobKey | None, warned: Mapping[JobKey | None, float]) -> bool:
    """``warned``: of whom in the last minutes, and when. Nobody (None) is worth a line only where none was written."""
    if not warned:
        return True
    return who is not None and who not in warned and t - max(warned.values()) >= _WARN_OF_ANOTHER


def run(guard: MachineGuard, stop: int, best_effort: BestEffort) -> None:
    """Until ``stop``, a descriptor, can be read."""
    poller = select.poll()
    poller.register(stop, select.POLLIN)
    trigger = open_pressure_trigger()
    if trigger is not None:
        poller.register(trigger, select.POLLPRI)
    try:
        while True:
            seconds = best_effort(
                "a step of the guard", lambda: guard.step(boottime()), poll_interval.POLL_MAX
            )
            for fd, event in poller.poll(seconds * 1000):
                if fd == stop:
                    return
                if event & (select.POLLERR | select.POLLHUP):
                    poller.unregister(fd)  # PSI was switched off under us
    finally:
        guard.close()
        if trigger is not None:
            os.close(trigger)
