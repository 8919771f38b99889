"""Everything a rule may look at, in plain values: bytes, seconds of CLOCK_BOOTTIME, None for "not known"."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import TYPE_CHECKING, Literal

from oomproof.evidence.agent_files import AgentMessage, Crash
from oomproof.evidence.gpu_oom import GpuOom, Owner
from oomproof.guard.view import Figures
from oomproof.records import dataclass, field, fields

if TYPE_CHECKING:  # the parsers behind it are read in only for a run that failed
    from oomproof.evidence.texts.finding import Finding, TaskJob
    from oomproof.evidence.texts.text_case import TextCase
    from oomproof.recording.census_record import Census


_BESIDE = 120.0  # seconds: a shortage that took one job often takes the next


@dataclass(frozen=True, slots=True)
class Evidence:
    """One fact with its source. ``says`` is what it means in a few words, ``text`` the fact itself."""

    id: str
    source: str
    time: float | None  # wall-clock seconds
    text: str
    says: str


@dataclass(frozen=True, slots=True)
class Missing:
    """A source that could not be read, and what would open it."""

    source: str
    reason: str
    how_to_grant: str


@dataclass(frozen=True, slots=True)
class ExitStatus:
    code: int | None
    signal: int | None
    core: bool = False
    boottime: float | None = None
    wall: float | None = None
    leftovers: int = 0


@dataclass(frozen=True, slots=True)
class Counters:
    memcg_oom_kill: int | None = None
    memcg_oom: int | None = None
    memcg_failcnt: int | None = None
    vmstat_oom_kill: int | None = None
    memcg_peak: int | None = None
    oomd_kill: int | None = None

    def since(self, start: Counters) -> Counters:
        """How far each counter moved; None where either end is unknown. The peak is a level: it stays."""
        moved: dict[str, int | None] = {}
        for counter in fields(self):
            now, before = getattr(self, counter.name), getattr(start, counter.name)
            moved[counter.name] = None if now is None or before is None else max(0, now - before)
        moved["memcg_peak"] = self.memcg_peak
        return Counters(**moved)


@dataclass(frozen=True, slots=True)
class HostSample:
    t: float
    total: int
    available: int
    swap_total: int
    swap_free: int
    psi_full: float | None = None  # share of the last seconds in which every task stalled, 0..1
    # available at its lowest in the last seconds: after a kill there is headroom again
    lowest: int | None = None


@dataclass(frozen=True, slots=True)
class JobSample:
    t: float
    anon: int
    shmem: int
    file: int
    swap: int
    headroom: int | None  # bytes to the job's own limit
    processes: int
    shm_total: int | None
    shm_free: int | None
    rate: float = 0.0  # bytes a second that anon + shmem + swap grew over the last seconds

    @property
    def used(self) -> int:
        return self.anon + self.shmem + self.swap


@dataclass(frozen=True, slots=True)
class GpuSample:
    t: float
    index: int
    used: int
    total: int
    job_used: int | None


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """One process of the job as the recording knew it."""

    pid: int
    role: str
    name: str
    first: float
    last: float
    used: int  # anon + shmem + swap at its last sample
    share: int | None = None  # proportional: its own pages, and its part of the shared ones


@dataclass(frozen=True, slots=True)
class ProcessGrowth:
    """A process of the job that grew in its last minute."""

    pid: int
    name: str
    role: str
    before: int
    after: int
    seconds: float


@dataclass(frozen=True, slots=True)
class GrowthPlace:
    """A line that allocated what stayed."""

    file: str
    line: int
    function: str  # empty: not known
    owner: str  # what holds it, or the native functions that allocated it; empty: not known
    bytes: int  # in the witness's window
    witness: str


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of the job that went on to the end without levelling off."""

    kind: str  # growing, slowing, steps: as `oomproof trend` tells it
    phase: str  # in which nearly all of it grew; empty: in several, or not known
    bytes_per_second: float
    bytes_per_step: float | None
    steps: int | None
    seconds: float
    from_bytes: int
    to_bytes: int
    kept_in: str = ""  # the list or dict of the user's code that grew with it, and the line that adds to it
    cycle: str = ""  # of growth in steps: the phase, or the epoch, that each step comes with
    bytes_per_cycle: float | None = None
    made_at: str = ""  # the line that allocated most of it, as a tracer saw, in words
    where: tuple[GrowthPlace, ...] = ()  # the likeliest first
    not_a_leak: str = ""  # what malloc_trim proved
    workers: int = 0  # where most of it is theirs
    workers_bytes: int = 0  # what they grew by together


@dataclass(frozen=True, slots=True)
class OtherJob:
    """A job that is not this run's, as last seen before the end."""

    pid: int
    name: str
    uid: int | None
    managed: bool  # started by oomproof
    held: int  # RAM and swap
    swap: int
    grew: int  # in so many seconds
    seconds: float
    t: float
    job_grew: int = 0  # by how much this run's own job grew, from the beginning of those seconds to the end
    taken: int | None = None  # how much less the machine had available after that time
    run: str | None = None  # of a managed one: what commands call its run, where that is known

    @property
    def called(self) -> str:
        if not self.managed:
            return self.name
        return f"{self.name} of run {self.run}" if self.run else "another run of oomproof"

    @property
    def rate(self) -> float:
        return self.grew / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Action:
    """What somebody of ours did to the job: warn, ask, term, kill."""

    boottime: float
    wall: float | None
    by: str
    action: str
    why: str
    scope: str = ""  # of the guard's: for the sake of the job's own limit, or of the machine
    others_growth: bool = False  # the guard found that it was not this job that grew
    uncaught: bool = False  # of a SIGTERM: nobody in the job handled it
    reason: str = ""  # of the guard's, and the figures behind it: words of leaf/action_kinds.py
    figures: Figures = field(default_factory=Figures)


@dataclass(frozen=True, slots=True)
class KeeperEvent:
    boottime: float | None
    kind: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class KernelKill:
    """One victim of the kernel's OOM killer. ``total_vm`` is address space, never memory used."""

    time: float
    pid: int
    name: str
    constraint: str | None = None  # CONSTRAINT_NONE, _MEMCG, _CPUSET, _MEMORY_POLICY
    oom_memcg: str | None = None  # whose limit was hit
    task_memcg: str | None = None  # where the victim lived
    limit: int | None = None  # of oom_memcg
    total_vm: int | None = None
    anon_rss: int | None = None
    file_rss: int | None = None
    shmem_rss: int | None = None
    text: str = ""
    sure: bool = True  # False: of this job by its name and number, but in no sample of it
    job: TaskJob | None = None  # the victim's, by the report's list of tasks

    @property
    def by_limit(self) -> bool:
        return self.constraint == "CONSTRAINT_MEMCG"


@dataclass(frozen=True, slots=True)
class KernelFault:
    """A fault of one program in the kernel's words."""

    time: float
    pid: int
    name: str
    kind: str  # segfault, gpf, bus-error, abort, xid
    library: str | None = None
    null: bool = False  # an address in the first page: a null pointer
    text: str = ""
    says: str = ""
    strength: float = 1.0  # below 0.9: a note, or an aftermath of something else


@dataclass(frozen=True, slots=True)
class SilentHandler:
    """A branch of the job's own script that prints when something goes wrong, and printed nothing."""

    file: str
    line: int
    kind: str  # exception, nan
    catches: str  # "except RuntimeError", "a check for NaN"
    text: str  # the part of its message that would stand in the output
    sure: bool  # False: what it prints may have been lost in a buffer


@dataclass(frozen=True, slots=True)
class Twin:
    """The same command, running beside this one."""

    pid: int
    held: int  # by it and its descendants


@dataclass(frozen=True, slots=True)
class Output:
    """What the job printed. ``text`` is what the parsers found in its end, for a run that did not end well."""

    last_line: str = ""
    text: TextCase | None = None
    reason: str | None = "no output was recorded"  # why it could not be read
    empty: bool = False  # it printed nothing

    @property
    def failure(self) -> Finding | None:
        """The first failure of the chain that the job printed, if it printed any."""
        from oomproof.evidence.texts.root_failure import root

        return root(self.text.training) if self.text is not None else None


@dataclass(frozen=True, slots=True)
class Settings:
    limit: int | None = None
    floor: int | None = None
    margin: int | None = None
    grace: float | None = None
    stop_file: str | None = None


@dataclass(frozen=True, slots=True)
class Exit:
    """How it was started, how it ended, and what became of its machine."""

    status: ExitStatus | None = None  # None: no exit.json, nobody saw the end
    started: float | None = None  # CLOCK_BOOTTIME of the start
    started_wall: float | None = None
    keeper_alive: bool = False
    unguarded: bool = False  # it runs, and its guard does not
    waits: bool = False  # it was not started yet
    waits_for: tuple[str, ...] = ()  # in its front's words
    adopted: bool = False  # taken under watch while it ran: nobody of ours is its parent
    run_boot_id: str | None = None
    boot_id: str | None = None  # of the machine now
    elsewhere: str | None = None  # the host it ran on, if that is another machine than this one
    shutdown_wall: float | None = None  # an orderly shutdown right after the last sign of life
    next_boot_wall: float | None = None
    boots_recorded: bool = False  # by wtmp; else next_boot_wall is when the present boot began
    going_down: bool = False  # it was told to end while the machine was being shut down, in this very boot


@dataclass(frozen=True, slots=True)
class Limits:
    """What it was given: its settings, the limits around it, and the kernel's counters of them."""

    settings: Settings = Settings()
    flags: tuple[tuple[str, str], ...] = ()  # (--flag, value) as typed
    died_at: tuple[int, ...] = ()  # limits at which earlier runs of this command died for memory
    backend: str | None = None
    limit: int | None = None  # the cap the backend enforces, which may differ from what was asked
    cgroups: tuple[str, ...] = ()  # the job's own, as paths below the mount
    started_in: str | None = None  # where it has none of its own: the memory cgroup it was started in
    address_space: int | None = None  # its ulimit -v
    at_start: Counters = Counters()
    at_death: Counters = Counters()


@dataclass(frozen=True, slots=True)
class Samples:
    """What was measured from outside."""

    host: HostSample | None = None
    in_container: bool = False  # what ``host`` tells of is a cgroup above the run, smaller than the machine
    job: JobSample | None = None
    job_peak: int | None = None  # what it held at most, as ``recording/run_peak.py`` has it for everybody
    peak_source: str = "samples"
    sampled_peak: int | None = None  # the highest row of the recording
    gpus: tuple[GpuSample, ...] = ()
    spill: int = 0  # bytes of host memory that --spill had pinned
    shm_total: int | None = None  # /dev/shm as the job saw it, at exit or at the last sample
    shm_free: int | None = None
    shm_low: int | None = None  # the least free it was in the last seconds: a dead job has freed it
    processes: Mapping[int, ProcessSeen] = field(default_factory=dict)
    leader: int | None = None
    growth: Growth | None = None  # None: it levelled off, or it is not known
    grown: tuple[ProcessGrowth, ...] = ()  # its processes that grew in the last minute, most first
    others: tuple[OtherJob, ...] = ()  # the largest jobs beside it, largest first
    twin: Twin | None = None  # alive right after the end


@dataclass(frozen=True, slots=True)
class KernelLog:
    complete: bool = False  # it was readable, and its silence about our processes means something
    our_kills: tuple[KernelKill, ...] = ()
    other_kills: tuple[KernelKill, ...] = ()
    our_faults: tuple[KernelFault, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """What was seen from inside the job, by the agent in its Python."""

    seen: bool = False  # some process of the job was a Python that our agent was in
    phase: str = "unknown"
    step: int | None = None
    step_location: str = ""  # the user's line that made it
    loading_call: bool = False  # no step yet, and inside from_pretrained(), torch.load() or the like
    step_time: float | None = None  # when that step was made, or the phase entered
    openmp: str | None = None  # two OpenMP runtimes in one process
    crashes: tuple[Crash, ...] = ()  # fatal signals that Python itself saw, in any process of the job
    told: tuple[AgentMessage, ...] = ()
    censuses: tuple[Census, ...] = ()  # what its variables held: of one process, oldest first
    gpu_oom: GpuOom | None = None  # the last time the job's own allocator ran out
    host_owners: tuple[Owner, ...] = ()  # who held tensors when the host refused memory
    # the newest whole one that it wrote, where the agent told of none; as one types it in the job's folder
    checkpoint: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """What its source tells."""

    native: bool = False  # a compiled program that ran nothing but itself: no Python
    # it names no loader and no trainer: where its loading ends, nothing tells
    own_batches: bool = False
    loader: bool | None = None  # it has a data loader, by its source or its processes; None: not known
    no_batches: bool = False  # ... and neither they nor its arguments speak of a batch
    pool: str = ""  # what starts processes in its source, without a loader: Pool, ProcessPoolExecutor
    pool_size: int = 0  # as written there; 0: not as a number
    beliefs: frozenset[str] = frozenset()  # supposed cures that it holds
    silent: tuple[SilentHandler, ...] = ()


@dataclass(frozen=True, slots=True)
class CaseFile:
    """One attempt as it was found, or texts without one. Any part may be missing; the rules say what they can."""

    run: str | None = None
    name: str | None = None  # given by the user
    attempt: int | None = None
    retried: bool = False  # others may follow
    argv: tuple[str, ...] = ()
    folder: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)  # what was kept of it

    exit: Exit = Exit()
    limits: Limits = Limits()
    samples: Samples = Samples()
    kernel: KernelLog = KernelLog()
    agent: AgentFacts = AgentFacts()
    program: Program = Program()
    output: Output = Output()

    actions: tuple[Action, ...] = ()
    # whether the job acted on a request to stop
    stop_answer: Literal["heard", "may", "none", "unknown"] = "unknown"
    keeper_events: tuple[KeeperEvent, ...] = ()

    # what a person gave to be read: logs of a job that need not be a run of ours
    texts: TextCase | None = None

    evidence: tuple[Evidence, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def called(self) -> str | None:
        """What commands call it by: a name that a shell takes for several words is not typed."""
        called = self.name if self.name and quote(self.name) == self.name else self.run
        return f"{called}/{self.attempt}" if called and self.retried else called

    @property
    def held(self) -> int:
        """What the job held at most; 0 where nothing tells."""
        return self.samples.job_peak or (self.samples.job.used if self.samples.job is not None else 0)

    @property
    def moved(self) -> Counters:
        return self.limits.at_death.since(self.limits.at_start)

    @property
    def kernel_killed(self) -> bool:
        """The kernel's OOM killer took a process of ours; for whose lack of memory is another question."""
        return any(kill.sure for kill in self.kernel.our_kills) or (self.moved.memcg_oom_kill or 0) > 0

    @property
    def may_be_kernel_killed(self) -> bool:
        """The same, or a process like ours."""
        return bool(self.kernel.our_kills) or self.kernel_killed

    @property
    def kills_beside(self) -> tuple[KernelKill, ...]:
        """Kills of others around the end, which tell that memory was short then; those of another day tell nothing."""
        end = self.last_sign
        return tuple(
            kill for kill in self.kernel.other_kills if end is not None and abs(end - kill.time) <= _BESIDE
        )

    @property
    def rebooted(self) -> bool:
        if self.exit.elsewhere is not None:  # another machine's boot id says nothing about a reboot
            return False
        return (
            self.exit.run_boot_id is not None
            and self.exit.boot_id is not None
            and self.exit.run_boot_id != self.exit.boot_id
        )

    @property
    def last_sign(self) -> float | None:
        """The last moment anything was written down, CLOCK_BOOTTIME of the run's boot."""
        times = [
            self.samples.host.t if self.samples.host else None,
            self.samples.job.t if self.samples.job else None,
            self.exit.started,
        ]
        if self.exit.status is not None:
            times.append(self.exit.status.boottime)
        known = [moment for moment in times if moment is not None]
        return max(known, default=None)

    @property
    def last_sign_wall(self) -> float | None:
        if self.last_sign is None or self.exit.started is None or self.exit.started_wall is None:
            return self.exit.started_wall
        return self.exit.started_wall + max(0.0, self.last_sign - self.exit.started)

    @property
    def slowed(self) -> str:
        """That it was slow for lack of page cache, as it was told last; empty where it was not."""
        return next(
            (message.text for message in reversed(self.agent.told) if message.kind == "page-cache"), ""
        )

    @property
    def lost_programs(self) -> list[str]:
        """Programs inside the job that died of memory, oldest first."""
        return [message.text for message in self.agent.told if message.kind == "program-lost"]

    def evidence_from(self, *prefixes: str) -> tuple[str, ...]:
        """Ids of the evidence whose id starts with one of these, in order."""
        return tuple(item.id for item in self.evidence if item.id.startswith(prefixes))
