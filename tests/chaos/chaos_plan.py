"""What one chaos round does, drawn from its seed: which jobs run, what breaks, and when. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

# What can break. The first group is aimed at one run, the second at all of a round.
FRONT_KILL, KEEPER_KILL, BOTH_KILL = "front-kill", "keeper-kill", "both-kill"
FRONT_INT, FRONT_TERM, FRONT_STOP = "front-int", "front-term", "front-stop"
FDS_LOWERED, FDS_AT_START = "fds-lowered", "fds-at-start"
PAUSE, STOP, DATAGRAMS, RUN_REMOVED = "pause", "stop", "datagrams", "run-removed"
DISK_FULL, DISK_READONLY, STATE_REMOVED, STATE_GONE = (
    "disk-full",
    "disk-readonly",
    "state-removed",
    "state-gone",
)
RUNTIME_REMOVED, RUNTIME_FULL = "runtime-removed", "runtime-full"
LEDGER_REMOVED, LEDGER_EMPTIED, LEDGER_FLIPPED = "ledger-removed", "ledger-emptied", "ledger-flipped"
OLD_RECORDING, OLD_JSON = "old-recording-flipped", "old-json-wrong"
NO_THREADS, THREADS_AT_START = "no-threads", "few-threads-at-start"
HOG, NO_RIGHTS, SHORTAGE = "memory-hog", "no-cgroup-rights", "shortage"

AIMED = (
    FRONT_KILL, KEEPER_KILL, BOTH_KILL, FRONT_INT, FRONT_TERM, FRONT_STOP, FDS_LOWERED, FDS_AT_START,
    PAUSE, STOP, DATAGRAMS, RUN_REMOVED,
)  # fmt: skip
GLOBAL = (
    DISK_FULL, DISK_READONLY, STATE_REMOVED, STATE_GONE, RUNTIME_REMOVED, RUNTIME_FULL, LEDGER_REMOVED,
    LEDGER_EMPTIED, LEDGER_FLIPPED, OLD_RECORDING, OLD_JSON, NO_THREADS, THREADS_AT_START, HOG,
    NO_RIGHTS, SHORTAGE,
)  # fmt: skip
KINDS = (*AIMED, *GLOBAL)
AT_START = (FDS_AT_START, THREADS_AT_START, NO_RIGHTS, SHORTAGE)  # they shape the start, and have no moment

LAUNCH, START, END = (
    "launch",
    "start",
    "end",
)  # of the job a fault goes by: of its front, and of the job itself
# faults that could blind the guard: a shortage after them must still be acted on
BLINDING = (
    FDS_LOWERED, DATAGRAMS, DISK_FULL, DISK_READONLY, STATE_REMOVED, STATE_GONE, RUN_REMOVED, RUNTIME_REMOVED,
    RUNTIME_FULL, LEDGER_REMOVED, LEDGER_EMPTIED, LEDGER_FLIPPED, NO_THREADS, PAUSE,
)  # fmt: skip

JOB_KINDS = ("plain", "plain", "forking", "loader", "agent", "growing")
OUTPUTS = ("pipe", "pipe", "pty", "file", "detached")
STEP = 0.05  # seconds, as in chaos_job.py
MACHINE = 800  # MiB of the round's memory cgroup


@dataclass(frozen=True)
class PlannedJob:
    name: str
    kind: str
    output: str
    steps: int
    held: int  # MiB
    code: int
    begin: float  # seconds after the round's start
    quiet: bool = False
    limit: int | None = None  # MiB
    need: int | None = None  # MiB
    nofile: int | None = None

    @property
    def seconds(self) -> float:
        return self.steps * STEP


@dataclass(frozen=True)
class Fault:
    kind: str
    at: float  # seconds after `moment`
    job: int = 0
    moment: str = LAUNCH
    lasts: float = 0.0  # of what is taken back: a stopped front, a paused job
    number: int = 0  # for whatever else is random: a byte's place, which datagram

    def __str__(self) -> str:
        if self.kind in AT_START:
            return self.kind
        target = f" of j{self.job}" if self.kind in AIMED else ""
        return f"{self.kind}{target} {self.at:.2f}s after the {self.moment} of j{self.job}"


@dataclass(frozen=True)
class Plan:
    seed: int
    jobs: tuple[PlannedJob, ...]
    faults: tuple[Fault, ...]
    pids: int | None = None  # processes and threads that fit beside those of the driver, at the start

    def has(self, *kinds: str) -> bool:
        return any(fault.kind in kinds for fault in self.faults)

    def of(self, job: int) -> tuple[Fault, ...]:
        """What is aimed at this run or hits all."""
        return tuple(fault for fault in self.faults if fault.kind in GLOBAL or fault.job == job)

    def __str__(self) -> str:
        jobs = ", ".join(
            f"{job.kind}/{job.output}"
            + (f" limit {job.limit}M" if job.limit else "")
            + (f" need {job.need}M" if job.need else "")
            + (" quiet" if job.quiet else "")
            for job in self.jobs
        )
        return f"{jobs}; {'; '.join(map(str, self.faults))}"


def draw(seed: int, kinds: Sequence[str] = ()) -> Plan:
    """The round of this seed. With ``kinds`` those faults and no others, at moments drawn as ever."""
    rng = random.Random(seed)
    count = rng.choice((1, 2, 2, 3, 3, 4))
    chosen = list(kinds) or rng.sample(KINDS, rng.choice((1, 1, 2, 2, 3)))
    if SHORTAGE in chosen and HOG in chosen and not kinds:
        chosen.remove(HOG)  # one reason for a shortage is enough to tell who was guilty
    jobs = [_job(rng, number) for number in range(count)]
    jobs = _fit(rng, jobs, chosen)
    faults = [_fault(rng, kind, jobs) for kind in chosen]
    for fault in faults:
        if fault.kind == FDS_AT_START:
            jobs[fault.job] = _with(jobs[fault.job], nofile=rng.randint(16, 40))
    pids = rng.randint(6, 30) if THREADS_AT_START in chosen else None
    return Plan(seed, tuple(jobs), tuple(faults), pids)


def _with(job: PlannedJob, **changes: object) -> PlannedJob:
    from dataclasses import replace

    return replace(job, **changes)  # type: ignore[arg-type]


def _job(rng: random.Random, number: int) -> PlannedJob:
    kind = rng.choice(JOB_KINDS)
    growing = kind == "growing"
    limit = 200 if growing else rng.choice((None, None, 300))
    need = rng.choice((None, None, 60, 300))
    return PlannedJob(
        name=f"j{number}",
        kind=kind,
        output=rng.choice(OUTPUTS),
        steps=400 if growing else rng.randint(16, 60),
        held=rng.choice((4, 20, 40)),
        code=rng.choice((0, 0, 0, 3)),
        begin=round(rng.choice((0.0, 0.0, rng.uniform(0, 0.6))), 3),
        quiet=rng.random() < 0.2,
        limit=limit,
        need=min(need, limit) if need and limit else need,
    )


def _fit(rng: random.Random, jobs: list[PlannedJob], kinds: Sequence[str]) -> list[PlannedJob]:
    """What the faults ask of the jobs: a shortage needs one that grows, datagrams one that listens."""
    if SHORTAGE in kinds or HOG in kinds:
        calm = [_with(job, kind="plain", steps=50, limit=None) for job in jobs]
        jobs = [calm[n] if job.kind == "growing" else job for n, job in enumerate(jobs)]
    if DATAGRAMS in kinds:
        listens = _with(jobs[0], kind="agent", steps=70, limit=None)
        jobs = [listens, *(jobs[1:] or [_with(jobs[0], name="j1")])]
    grower = _with(jobs[-1], kind="growing", steps=400, need=None)
    if (
        SHORTAGE in kinds
    ):  # the whole small machine runs short, not one job's limit; the newest is the one that grows
        jobs = [*jobs[:-1], _with(grower, limit=None, begin=grower.begin + 0.4)]
    elif set(kinds) & set(BLINDING) and HOG not in kinds and rng.random() < 0.5:
        jobs = [*jobs[:-1], _with(grower, limit=200)]
    if NO_RIGHTS in kinds:  # nobody sees the round's cgroup then: memory is held by limits alone
        jobs = [_with(job, limit=job.limit or 300, output=_attached(job.output)) for job in jobs]
        if DATAGRAMS not in kinds:
            jobs[0] = _with(jobs[0], kind="forking", held=50, limit=200, steps=60, need=None)
    return jobs


def _attached(output: str) -> str:
    return "pipe" if output == "detached" else output


def _fault(rng: random.Random, kind: str, jobs: Sequence[PlannedJob]) -> Fault:
    job = 0 if kind == DATAGRAMS else rng.randrange(len(jobs))
    growing = jobs[job].kind == "growing"
    seconds = 3.6 if growing else jobs[job].seconds  # a growing one is at its limit then
    when = rng.choice(("launch", "start", "middle", "middle", "end"))
    if kind in (FRONT_INT, FRONT_TERM) and rng.random() < 0.6:
        when = "end"  # replacing a status that stands already
    if kind in (PAUSE, STOP, DATAGRAMS, OLD_RECORDING, OLD_JSON) and when != "launch":
        when = "middle"
    if when == "end" and growing:
        when = "middle"
    moment, at = {
        "launch": (LAUNCH, rng.uniform(0.0, 0.5)),
        "start": (START, rng.uniform(0.0, 0.15)),
        "middle": (START, rng.uniform(0.05, 0.9) * seconds),
        "end": (END, rng.uniform(0.0, 0.12)),
    }[when]
    if kind in AT_START:
        moment, at = LAUNCH, 0.0
    return Fault(kind, round(at, 3), job, moment, round(rng.uniform(0.4, 2.0), 2), rng.randrange(1 << 30))


def needed_cgroups(plan: Plan) -> tuple[str, ...]:
    """Controllers without which the round cannot be run here."""
    return ("memory", "pids") if plan.has(NO_THREADS, THREADS_AT_START) else ("memory",)
