"""One thing a text says, with the lines that say it."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    details: dict[str, str] = field(default_factory=dict)  # exception, message, file:line, rank …
    newest_first: bool = False  # the text is `journalctl -r` or `dmesg | tac`: its first line is the latest

    @property
    def place(self) -> int:
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
