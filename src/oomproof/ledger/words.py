"""The queue in words: what is missing, who is in the way, when it may be over."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.ledger.admission import Decision
from oomproof.ledger.budget import answer
from oomproof.ledger.picture import Picture, Standing
from oomproof.printable import one_line
from oomproof.units import format_duration, format_size

_SHOWN = 5


def run_words(one: Standing) -> str:
    """ "train holds 12.1 GiB, 4.0 GiB more promised, about 40 min left"."""
    claim, entry = one.claim, one.entry
    paused = " (paused)" if one.paused else ""
    parked = f" ({format_size(claim.parked)} of it moved here from its GPU)" if claim.parked else ""
    parts = [f"{one_line(entry.name)}{paused} holds {format_size(claim.held)}{parked}"]
    if claim.yet:
        what = "more promised" if claim.short else "more at its present growth"
        parts.append(f"{format_size(claim.yet)} {what}")
    if claim.gpu_need:
        parts.append(f"{format_size(claim.gpu_need)} on GPU {claim.gpu}")
    if one.left is not None:
        parts.append(f"about {format_duration(one.left)} left")
    return ", ".join(parts)


def waiting_words(
    picture: Picture,
    need: int,
    decision: Decision,
    strangers: Sequence[str] = (),
    gpu_sentence: str = "",
) -> list[str]:
    """Why it does not start now: the arithmetic, who is in the way, when."""
    lines = []
    if decision.short_by or not decision.gpu_short_by:
        lines.append(answer(picture.budget, need).sentence)
    if decision.gpu_short_by and gpu_sentence:
        lines.append(gpu_sentence)
    in_the_way = sorted(picture.running, key=lambda one: -one.claim.gives)
    for one in in_the_way[:_SHOWN]:
        lines.append(f"  in the way: {run_words(one)}")
    if len(in_the_way) > _SHOWN:
        rest = sum(one.claim.gives for one in in_the_way[_SHOWN:])
        lines.append(f"  and {len(in_the_way) - _SHOWN} more runs with {format_size(rest)}")
    lines += [f"  not a run of oomproof's: {text}" for text in strangers]
    if picture.strangers:
        lines.append(f"  other processes grow: {format_size(picture.strangers)} kept for them")
    if decision.behind:
        ahead = {entry.run: entry for entry in picture.waiting}
        for run in decision.behind[:_SHOWN]:
            if run in ahead:
                lines.append(
                    f"  waits before it: {one_line(ahead[run].name)}, needs {format_size(ahead[run].need)}"
                )
    return lines


def when_words(picture: Picture, decision: Decision) -> str:
    if decision.verdict != "short" or decision.gpu_short_by:
        return "when: unknown"
    seconds = picture.seconds_until(decision.short_by)
    return (
        "when: unknown"
        if seconds is None
        else f"when: in about {format_duration(seconds)}, if they take as long as before"
    )
