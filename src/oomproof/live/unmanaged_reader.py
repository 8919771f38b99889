"""The jobs that oomproof did not start: a look over all processes, which costs as much as everything else together, so now and then."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Mapping

from oomproof.leaf.command_lines import short_name
from oomproof.ledger import paused_jobs
from oomproof.ledger.paused_jobs import PausedJob
from oomproof.live.live_snapshot import RUNNING, UNMANAGED, JobState
from oomproof.live.run_reader import LOOK_BACK, SPAN, command_text, rate_of
from oomproof.machine import cgroup_limits, jobs
from oomproof.printable import one_line
from oomproof.records import replace

_AT_LEAST = 64 << 20  # bytes; smaller ones are many and change nothing
_SHOWN = 12
_HIDDEN = (
    "other users' processes are hidden here (hidepid): what they hold counts as unmanaged, without a row"
)
_TICKS = os.sysconf("SC_CLK_TCK")

Key = tuple[int, int]  # pid and start
Points = deque[tuple[float, int]]


def _what_runs(job: jobs.Job) -> tuple[str, ...]:
    """Of a run that is not ours, the command behind its `--`: all of them are called oomproof."""
    if job.managed and "--" in job.command[:-1]:
        return job.command[job.command.index("--") + 1 :]
    return job.command


def _with_pause(state: JobState, paused: Mapping[str, PausedJob]) -> JobState:
    """A guard may have paused it for want of memory."""
    pause = paused.get(state.id)
    if pause is None:
        return state
    return replace(state, paused_by="guard", paused_until=pause.until, reasons=(one_line(pause.why),))


class UnmanagedReader:
    def __init__(self, every: float = 5.0, proc: str = "/proc", sys: str = "/sys") -> None:
        self._every, self._proc, self._sys = every, proc, sys
        self._next = float("-inf")
        self._jobs: tuple[JobState, ...] = ()
        self._pids: dict[str, tuple[int, ...]] = {}
        self._points: dict[str, Points] = {}
        self.problem = ""

    def read(
        self, runs: Collection[int], now: float, on_cards: Mapping[int, int] | None = None
    ) -> tuple[JobState, ...]:
        """``runs``: pids of our runs' first processes and keepers, whose jobs are none of these. ``on_cards``: pid → bytes of GPU memory."""
        on_cards = on_cards or {}
        if now >= self._next:
            self._next = now + self._every
            try:
                self._jobs = self._look(set(runs), now, on_cards)
                self.problem = "" if os.path.exists(f"{self._proc}/1") else _HIDDEN
            except OSError as error:
                self._jobs, self.problem = (), f"other jobs cannot be listed: {error.strerror}"
        return tuple(self._with_cards(job, on_cards) for job in self._jobs)

    def _with_cards(self, job: JobState, on_cards: Mapping[int, int]) -> JobState:
        held = [on_cards[pid] for pid in self._pids.get(job.id, ()) if pid in on_cards]
        return replace(job, gpu_used=sum(held)) if held else job

    def points(self, job: JobState) -> tuple[tuple[float, int], ...]:
        """What it held, as far as this view has seen it."""
        return tuple(self._points.get(job.id, ()))

    def _look(self, runs: set[int], now: float, on_cards: Mapping[int, int]) -> tuple[JobState, ...]:
        limit = cgroup_limits.machine_here(self._proc, self._sys)
        inside = limit.path if limit is not None else None
        anon, shmem = jobs.totals(self._proc, inside)
        # without walks over page tables, which hold up who is walked
        heaviest = jobs.heaviest(
            jobs.scan(self._proc, inside), anon_total=anon, shmem_total=shmem, at_least=_AT_LEAST, walk=0,
            proc=self._proc,
        )  # fmt: skip
        us = os.getpid()
        others = [job for job in heaviest if us not in job.pids and not runs.intersection(job.pids)]
        others = others[:_SHOWN] + [
            job for job in others[_SHOWN:] if not on_cards.keys().isdisjoint(job.pids)
        ]
        paused = {f"{job.pid}-{job.start}": job for job in paused_jobs.read()}
        states = tuple(_with_pause(self._state(job, now), paused) for job in others)
        self._pids = {state.id: tuple(job.pids) for state, job in zip(states, others, strict=True)}
        alive = set(self._pids)
        self._points = {key: points for key, points in self._points.items() if key in alive}
        return tuple(
            replace(state, rate=rate_of([*self._points[state.id]], now))
            if state.id in self._points
            else state
            for state in states
        )

    def _state(self, job: jobs.Job, now: float) -> JobState:
        use = job.use + job.swap
        name = f"{job.pid}-{job.start}"  # a pid is used anew
        points = self._points.setdefault(name, deque())
        points.append((now, use))
        while now - points[0][0] > max(SPAN, LOOK_BACK):
            points.popleft()
        return JobState(
            id=name,
            name=one_line(short_name(_what_runs(job))),
            state=RUNNING
            if job.managed
            else UNMANAGED,  # managed: a run of somebody else, or of another state folder
            command=command_text(job.command),
            uid=job.uid,
            mine=False,
            pid=job.pid,
            processes=len(job.pids),
            seconds=max(0.0, now - job.start / _TICKS) if job.start else None,
            use=use,
            swap=job.swap,
            exact=job.exact,
            peak=max(size for _, size in points),
        )
