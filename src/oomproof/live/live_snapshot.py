"""What the live view shows, at one moment: plain values. `live_reader` reads them, `top` and `status` draw them."""

from __future__ import annotations

from typing import Any

from oomproof.records import asdict, dataclass
from oomproof.trend.leaks import Range
from oomproof.units import sizes_json

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
    pressure = {"some_avg10": machine.some_avg10, "full_avg10": machine.full_avg10}
    return {
        "schema": SCHEMA,
        "time": snapshot.wall,
        "machine": {
            **sizes_json(
                machine, "total", "available", "runs", "unmanaged", "reserved", "free", "margin", "floor"
            ),
            **sizes_json(machine, "swap_total", "swap_free", "zram_total"),
            "limited": machine.limited,
            "pressure": None if machine.some_avg10 is None else pressure,
        },
        "gpus": [
            {
                "index": card.index,
                "name": card.name,
                **sizes_json(card, "total", "used", "runs", "unmanaged", "reserved", "free"),
                "note": card.note or None,
            }
            for card in snapshot.cards
        ],
        "jobs": [_job_json(job) for job in snapshot.jobs],
        "troubles": list(snapshot.troubles),
    }


# fields of a job whose key in JSON is not their name
_KEYS = {
    "id": "run",
    "limit_by": "limit_enforced_by",
    "rate": "bytes_per_second",
    "full_in": "full_in_seconds",
    "message_age": "message_age_seconds",
} | {
    name: f"{name}_bytes"
    for name in (
        "use", "swap", "gpu_used", "gpu_allocated", "gpu_reserved", "limit", "cap", "peak", "peak_before", "spill", "need",
        "reserved",
    )
}  # fmt: skip
_NULL_IF_EMPTY = ("phase", "limit_by", "paused_by", "message")


def _job_json(job: JobState) -> dict[str, Any]:
    """The record's fields; ``mine`` is of whoever looks, and not told."""
    values = {name: value for name, value in asdict(job).items() if name != "mine"}
    values |= {name: None for name in _NULL_IF_EMPTY if not values[name]}
    values["id"] = job.id if job.managed else None
    values["swap"] = None if job.use is None else job.swap
    values["reasons"] = list(job.reasons)
    if job.full_in is not None:
        values["full_in"]["high"] = finite(job.full_in.high)
    return {_KEYS.get(name, name): value for name, value in values.items()}


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if value < float("inf") else None
