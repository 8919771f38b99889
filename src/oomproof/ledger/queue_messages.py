"""The queue in words: what is missing, who is in the way, when it may be over."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.ledger.admission import Decision
from oomproof.ledger.budget import answer
from oomproof.ledger.ledger_snapshot import LedgerRun, LedgerSnapshot
from oomproof.printable import one_line
from oomproof.units import format_duration, format_size

_SHOWN = 5


def run_text(running: LedgerRun) -> str:
    """ "train holds 12.1 GiB, 4.0 GiB more reserved, about 40 min left"."""
    claim, entry = running.claim, running.entry
    paused = " (paused)" if running.paused else ""
    parked = f" ({format_size(claim.parked)} of it moved here from its GPU)" if claim.parked else ""
    spill = f" ({format_size(running.spill)} of it pinned by --spill)" if running.spill else ""
    parts = [f"{one_line(entry.name)}{paused} holds {format_size(claim.held)}{parked}{spill}"]
    if claim.yet:
        what = "more reserved" if claim.short else "more at its present growth"
        parts.append(f"{format_size(claim.yet)} {what}")
    if claim.gpu_need:
        parts.append(f"{format_size(claim.gpu_need)} on GPU {claim.gpu}")
    if running.left is not None:
        parts.append(f"about {format_duration(running.left)} left")
    return ", ".join(parts)


def waiting_text(
    snapshot: LedgerSnapshot,
    need: int,
    decision: Decision,
    unmanaged: Sequence[str] = (),
    gpu_sentence: str = "",
) -> list[str]:
    """Why it does not start now: the arithmetic, who is in the way, when."""
    lines = []
    if decision.short_by or not decision.gpu_short_by:
        lines.append(answer(snapshot.budget, need).sentence)
    if decision.gpu_short_by and gpu_sentence:
        lines.append(gpu_sentence)
    in_the_way = sorted(snapshot.running, key=lambda running: -running.claim.gives)
    for blocker in in_the_way[:_SHOWN]:
        lines.append(f"  in the way: {run_text(blocker)}")
    if len(in_the_way) > _SHOWN:
        rest = sum(blocker.claim.gives for blocker in in_the_way[_SHOWN:])
        lines.append(f"  and {len(in_the_way) - _SHOWN} more runs with {format_size(rest)}")
    lines += [f"  unmanaged: {text}" for text in unmanaged]
    if snapshot.unmanaged:
        lines.append(f"  other processes grow: {format_size(snapshot.unmanaged)} reserved for them")
    if decision.behind:
        ahead = {entry.run: entry for entry in snapshot.waiting}
        for run in decision.behind[:_SHOWN]:
            if run in ahead:
                lines.append(
                    f"  waits before it: {one_line(ahead[run].name)}, needs {format_size(ahead[run].need)}"
                )
    return lines


def when_text(snapshot: LedgerSnapshot, decision: Decision) -> str:
    if decision.verdict != "short" or decision.gpu_short_by:
        return "when: unknown"
    seconds = snapshot.seconds_until(decision.short_by)
    return (
        "when: unknown"
        if seconds is None
        else f"when: in about {format_duration(seconds)}, if they take as long as before"
    )
