"""What is known of a machine that went down under its runs, in plain values: wall-clock seconds and bytes."""

from __future__ import annotations

from typing import NamedTuple

from oomproof.evidence.case_file import OtherJob
from oomproof.records import dataclass


class HostPoint(NamedTuple):
    wall: float
    total: int
    available: int
    swap_total: int
    swap_free: int
    psi_full: int | None = None  # microseconds since boot in which every task stalled


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run that was alive then. ``use`` are (wall, bytes), oldest first, at least the last sample."""

    id: str
    name: str
    command: str
    started: float | None
    held: int
    use: tuple[tuple[float, int], ...] = ()
    need: int | None = None  # what it would have taken in all
    need_basis: str = ""  # how that is known
    at_least: bool = False  # the need is a lower bound: a run of the same command got that far and died
    allowed: int | None = None  # its --limit: the most it could have taken, not what it would have
    started_again: float | None = None
    flags: tuple[tuple[str, str], ...] = ()  # (--flag, value) as typed


@dataclass(frozen=True, slots=True)
class OutageFacts:
    boot_id: str
    last_sign: float  # the last moment anything was written down
    runs: tuple[RunFacts, ...]
    host: tuple[HostPoint, ...] = ()
    others: tuple[OtherJob, ...] = ()  # jobs that are no runs of oomproof, largest first, as last seen
    next_boot: float | None = None
    boots_recorded: bool = False  # by wtmp; else next_boot is when the present boot began
    shutdown: float | None = None  # an orderly one, as wtmp or the keepers tell
    shutdown_told_by: str = ""
    kernel_kills: tuple[tuple[float, str], ...] = ()  # (wall, words), from a journal kept over the reboot
    panic: str | None = None
    timeline: tuple[tuple[float, str], ...] = ()
    available_now: int | None = None
    missing: tuple[tuple[str, str], ...] = ()  # (source, reason)
