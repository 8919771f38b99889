"""A guard over a simulated machine: a clock, a job that grows as told, other runs, hands that pause. No real time passes.

What it did, and when, is the whole result, so that two versions of the guard can be compared to the microsecond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from oomproof.guard import actuator, guard_loop, poll_interval, unmanaged_growth, view_reader
from oomproof.guard.best_effort import BestEffort
from oomproof.guard.guarded_job import GuardedJob
from oomproof.guard.view import Settings
from oomproof.ledger.live_runs import BY_GUARD, RUNS, Live
from oomproof.machine.cgroups import JobMemory
from oomproof.units import GIB, MIB

START = 1000.0  # the clock at the first look
READ_MACHINE, READ_JOB, SETTLE = 0.0002, 0.0003, 0.003  # seconds that these take

Curve = Callable[[float], float]  # seconds since the start → MiB


@dataclass(frozen=True)
class Neighbour:
    """Another live run: what it holds, how it grows, in which spans of time it is paused, and whether it uses the CPU."""

    name: str
    held: Curve = lambda t: 512.0
    rate: float = 0.0  # MiB/s, as its guard tells
    paused: Sequence[tuple[float, float]] = ()
    ends: float = math.inf
    protected: bool = False
    reserved: bool = False
    busy: bool = True


@dataclass(frozen=True)
class Situation:
    settings: Settings
    seconds: float
    held: Curve  # the job's, by its own time: none passes while it is paused
    free: Curve = lambda t: 20 * 1024.0  # MiB that the job and the others have between them
    swap_free: Curve = lambda t: 0.0
    swapped: Curve = lambda t: 0.0  # of the job's
    stall: Curve = lambda t: 0.0
    answers_term: float | None = 0.05  # seconds; None: never
    answers_ask: float | None = None
    phases: Sequence[tuple[float, str, int | None]] = ()
    neighbours: Sequence[Neighbour] = ()
    latch_taken: Sequence[float] = ()  # when another run's guard acts on the machine
    hands: Sequence[tuple[float, str]] = ()  # pause, move (GPU memory first), resume: by the user
    pause_limit: float | None = None  # seconds that something in the job counts
    can_push: bool = False
    alone: bool = False  # no runtime folder
    unreadable: Sequence[
        tuple[float, float, str]
    ] = ()  # spans in which machine, job or others cannot be read
    job_limit: float = math.inf  # MiB at which the kernel ends it


@dataclass
class World:
    situation: Situation
    clock: float = START
    paused: bool = False
    job_time: float = 0.0
    seen: float = START
    ended_at: float = math.inf
    unmanaged: str = "loader (pid 812) grew by 1.2 GiB, held 3.4 GiB"
    done: list[list[object]] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)

    @property
    def t(self) -> float:
        return self.clock - START

    def pass_time(self, seconds: float) -> None:
        self.clock += seconds
        if not self.paused:
            self.job_time += seconds
        if self.held > self.situation.job_limit * MIB and self.alive:
            self.ended_at = self.clock
            self.note("kernel")

    @property
    def held(self) -> int:
        return int(self.situation.held(self.job_time) * MIB)

    @property
    def alive(self) -> bool:
        return self.clock < self.ended_at

    def note(self, *what: object) -> None:
        self.done.append([round(self.t, 6), *what])

    def readable(self, what: str) -> bool:
        return not any(
            begun <= self.t < end and name == what for begun, end, name in self.situation.unreadable
        )


class Host:
    mem_total = ram = 32 * GIB
    swap_total = 8 * GIB
    limit_folder = None
    psi = (0, 0)

    def __init__(self, world: World) -> None:
        self._world = world

    def headroom(self) -> tuple[int, int]:
        world = self._world
        world.pass_time(READ_MACHINE)
        if not world.readable("machine"):
            raise OSError("no descriptors")
        given, t = world.situation, world.t
        others = sum(one.held(t) for one in given.neighbours if t < one.ends)
        held = (world.held if world.alive else 0) - int(given.swapped(t) * MIB)
        free = int((given.free(t) - others) * MIB) - held
        return max(0, free), int(given.swap_free(t) * MIB)

    def stall(self, t: float) -> float:
        return self._world.situation.stall(t - START)


class Freezer:
    def __init__(self, world: World) -> None:
        self._world = world

    def pause(self) -> bool:
        self._world.paused = True
        self._world.note("freezer", "stops")
        return True

    def resume(self) -> bool:
        self._world.paused = False
        self._world.note("freezer", "lets go")
        return True

    def is_paused(self) -> bool:
        return self._world.paused


class Job:
    leader, corrected, reclaim, is_exact, alarm = 4711, 0, None, True, None

    def __init__(self, world: World) -> None:
        self._world = world
        self.freezer = Freezer(world)

    def memory(self, available: int | None = None, headroom: int = 0) -> JobMemory | None:
        world = self._world
        world.pass_time(READ_JOB)
        if not world.alive or not world.readable("job"):
            return None
        swapped = int(world.situation.swapped(world.t) * MIB)
        return JobMemory(world.held - swapped, 0, 5 * MIB, swapped, MIB, world.held - swapped)

    def charge(self) -> int | None:
        swapped = int(self._world.situation.swapped(self._world.t) * MIB)
        return self._world.held - swapped if self._world.alive else None

    def most_charged(self) -> int | None:
        return 1  # it is counted, and never more than the rows have

    def settle(self, seconds: float) -> None:
        self._world.pass_time(SETTLE)

    def pids(self) -> list[int]:
        return []

    def known_pids(self) -> list[int]:
        return [self.leader]

    def is_gone(self) -> bool:
        return not self._world.alive


class Actions:
    """Does to the simulated job what the real ones do, and writes down that it was asked to."""

    def __init__(self, world: World) -> None:
        self._world = world

    def take(self, kind: str, why: str, *_: object, **facts: object) -> None:
        world, given = self._world, self._world.situation
        world.note(kind, why)
        if kind == "pause":
            world.paused = True
        if kind in ("resume", "term", "kill"):
            world.paused = False
        answer = {"term": given.answers_term, "request": given.answers_ask, "kill": 0.001}.get(kind)
        if answer is not None:
            world.ended_at = min(world.ended_at, world.clock + answer)

    def withdraw(self, why: str, say: Callable[[str, str], None], reason: str) -> None:
        self._world.note("withdraw", why)
        say("withdraw", why)


class Pause:
    """As guard.pause.Pause, without files: hands act at the times the situation says."""

    moving = False

    def __init__(self, world: World) -> None:
        self._world = world
        self._hands = list(world.situation.hands)
        self.can_push = world.situation.can_push
        self.by, self.limit = "", None

    def begin(self, why: str, until: float, push: bool) -> None:
        self.by, self.limit = "guard", self._world.situation.pause_limit
        self._world.note("pause begins", push)

    def end(self) -> None:
        self.by, self.limit = "", None
        self._world.note("pause ends")

    def look(self) -> None:
        while self._hands and self._hands[0][0] <= self._world.t:
            _, what = self._hands.pop(0)
            self.by, self.moving = "" if what == "resume" else "hand", what == "move"
            self._world.paused = what == "pause"


class LiveRun:
    name = "000000000500000-me"

    def __init__(self, world: World) -> None:
        self._world = world
        self._paused, self._acted = RUNS, -math.inf
        self._mine: tuple[float, bool] = (-math.inf, False)
        self.protected = world.situation.settings.protected
        self.reserved = world.situation.settings.need is not None

    def update(self, use: int, t: float, rate: float = 0.0, paused: int = RUNS) -> None:
        self._check()
        self._paused = paused

    def confirm(self, t: float) -> None:
        self._check()

    def _check(self) -> None:
        if not self._world.readable("others"):
            raise OSError("the runtime folder has gone")

    def others(self, now: float) -> list[Live]:
        self._check()
        t = now - START
        found = []
        for one in self._world.situation.neighbours:
            if t >= one.ends:
                continue
            still = any(begun <= t < end for begun, end in one.paused)
            paused, rate = (BY_GUARD, 0) if still else (RUNS, int(one.rate * MIB))
            held = int(one.held(t) * MIB)
            found.append(Live(one.name, held, now, rate, paused, one.protected, 2, 1, one.reserved))
        return found

    def take_latch(self, t: float, pause: float = 1.0, resume: bool = False) -> bool:
        self._check()
        theirs = [START + at for at in self._world.situation.latch_taken if START + at <= t]
        mine, resumed = self._mine
        last = max([mine, *theirs])
        if t - last < pause and not (resumed and last == mine):
            self._world.note("latch refused")
            return False
        self._mine = (t, resume)
        return True


class Rows:
    def __init__(self, world: World) -> None:
        self._world = world
        self._looks: list[float] = []  # rows beside the regular ones

    def put(self, table: str, row: tuple[Any, ...]) -> None:
        if table == "look":
            self._looks.append(row[0])
        elif table == "job" and row[0] not in self._looks:
            self._world.rows.append(row[0])

    def commit_if_due(self) -> None:
        pass

    def event(self, t: float, kind: str, text: str, **data: object) -> None:
        self._world.note("event", round(t - START, 6), kind, text, data.get("scope", ""))


def simulate(situation: Situation, patch: pytest.MonkeyPatch) -> dict[str, object]:
    """Everything done, with its time; how many looks and rows there were, and when the last ones were."""
    world = World(situation)
    for module in (guard_loop, actuator):
        patch.setattr(module, "boottime", lambda: world.clock)
    patch.setattr(poll_interval, "CALM_FILL", 6000 * MIB, raising=False)  # as with two cores
    patch.setattr(guard_loop, "time", SimpleNamespace(monotonic=lambda: world.clock))
    patch.setattr(
        unmanaged_growth.UnmanagedGrowth, "look", lambda self, *_: setattr(self, "named", world.unmanaged)
    )
    # it is looked for at once, and must not be paused: what is decided about our own jobs then
    patch.setattr(unmanaged_growth.UnmanagedGrowth, "knows", lambda self, since: True)
    ticks = lambda self, one: int(world.t * 100) if _is_busy(situation, one.name) else 7  # noqa: E731
    patch.setattr(view_reader.Idleness, "_cpu", ticks)
    guard = make_guard(world)
    phases = list(situation.phases)
    looks, after_end = 0, 3
    while world.t < situation.seconds and after_end:
        while phases and phases[0][0] <= world.t:
            begun, name, step = phases.pop(0)
            note_phase(guard, name, step, START + begun)
        at = world.clock
        view = look(guard, world)
        looks += 1
        after_end -= not world.alive
        sleep(guard, view)
        assert world.clock > at
    close(guard)
    return {"done": world.done, "looks": looks, "rows": len(world.rows), "last_row": _round(world.rows),
            "ended": round(world.t, 6)}  # fmt: skip


def _is_busy(situation: Situation, name: str) -> bool:
    return any(one.busy for one in situation.neighbours if one.name == name)


def _round(rows: list[float]) -> float:
    return round(rows[-1] - START, 6) if rows else -1.0


# --- all that knows how a guard is made and asked ---------------------------------------------------------------------


def make_guard(world: World) -> Any:
    live = None if world.situation.alone else LiveRun(world)
    best_effort = BestEffort(lambda text: world.note("tell", text))
    job = GuardedJob(
        Job(world), world.situation.settings, Actions(world), Pause(world), Rows(world), live,
        lambda kind, why: world.note("say", kind), best_effort,
    )  # type: ignore[arg-type]  # fmt: skip
    guard = guard_loop.Guard(Host(world), [job], best_effort)  # type: ignore[arg-type]
    guard._doze = lambda seconds: world.pass_time(max(0.0, seconds))  # type: ignore[assignment, method-assign, return-value]
    return guard, job


def note_phase(guard: Any, name: str, step: int | None, t: float) -> None:
    guard[1].growth.warm_up.note(name, step, t)


def look(guard: Any, world: World) -> Any:
    """One step; what it saw."""
    return guard[0].step(world.clock)


def sleep(guard: Any, view: Any) -> None:
    """To the next look, with the glances in between."""
    assert guard[0]._sleep(view)


def close(guard: Any) -> None:
    guard[0].close()
