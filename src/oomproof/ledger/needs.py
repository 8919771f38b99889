"""How much will it need? Declared; else what this very command held before; else nothing is known, and nothing is guessed."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.ledger.ledger_entries import Peak
from oomproof.records import dataclass, replace
from oomproof.units import MIB, format_size

# A command that held less than this before is not worth a queue: `oomproof run -- ls` must not wait for a training.
NEGLIGIBLE = 64 * MIB
AT_LEAST = "at least"  # begins the basis of a need that is only a lower bound
SPILL_ONLY = f"{AT_LEAST}: what --spill pins"  # all that is known of it


@dataclass(frozen=True, slots=True)
class Need:
    """An interval and how we know it. ``high`` is what is reserved."""

    low: int
    high: int
    basis: str
    gpu: int | None = None

    @property
    def sentence(self) -> str:
        return f"{format_size(self.high)} ({self.basis})"


def declared(size: int) -> Need:
    return Need(size, size, "--need")


def with_spill(need: Need | None, spill: int) -> Need | None:
    """Pinned beside what the job itself holds: peaks in the history are without it."""
    if not spill:
        return need
    if need is None:
        return Need(spill, spill, SPILL_ONLY)
    return replace(
        need,
        low=need.low + spill,
        high=need.high + spill,
        basis=f"{need.basis}, and {format_size(spill)} that --spill pins",
    )


def from_history(peaks: Sequence[Peak]) -> Need | None:
    """From the peaks of the same command, newest first. A run that was ended early only raises the lower bound."""
    whole = [peak.use for peak in peaks if peak.whole]
    cut = max((peak.use for peak in peaks if not peak.whole), default=0)
    gpu = max((peak.gpu or 0 for peak in peaks), default=0) or None
    if not whole and not cut:
        return None
    if not whole or cut > max(whole):
        early = sum(
            not peak.whole for peak in peaks
        )  # for memory, by a person, by an error: each held this much
        basis = f"the most it held in {early} runs" if early > 1 else "what it held in a run"
        return Need(cut, cut, f"{AT_LEAST}: {basis} that ended early", gpu)
    basis = f"the most it held in {len(whole)} runs" if len(whole) > 1 else "what it held in its last run"
    return Need(min(whole), max(whole), basis, gpu)


def usual_seconds(peaks: Sequence[Peak]) -> float | None:
    """How long this command takes: the middle of its whole runs."""
    lasted = sorted(peak.seconds for peak in peaks if peak.whole and peak.seconds is not None)
    return lasted[len(lasted) // 2] if lasted else None
