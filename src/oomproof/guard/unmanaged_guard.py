"""The jobs that were not started by us, in a guard's hands: who may be paused, the pause, what is told about it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from oomproof.errors import OomproofError
from oomproof.guard import action_text, detect_unmanaged
from oomproof.guard.unmanaged_growth import UnmanagedGrowth
from oomproof.guard.view import Action, ActionHistory, JobKey, Settings, UnmanagedView, View, is_near
from oomproof.leaf.action_kinds import KILL_UNMANAGED, PAUSE_UNMANAGED, RESUME_UNMANAGED, TERM_UNMANAGED
from oomproof.leaf.proc_files import ancestors, owner_of
from oomproof.ledger import guard_lease, paused_jobs
from oomproof.machine import processes
from oomproof.machine.clock import boottime
from oomproof.recording.state_files import runtime_folder
from oomproof.records import dataclass, replace
from oomproof.units import MIB

# Most guards never pause anybody: what only that needs is imported then, off the guard's thread.
if TYPE_CHECKING:
    from oomproof.guard.unmanaged_pause import UnmanagedPauses
    from oomproof.machine.jobs import Job

if TYPE_CHECKING:
    from oomproof.guard.unmanaged_growth import Culprit


_SPAN = 0.35  # seconds over which growth is told, as of a run
_MOST = 16  # of its processes: each costs a read


class FollowedJob:
    def __init__(self, culprit: Culprit) -> None:
        self.culprit = culprit
        self._points: deque[tuple[float, int]] = deque()

    def view(self, t: float) -> UnmanagedView:
        members = [processes.memory(pid) for pid in self.culprit.job.pids[:_MOST]]
        held = sum(member.anon + member.shmem for member in members if member is not None)
        self._points.append((t, held))
        while len(self._points) > 2 and t - self._points[1][0] >= _SPAN:
            self._points.popleft()
        before, held_before = self._points[0]
        rate = max(0.0, (held - held_before) / (t - before)) if t > before else 0.0
        return UnmanagedView(self.culprit.key, self.culprit.name, held, rate)


_ORDINARY_USERS = range(1000, 60000)
_OLD = 3.0  # seconds: what was seen of a job before says little about now
_LEFT_TO_IT = 1.0  # seconds that the guard of the machine has for a pause that is due, beside two looks
_SEARCH_SECONDS = 5.0  # that a slow machine takes for two looks
_REMEMBERED = 16  # jobs; of those beyond that the ones that have ended are forgotten
Tell = Callable[[str, str, JobKey], None]  # kind, what happened in words, to whom


# Seconds between looks at all processes while the machine fills: whoever fills it may have to be paused.
LOOK_SECONDS = 0.25
_AHEAD = 5.0  # seconds before the margin: two looks, and a process that is started for the case


def is_filling(settings: Settings, view: View) -> bool:
    """Whether it is time to look who fills the machine."""
    ahead = view.available - int(max(0.0, view.shrink) * _AHEAD)
    return view.shrink > MIB and is_near(settings, ahead, view.swap_free)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which unmanaged jobs a guard may touch, as its user wants it. Patterns are searched in the full command line."""

    protect: re.Pattern[str] | None = None
    prefer: re.Pattern[str] | None = None
    every_user: bool = False  # of the whole machine: any ordinary user's
    dry_run: bool = False


ANY_OF_MINE = Choice()


class UnmanagedGuard:
    """``by`` names this guard; ``leaders`` gives the first processes of all runs; ``tell`` hears of each action."""

    def __init__(
        self,
        settings: Settings,
        by: str,
        leaders: Callable[[], set[int]],
        tell: Tell,
        inside: str | None = None,
        choice: Choice = ANY_OF_MINE,
        folder: Callable[[], Path] = runtime_folder,
        beside_runs: bool = False,
    ) -> None:
        """``beside_runs``: this guard has runs of its own, for which somebody else's end may free memory."""
        self._settings, self._by, self._leaders, self._tell = settings, by, leaders, tell
        self._choice, self._folder = choice, folder
        tie = self._tie if settings.pause_unmanaged else None
        holding = settings.floor // 2 if beside_runs and settings.pause_unmanaged else 0
        self.growth = UnmanagedGrowth(inside, tie=tie, prefer=self._is_preferred, holding=holding)
        self._pauses: UnmanagedPauses | None = None
        self._lock = threading.Lock()
        self.state: dict[JobKey, ActionHistory] = {}
        self._resumed: dict[JobKey, FollowedJob] = {}  # by us, while they live: they can free memory
        self._paused: dict[JobKey, FollowedJob] = {}
        self._waited: dict[JobKey, UnmanagedView] = {}  # resumed by another guard, while they live
        self._search_began = self._asked_at = float("-inf")
        self._due_since: float | None = None

    def view(self, near: bool) -> tuple[UnmanagedView, ...]:
        pauses = self._pauses  # there once somebody was seen who could be paused
        if not near and (pauses is None or not pauses.any):
            self._resumed, self._paused = {}, {}
            return ()
        jobs = {(job.pid, job.start): job for job in paused_jobs.read(self._folder)}
        others = {key: UnmanagedView(key, job.name, job.use, paused="other") for key, job in jobs.items()}
        own = {job.key: job for job in pauses.view()} if pauses is not None else {}
        views = {**others, **own}
        waited = {
            key: UnmanagedView(key, job.name, 0, waited=True) for key, job in jobs.items() if key not in own
        }
        self._waited = {key: job for key, job in self._waited.items() if processes.is_alive(*key)} | waited
        for culprit in self.growth.culprits:
            if boottime() - culprit.t <= _OLD + culprit.took and culprit.key not in views:
                views[culprit.key] = UnmanagedView(
                    culprit.key, culprit.name, culprit.held, culprit.rate, culprit.job.swap, culprit.tie,
                    waited=culprit.key in self._waited,
                )  # fmt: skip
        for holder in self.growth.holders:
            if holder.key not in views and processes.is_alive(*holder.key):
                views[holder.key] = UnmanagedView(holder.key, holder.name, holder.held)
        self._resumed = {key: job for key, job in self._resumed.items() if processes.is_alive(*key)}
        t = boottime()
        followed = {key: job.view(t) for key, job in self._resumed.items() if key not in own}
        views = {**self._waited, **views, **followed}
        if self._choice.every_user:
            return tuple(replace(view, uid=owner_of(view.key[0])) for view in views.values())
        return tuple(views.values())

    def is_searching(self, t: float) -> bool:
        """Asked while a machine near its margin fills: whether the next looks may name somebody who can be paused. Not waited
        for for long."""
        if t - self._asked_at > _SEARCH_SECONDS:
            self._search_began = t
        self._asked_at = t
        if not self._settings.pause_unmanaged or self.growth.knows(t - _OLD):
            return False
        return t - self._search_began < _SEARCH_SECONDS

    def decide_and_act(self, view: View, may_act: Callable[[bool], bool]) -> None:
        """``may_act``: whether no other guard acted a moment ago; told whether it is a resume."""
        self._release(view)
        actions, self.state = detect_unmanaged.decide(self._settings, view, self.state)
        if len(self.state) > _REMEMBERED:
            self.state = {key: done for key, done in self.state.items() if processes.is_alive(*key)}
        if self._is_decided_elsewhere():
            self._leave_to_it(actions, view.t)
            return
        for action in actions:
            if self._can_act(action) and may_act(action.kind == RESUME_UNMANAGED):
                self._act(action)

    def _can_act(self, action: Action) -> bool:
        """A pause that could not be undone without us is not made; it is tried again at the next look."""
        if self._pauses is None or action.kind != PAUSE_UNMANAGED or self._choice.dry_run:
            return self._pauses is not None
        return self._pauses.is_ready()

    def _is_decided_elsewhere(self) -> bool:
        """A guard of the whole machine lives, and it is not us. What we paused before it came we resume ourselves."""
        if self._choice.every_user:  # we are the one above all; no folder of a user's is ours to ask
            return False
        lease = guard_lease.holder()
        return (
            lease is not None
            and lease.pid != os.getpid()
            and not (self._pauses is not None and self._pauses.any)
        )

    def _leave_to_it(self, actions: list[Action], t: float) -> None:
        """A pause that is due and does not come, because the guard of the machine protects that job or is stopped, is not
        waited for: then our own job is looked after as if nobody could be paused."""
        due = next((action for action in actions if action.kind == PAUSE_UNMANAGED), None)
        if due is None:
            self._due_since = None
        elif self._due_since is None:
            self._due_since = t
        elif t - self._due_since > _LEFT_TO_IT + min(_SEARCH_SECONDS, 2 * self._look_seconds()):
            self.state = detect_unmanaged.failed(due, self.state)

    def _look_seconds(self) -> float:
        """On a slow machine the other guard looks as slowly as we do."""
        culprit = self.growth.culprit
        return culprit.took if culprit is not None else 0.0

    def _act(self, action: Action) -> None:
        pauses, job = self._pauses, action.unmanaged
        if pauses is None or job is None:
            return
        key = job.key
        if action.kind == RESUME_UNMANAGED:
            pauses.resume(key)
            if key in self._paused:
                self._resumed[key] = self._paused.pop(key)
            self.state = detect_unmanaged.carried_out(self._settings, action, self.state)
            self.tell_later(action.kind, action_text.unmanaged_text(action, job), key)
            return
        if self._choice.dry_run:
            done = detect_unmanaged.carried_out(self._settings, action, self.state)
            ends = action.kind != PAUSE_UNMANAGED
            self.state = done if ends else detect_unmanaged.failed(action, self.state)
            self.tell_later("dry-run", action_text.would_text(action, job), key)
            return
        found = next((culprit for culprit in self.growth.culprits if culprit.key == key), None)
        culprit = found or (self._resumed[key].culprit if key in self._resumed else None)
        if culprit is None:
            return
        if action.kind in (TERM_UNMANAGED, KILL_UNMANAGED):
            number = signal.SIGTERM if action.kind == TERM_UNMANAGED else signal.SIGKILL
            pauses.end(culprit, number)
            self.state = detect_unmanaged.carried_out(self._settings, action, self.state)
            self.tell_later(action.kind, action_text.unmanaged_text(action, job), key)
            return
        if culprit.tie:
            return
        from oomproof.guard.unmanaged_pause import NOT_YET

        seconds = detect_unmanaged.longest(self._settings)
        problem = pauses.pause(culprit, seconds)
        if problem == NOT_YET:
            return  # tried again at the next look
        if problem:
            self.state = detect_unmanaged.failed(action, self.state)
            self.tell_later("trouble", f"could not pause {action_text.who(job)}: {problem}", key)
            return
        self._resumed.pop(key, None)
        self._paused[key] = FollowedJob(culprit)
        self.state = detect_unmanaged.carried_out(self._settings, action, self.state)
        headroom, latest = self.state[key].resume_headroom, time.time() + seconds
        text = action_text.paused_text(action, job, headroom, latest)
        self.tell_later(action.kind, text, key, action_text.why(action))

    def _release(self, view: View) -> None:
        """Somebody else resumed it, or it has ended: then it is no longer ours."""
        pauses = self._pauses
        if pauses is None or not pauses.any:
            return
        for job in view.unmanaged:
            if not job.paused and pauses.has(job.key):
                pauses.resume(job.key)
                if processes.is_alive(*job.key):
                    self.tell_later(
                        "hand", f"{action_text.who(job)} was resumed by hand; it is left alone", job.key
                    )

    def tell_later(self, kind: str, text: str, key: JobKey, why: str = "") -> None:
        """From a thread of its own: a file, another terminal and our own may all be slow."""
        threading.Thread(
            target=self._tell_now, args=(kind, text, key, why), name="notice", daemon=True
        ).start()

    def _tell_now(self, kind: str, text: str, key: JobKey, why: str) -> None:
        pauses = self._pauses
        if kind == PAUSE_UNMANAGED and pauses is not None:
            # no runtime folder: then only others do not know
            with contextlib.suppress(OSError, OomproofError):
                pauses.write_down(key, why)
        self._tell(kind, text, key)
        if kind in (PAUSE_UNMANAGED, RESUME_UNMANAGED):
            from oomproof.guard.unmanaged_pause import tell_owner

            tell_owner(key[0], text)

    def _tie(self, job: Job) -> str:
        """In the thread that looks at all processes."""
        from oomproof.guard.unmanaged_pause import UnmanagedPauses
        from oomproof.machine.job_ties import tie_of

        choice = self._choice
        allowed = job.uid in _ORDINARY_USERS if choice.every_user else job.uid == os.getuid()
        if not allowed:
            return "it is another user's"
        if choice.protect is not None and choice.protect.search(" ".join(job.command)):
            return "--protect names it"
        ours = {os.getpid(), *ancestors(os.getpid())}
        tie = tie_of(job, ours, self._leaders())
        if not tie:
            with self._lock:
                self._pauses = self._pauses or UnmanagedPauses(self._by, self._folder)
                if not choice.dry_run:
                    self._pauses.prepare()
        return tie

    def _is_preferred(self, job: Job) -> bool:
        return self._choice.prefer is not None and bool(self._choice.prefer.search(" ".join(job.command)))

    def close(self) -> None:
        with self._lock:
            if self._pauses is not None:
                self._pauses.close()
