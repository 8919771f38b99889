"""The random mixes of bench/replay.py without a machine: the guard's own rules decide, everything else is arithmetic. Seconds for hundreds of seeds.

    python bench/replay_simulated.py [--seeds 1-200] [--slow 1.0] [--say SEED]

It knows no scheduler, no page cache and no zram: a job that is lost here is lost by the rules. ``--slow``: how many times slower the looks over all
processes are than on a quick machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from replay_mixes import BASE, MixJob, draw, oracle

from oomproof.guard import detect_unmanaged, guard_policy
from oomproof.guard.action_text import why
from oomproof.guard.detect_resume import RESUME_INTERVAL
from oomproof.guard.view import (
    Action,
    ActionHistory,
    JobKey,
    JobState,
    JobView,
    Settings,
    UnmanagedView,
    View,
    is_near,
    runs_explain,
)
from oomproof.leaf.action_kinds import PAUSE_UNMANAGED
from oomproof.ledger.live_runs import ACTION_PAUSE

MIB = 1 << 20
IDLE = 780  # MiB available when nobody runs
SETTINGS = Settings(margin=243 * MIB, floor=243 * MIB, grace=30.0)
STEP = 0.1  # seconds
_LOOK = 0.25  # between two looks over all processes
_TOOK = 0.15  # that one takes
_KNOWN = 3.0  # seconds for which what it found counts
_LONGEST = 900.0  # seconds: what has not come back by then is lost
_WORTH_NAMING = 8 * MIB  # grown by so much in five seconds: one that fills the machine
_SEARCH = 5.0  # seconds for which a look that may name somebody is waited for


@dataclass
class Simulated:
    """One job: its own time passes only while it runs."""

    at: int
    mix: MixJob
    lived: float = 0.0
    began: float | None = None
    paused: str = ""  # by whom: run, guard
    end: str = ""
    held: list[float] = field(default_factory=list)  # MiB at each step, from its start on

    @property
    def key(self) -> JobKey:
        return 100 + self.at, int(100 * (self.began or 0.0))

    @property
    def name(self) -> str:
        return f"{self.began or 0.0:09.3f}-{self.at}"

    @property
    def is_live(self) -> bool:
        return self.began is not None and not self.end

    def now(self) -> float:
        return BASE + min(self.mix.size, self.lived * self.mix.rate) if self.is_live else 0.0

    def rate(self, seconds: float) -> float:
        """MiB/s over that long, or since its start."""
        steps = max(1, round(seconds / STEP))
        before = self.held[-steps - 1] if len(self.held) > steps else 0.0
        return (self.held[-1] - before) / seconds if self.held else 0.0


class Mix:
    def __init__(self, seed: int, slow: float = 1.0) -> None:
        self.jobs = [Simulated(at, job) for at, job in enumerate(draw(seed))]
        self.t, self.slow = 0.0, slow
        self.free: list[float] = []
        self.states: dict[int, JobState] = {}
        self.pauses: dict[JobKey, ActionHistory] = {}  # of the machine's guard
        self.theirs: dict[int, dict[JobKey, ActionHistory]] = {}  # what each run makes of unmanaged jobs
        self.waited: set[JobKey] = set()
        self.known: list[tuple[float, list[UnmanagedView]]] = []  # from when on, what a look found
        self.looked = self.acted = self.searched = self.asked = float("-inf")
        self.actor: int | None = None  # who acted last, if that was a resume of its own
        self.said: list[str] = []

    def run(self) -> list[str]:
        while self.t < _LONGEST and not all(job.end for job in self.jobs):
            self._live()
            self._guard()
            self._runs()
            self.t += STEP
        return [job.end or "never came back" for job in self.jobs]

    @property
    def available(self) -> float:
        return IDLE - sum(job.now() for job in self.jobs)

    # -- the machine ---------------------------------------------------------------------------------------

    def _live(self) -> None:
        for job in self.jobs:
            if job.began is None and not job.end and self.t >= job.mix.start and self._is_let_in(job):
                job.began = self.t
            if job.is_live and not job.paused:
                job.lived += STEP
                if job.lived >= job.mix.seconds:
                    self._ends(job, "finished")
            if job.is_live:
                job.held.append(job.now())
        while self.available < 0:
            self._ends(max(self.jobs, key=lambda job: job.now()), "killed by the kernel")
        self.free.append(self.available)

    def _is_let_in(self, job: Simulated) -> bool:
        if not job.mix.declared:
            return True
        reserved = sum(
            max(0.0, other.mix.peak - other.now())
            for other in self.jobs
            if other.is_live and other.mix.declared
        )
        return self.available - reserved - SETTINGS.margin / MIB >= job.mix.peak

    def _ends(self, job: Simulated, how: str) -> None:
        self._say(job, how)
        job.end, job.paused = how, ""

    def _say(self, job: Simulated, what: str) -> None:
        self.said.append(
            f"{self.t:6.1f} s, {self.available:4.0f} MiB left: job {job.at} ({'run' if job.mix.managed else 'unmanaged'}, "
            f"{job.now():.0f} of {job.mix.peak}) {what}"
        )

    # -- what the guards see -------------------------------------------------------------------------------

    def _shrink(self, seconds: float) -> float:
        steps = max(1, round(seconds / STEP))
        before = self.free[-steps - 1] if len(self.free) > steps else self.free[0]
        return (before - self.free[-1]) * MIB / seconds

    def _job_view(self, job: Simulated) -> JobView:
        spans = [job.rate(seconds) for seconds in (2.0, 5.0)]
        lasting = min(spans) if len(job.held) * STEP >= 2.0 else 0.0
        return JobView(
            job.name, int(job.now() * MIB), job.rate(0.3) * MIB, "guard" if job.paused else "",
            reserved=job.mix.declared, sustained=max(0.0, lasting) * MIB,
            pending=int((job.mix.peak - job.now()) * MIB) if job.mix.declared else 0,
        )  # fmt: skip

    def _view(
        self, jobs: tuple[JobView, ...], others: tuple[JobView, ...], unmanaged: tuple[UnmanagedView, ...]
    ) -> View:
        shrink = self._shrink(0.3)
        near = is_near(SETTINGS, int(self.available * MIB), 0)
        unexplained = shrink > 0 and not runs_explain(shrink, (*jobs, *others))
        return View(
            self.t, int(self.available * MIB), 0, 0.0, shrink, self._shrink(5.0), jobs, others, unmanaged=unmanaged,
            searching=near and unexplained and self._is_searching(),
        )  # fmt: skip

    def _is_searching(self) -> bool:
        """As UnmanagedGuard.is_searching."""
        if self.t - self.asked > _SEARCH:
            self.searched = self.t
        self.asked = self.t
        return not self._growing() and self.t - self.searched < _SEARCH

    def _look(self) -> None:
        """Who grows, of those that were not started by us; known a moment later."""
        if self.t - self.looked < _LOOK + _TOOK * self.slow:
            return
        self.looked = self.t
        found = []
        for job in self.jobs:
            grown = job.rate(5.0) * 5.0 if job.held else 0.0
            if job.is_live and not job.mix.managed and not job.paused and grown * MIB >= _WORTH_NAMING:
                found.append(
                    UnmanagedView(job.key, f"job {job.at}", int(job.now() * MIB), job.rate(1.0) * MIB)
                )
        self.known.append((self.t + _TOOK * self.slow, culprits(found)))
        self.known = self.known[-20:]

    def _growing(self) -> list[UnmanagedView]:
        for t, found in reversed(self.known):
            if t <= self.t:
                return found if self.t - t <= _KNOWN else []
        return []

    def _unmanaged(self, own: bool) -> tuple[UnmanagedView, ...]:
        """``own``: as the machine's guard sees them, else as a run does."""
        views: dict[JobKey, UnmanagedView] = {}
        for job in self.jobs:
            if not job.is_live or job.mix.managed:
                continue
            if job.paused:
                by = "guard" if own else "other"
                views[job.key] = UnmanagedView(job.key, f"job {job.at}", int(job.now() * MIB), paused=by)
            elif job.key in self.waited:
                followed = (int(job.now() * MIB), job.rate(0.3) * MIB) if own else (0, 0.0)
                views[job.key] = UnmanagedView(job.key, f"job {job.at}", *followed, waited=not own)
        for found in self._growing():
            if found.key not in views or not views[found.key].paused:
                live = next(
                    (job for job in self.jobs if job.key == found.key and job.is_live and not job.paused),
                    None,
                )
                if live is not None and not (own and found.key in self.waited):
                    waited = not own and found.key in self.waited
                    views[found.key] = replace(found, waited=waited)
        if not own:  # those that hold much may end soon, and free it
            held = [job for job in self.jobs if job.is_live and not job.mix.managed and job.key not in views]
            views |= {
                job.key: UnmanagedView(job.key, f"job {job.at}", int(job.now() * MIB))
                for job in held
                if job.now() * MIB >= SETTINGS.floor / 2
            }
        return tuple(views.values())

    # -- what they do --------------------------------------------------------------------------------------

    def _guard(self) -> None:
        self._look()
        runs = tuple(self._job_view(job) for job in self.jobs if job.is_live and job.mix.managed)
        view = self._view((), runs, self._unmanaged(own=True))
        actions, self.pauses = detect_unmanaged.decide(SETTINGS, view, self.pauses)
        for action in actions:
            assert action.unmanaged is not None
            job = next(job for job in self.jobs if job.key == action.unmanaged.key)
            self.pauses = detect_unmanaged.carried_out(SETTINGS, action, self.pauses)
            if action.kind == PAUSE_UNMANAGED:
                job.paused = "guard"
                self._say(job, f"paused by the guard, grew by {action.unmanaged.rate / MIB:.0f} MiB/s")
            else:
                job.paused = ""
                self.waited.add(job.key)
                self._say(job, f"resumed by the guard: {why(action)}")

    def _runs(self) -> None:
        for job in [job for job in self.jobs if job.is_live and job.mix.managed]:
            mine = self._job_view(job)
            others = tuple(
                self._job_view(other)
                for other in self.jobs
                if other is not job and other.is_live and other.mix.managed
            )
            view = self._view((mine,), others, self._unmanaged(own=False))
            _, self.theirs[job.at] = detect_unmanaged.decide(SETTINGS, view, self.theirs.get(job.at, {}))
            given = replace_need(SETTINGS, job)
            state = {mine.name: self.states.get(job.at, JobState())}
            actions, after = guard_policy.decide({mine.name: given}, view, state, self.theirs[job.at])
            self.states[job.at] = after[mine.name]
            for action in actions:
                if self._may(job.at, action):
                    self._take(job, given, action)

    def _may(self, at: int, action: Action) -> bool:
        """As the latch has it that all runs share: a resume of one's own does not count."""
        if action.kind in ("warn", "request", "withdraw"):
            return True
        resumes = action.kind == "resume"
        if self.t - self.acted < (RESUME_INTERVAL if resumes else ACTION_PAUSE) and self.actor != at:
            return False
        self.acted, self.actor = self.t, at if resumes else None
        return True

    def _take(self, job: Simulated, given: Settings, action: Action) -> None:
        self.states[job.at] = guard_policy.carried_out(given, action, self.states[job.at])
        if action.kind == "pause":
            job.paused = "run"
            self._say(job, f"paused: {why(action)}")
        elif action.kind == "resume":
            job.paused = ""
            self._say(job, f"resumed: {why(action)}")
        elif action.kind in ("term", "kill"):
            self._ends(job, f"{action.kind}: {why(action)}")


def replace_need(settings: Settings, job: Simulated) -> Settings:
    return replace(settings, need=job.mix.peak * MIB) if job.mix.declared else settings


def culprits(found: list[UnmanagedView]) -> list[UnmanagedView]:
    """As unmanaged_growth has them: of those with a large part the newest first."""
    if not found:
        return []
    fastest = max(job.rate for job in found)
    part = [job for job in found if job.rate >= fastest / 4]
    return sorted(part, key=lambda job: -job.key[1])[:CULPRITS]


CULPRITS = 3


def outcomes(seeds: list[int], slow: float = 1.0) -> Iterator[tuple[int, Mix, list[str], int]]:
    for seed in seeds:
        mix = Mix(seed, slow)
        ends = mix.run()
        possible = oracle(draw(seed)).finished
        lost = sum(end != "finished" and at in possible for at, end in enumerate(ends))
        yield seed, mix, ends, lost


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="1-200", metavar="A-B")
    parser.add_argument("--slow", type=float, default=1.0)
    parser.add_argument("--say", type=int, metavar="SEED")
    arguments = parser.parse_args()
    if arguments.say is not None:
        mix = Mix(arguments.say, arguments.slow)
        ends = mix.run()
        print("\n".join([*(str(job) for job in draw(arguments.say)), *mix.said, *ends]))
        return 0
    first, _, last = arguments.seeds.partition("-")
    seeds = list(range(int(first), int(last or first) + 1))
    total = lost = 0
    seconds = []
    for seed, mix, ends, missing in outcomes(seeds, arguments.slow):
        total, lost = total + len(ends), lost + missing
        seconds.append(mix.t)
        if missing:
            print(f"seed {seed}: {missing} of {len(ends)} lost: {[end.split(':')[0] for end in ends]}")
    print(f"{total - lost} of {total} jobs finished; {lost} lost; {sum(seconds) / len(seconds):.0f} s a mix")
    return lost > 0


if __name__ == "__main__":
    sys.exit(main())
