"""What the live view shows, at one moment: plain values. `live_reader` reads them, `top` and `status` draw them."""

from __future__ import annotations

from typing import Any

from oomproof.records import dataclass
from oomproof.trend.leaks import Range

RUNNING, PAUSED, WAITING, UNMANAGED = "running", "paused", "waiting", "unmanaged"

SCHEMA = 1
STALE = 10.0  # seconds: an older word of a run about itself is not of now


@dataclass(frozen=True, slots=True)
class MachineState:
    """Bytes. RAM is the smaller of the machine's and of the limit over this shell, as in `check`."""

    total: int
    available: int
    margin: int
    floor: int
    swap_total: int = 0  # on disk
    swap_free: int = 0
    zram_total: int = 0
    limited: bool = False  # a limit over this shell is the machine here
    runs: int = 0  # RAM that runs of oomproof hold
    reserved: int = 0  # what they have yet to take of what was reserved for them
    some_avg10: float | None = None  # pressure, percent; None: the kernel does not tell
    full_avg10: float | None = None

    @property
    def used(self) -> int:
        return max(0, self.total - self.available)

    @property
    def unmanaged(self) -> int:
        """All that is in use and no run's: unmanaged jobs, the desktop, the kernel."""
        return max(0, self.used - self.runs)

    @property
    def reserved_shown(self) -> int:
        """Of what is available; more than that cannot be drawn."""
        return min(self.reserved, self.available)

    @property
    def free(self) -> int:
        return max(0, self.available - self.reserved)


@dataclass(frozen=True, slots=True)
class CardState:
    """One GPU. None where the driver does not tell; without ``total`` it lives in the machine's RAM."""

    index: int
    name: str
    total: int | None = None
    used: int | None = None
    runs: int | None = None  # of runs of oomproof, as their recordings have it
    reserved: int = 0
    note: str = ""

    @property
    def unmanaged(self) -> int | None:
        if self.used is None or self.runs is None:
            return None
        return max(0, self.used - self.runs)

    @property
    def free(self) -> int | None:
        if self.total is None or self.used is None:
            return None
        return max(0, self.total - self.used - self.reserved)


@dataclass(frozen=True, slots=True)
class JobState:
    """A run of oomproof that lives or waits, or an unmanaged job. None is "not known", never zero."""

    id: str  # the run's; of an unmanaged job its pid
    name: str
    state: str
    command: str = ""
    uid: int | None = None
    mine: bool = True  # this user's: another one's can be looked at only
    pid: int | None = None
    processes: int | None = None
    seconds: float | None = None  # since its start
    phase: str = ""
    step: int | None = None
    use: int | None = None  # RAM and swap, shared pages once
    swap: int = 0
    exact: bool = True  # False: what is shared had to be estimated
    gpu_used: int | None = None  # by the driver, on all cards
    gpu_allocated: int | None = None  # by PyTorch
    gpu_reserved: int | None = None
    limit: int | None = None  # the user's
    cap: int | None = None  # what is enforced: the limit, or what leaves the machine its floor
    limit_by: str = ""
    rate: float | None = None  # bytes a second over the last minute
    full_in: Range | None = None  # seconds
    peak: int | None = None
    peak_before: int | None = None  # of this command's last run, without what --spill pinned
    spill: int = 0  # of what it holds, pinned for its card
    need: int | None = None
    reserved: int = 0  # bytes of RAM it has yet to take
    protected: bool = False
    paused_by: str = ""  # guard or user
    paused_until: float | None = None  # wall time; None: until somebody resumes it
    gpu_given_back: bool = False
    reasons: tuple[str, ...] = ()  # of a waiting one: what for, and who is in the way; of a paused one: why
    message: str = ""  # what the guard said of it last
    message_age: float | None = None  # seconds

    @property
    def managed(self) -> bool:
        return self.state != UNMANAGED

    @property
    def ram(self) -> int | None:
        return None if self.use is None else max(0, self.use - self.swap)


@dataclass(frozen=True, slots=True)
class LiveSnapshot:
    wall: float
    machine: MachineState
    cards: tuple[CardState, ...] = ()
    jobs: tuple[JobState, ...] = ()
    troubles: tuple[str, ...] = ()  # what could not be read, in words


def to_json(snapshot: LiveSnapshot) -> dict[str, Any]:
    """`top --json`, schema 1. Sizes are bytes, times seconds; null is "not known"."""
    machine = snapshot.machine
    return {
        "schema": SCHEMA,
        "time": snapshot.wall,
        "machine": {
            "total_bytes": machine.total,
            "available_bytes": machine.available,
            "runs_bytes": machine.runs,
            "unmanaged_bytes": machine.unmanaged,
            "reserved_bytes": machine.reserved,
            "free_bytes": machine.free,
            "margin_bytes": machine.margin,
            "floor_bytes": machine.floor,
            "swap_total_bytes": machine.swap_total,
            "swap_free_bytes": machine.swap_free,
            "zram_total_bytes": machine.zram_total,
            "limited": machine.limited,
            "pressure": None
            if machine.some_avg10 is None
            else {"some_avg10": machine.some_avg10, "full_avg10": machine.full_avg10},
        },
        "gpus": [
            {
                "index": card.index,
                "name": card.name,
                "total_bytes": card.total,
                "used_bytes": card.used,
                "runs_bytes": card.runs,
                "unmanaged_bytes": card.unmanaged,
                "reserved_bytes": card.reserved,
                "free_bytes": card.free,
                "note": card.note or None,
            }
            for card in snapshot.cards
        ],
        "jobs": [_job_json(job) for job in snapshot.jobs],
        "troubles": list(snapshot.troubles),
    }


def _job_json(job: JobState) -> dict[str, Any]:
    full = job.full_in
    return {
        "run": job.id if job.managed else None,
        "name": job.name,
        "state": job.state,
        "command": job.command,
        "uid": job.uid,
        "pid": job.pid,
        "processes": job.processes,
        "seconds": job.seconds,
        "phase": job.phase or None,
        "step": job.step,
        "use_bytes": job.use,
        "swap_bytes": None if job.use is None else job.swap,
        "exact": job.exact,
        "gpu_used_bytes": job.gpu_used,
        "gpu_allocated_bytes": job.gpu_allocated,
        "gpu_reserved_bytes": job.gpu_reserved,
        "limit_bytes": job.limit,
        "cap_bytes": job.cap,
        "limit_enforced_by": job.limit_by or None,
        "bytes_per_second": job.rate,
        "full_in_seconds": None
        if full is None
        else {"low": full.low, "expected": full.expected, "high": finite(full.high)},
        "peak_bytes": job.peak,
        "peak_before_bytes": job.peak_before,
        "spill_bytes": job.spill,
        "need_bytes": job.need,
        "reserved_bytes": job.reserved,
        "protected": job.protected,
        "paused_by": job.paused_by or None,
        "paused_until": job.paused_until,
        "gpu_given_back": job.gpu_given_back,
        "reasons": list(job.reasons),
        "message": job.message or None,
        "message_age_seconds": job.message_age,
    }


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if value < float("inf") else None
