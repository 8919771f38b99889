"""One thing a text says, with the lines that say it."""

from __future__ import annotations

from typing import Literal

from oomproof.records import dataclass

# failure: the process that writes it has failed. summary: somebody else (launcher, shell) tells of a death.
# wrapper: repeats an error that stands elsewhere. talk: the words without the failure.
Kind = Literal["failure", "summary", "wrapper", "talk"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """A kernel's victim, as printed: bytes, None where the text does not say."""

    pid: int | None = None
    name: str | None = None
    total_vm: int | None = None
    anon_rss: int | None = None
    file_rss: int | None = None
    shmem_rss: int | None = None


@dataclass(frozen=True, slots=True)
class GpuNumbers:
    """The numbers of a CUDA (or other GPU) out-of-memory sentence, in bytes."""

    index: int | None = None
    total: int | None = None
    free: int | None = None
    requested: int | None = None
    allocated: int | None = None
    reserved_unallocated: int | None = None
    own: int | None = None  # this process, with context and libraries
    neighbours: int | None = None  # other processes on the card
    neighbour_pids: tuple[int, ...] = ()  # the largest first


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What a job's own output says of an error. ``heard`` is empty where the text is not a job's output."""

    heard: str = ""  # traceback, exception, line, summary, quoted, cut, loss, end
    kind: Kind | None = None
    role: str = ""  # root, consequence, noise
    phase: str = ""  # load, train, eval, generate, save, unknown
    rank: str = ""  # whose line it is, where a launcher says so
    exception: str = ""  # its type
    message: str = ""
    chained: bool = False  # another exception stands above it in the same chain
    ordinary: int = 0  # lines before it that tell of no error
    signs: int = 0  # signs of progress before it
    first_exit: int | None = None  # of the process that a launcher calls the first to fail
    signal: int | None = None
    requested: int | None = None  # bytes that the host refused
    victim_name: str | None = None
    echo: bool = False  # a connection broke because the other side had gone
    cancelled: bool = False  # by a scheduler that does not say why
    goes_on: bool = False  # a script's other commands may follow
    ended: bool = False  # nobody caught the exception: its process ended there
    thread: bool = False  # raised in a thread, which then ends without its process


@dataclass(frozen=True, slots=True)
class TaskJob:
    """Rows of the kernel's task table that are one job; bytes."""

    name: str | None
    uid: int | None
    pids: tuple[int, ...]
    ram: int  # of their own; a page that several of them map stands once, as far as the report tells
    swap: int
    workers: int = 0  # of the processes, how many are alike and were started by another of them
    loader: bool = False  # a DataLoader's: by their name, or begun long after a large parent
    each: int = 0  # what the middle one of those held, in RAM and swap

    @property
    def held(self) -> int:
        return self.ram + self.swap


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """The machine as an OOM report shows it (Mem-Info); bytes, None where the text does not say."""

    ram: int | None = None
    free: int | None = None
    swap_total: int | None = None
    swap_free: int | None = None


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What a kernel's line or report adds to the victim and its limit."""

    constraint: str | None = None  # CONSTRAINT_NONE …, as printed
    task_memcg: str | None = None  # where the victim lived
    jobs: tuple[TaskJob, ...] = ()  # heaviest first
    machine: MachineMemory = MachineMemory()
    asked_by: str | None = None  # whose request found no memory; the victim is another one as often as not
    asked: int | None = None  # bytes of that request
    table_rss: int | None = None  # of the victim, by the task table
    page_size: int | None = None  # where the report tells it
    library: str | None = None  # that a fault happened in
    null: bool = False  # a null pointer was followed
    xid: int | None = None
    bus: str | None = None  # the GPU's address
    notice: str | None = None  # a kind of trouble that kills nobody

    def job_of(self, pid: int | None) -> TaskJob | None:
        return next((job for job in self.jobs if pid in job.pids), None)


@dataclass(frozen=True, slots=True)
class GuardFacts:
    """What a guard, an engine or systemd says beside the victim."""

    by: str = ""  # who tells it, where the cause alone does not say
    unit: str | None = None
    why: str | None = None
    signal: str | None = None  # SIGTERM; "SIGTERM, then SIGKILL"
    held: int | None = None  # bytes the victim or its cgroup held
    age: int | None = None  # seconds ago, when the list was printed


@dataclass(frozen=True, slots=True)
class Finding:
    """``cause`` is a slug of the design. ``strength`` is how far this text alone settles it: 1 proves it."""

    cause: str
    source: str  # file name, "-" for standard input
    line: int  # 1-based, of the line that settles it
    text: str  # the line or lines, at most 600 characters
    says: str  # the same in plain words
    strength: float
    time: str | None = None  # as printed, or ISO where it is certain
    seconds: float | None = None  # for ordering, where known: since boot or since the epoch
    victim: Sizes | None = None
    gpu: GpuNumbers | None = None
    cgroup: str | None = None
    limit: int | None = None
    pids: tuple[int, ...] = ()  # every pid the text ties to this death
    job: JobFacts = JobFacts()
    kernel: KernelFacts = KernelFacts()
    guard: GuardFacts = GuardFacts()
    newest_first: bool = False  # the text is `journalctl -r` or `dmesg | tac`: its first line is the latest

    @property
    def sort_key(self) -> int:
        """For comparing findings of one text: the later it happened, the larger."""
        return -self.line if self.newest_first else self.line


@dataclass(frozen=True, slots=True)
class Progress:
    """The last sign of progress in a training log."""

    step: int | None = None
    total: int | None = None
    epoch: float | None = None
    phase: str = "unknown"  # load, train, eval, generate, save, unknown
    line: int = 0
    text: str = ""
    trained: bool = False  # some sign, if not the last, was of training
    epochs: int | None = None  # as planned
    bar: tuple[int, int] | None = None  # the last (step, total) that was told
    uptime: float | None = None  # seconds that the last bar had run
    stride: int = 1  # steps from one sign to the next, where they are told at a steady pace
    at_end: bool = False  # the text stops with it
    cut_off: bool = False  # the text stops inside a block of lines that was whole at the steps before
    source: str = ""
    loading: bool = False  # the step is a bar's that loads weights, maps a data set, downloads

    @property
    def unfinished(self) -> bool | None:
        """Whether the text stops before the end of its own count; None: it counts without an end."""
        if not self.at_end:
            return False
        if (self.bar is not None and not self.counted_out) or self.cut_off:
            return True
        if self.epochs is not None and self.epoch is not None:
            return self.epoch + 1 < self.epochs  # counted from 0 or from 1: the last one is left out
        return False if self.bar is not None else None

    @property
    def counted_out(self) -> bool:
        """Whether the bar has nothing more to tell: of 542 steps, every tenth of which is told, 540 is the last."""
        return self.bar is not None and self.bar[0] + self.stride > self.bar[1]

    @property
    def training_step(self) -> int | None:
        return None if self.loading else self.step
