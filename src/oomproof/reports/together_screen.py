"""What `oomproof check --together` shows: the set, the sum, and what would make it fit, on one screen; the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oomproof.ledger.together import Part, Together
from oomproof.reports.table_text import folded, table
from oomproof.units import MIB, format_size

_WAYS = {
    "swap": "{size} more disk swap (not zram): slow while all work at once, so pause one for the other; oomproof "
    "pauses the newest by itself, and a paused job lies on disk",
    "smaller": "{name} smaller: at most {size} (batch, workers, sequence length, a quantized model)",
    "close": "close {size} of everything else; to see what holds it: oomproof check",
}


def screen(answer: Together, width: int, add_swap: str = "") -> list[str]:
    """``add_swap``: the command that adds the swap that is missing."""
    lines = [*_headline(answer, width), "", *_sum(answer, width), ""]
    if remedies := list(answer.remedies()):
        lines.append("What would make it fit at once")
        for remedy in remedies:
            text = _WAYS[remedy.way].format(size=format_size(remedy.size), name=remedy.name)
            lines += folded("  [ ] ", text, width)
            lines += [f"        {add_swap}"] if remedy.way == "swap" and add_swap else []
        lines.append("")
    if not answer.turns:
        return [
            *lines,
            f"Next: make {answer.never[0].name} smaller, then ask again: oomproof check --together ...",
        ]
    lines.append("Next:")
    if len(answer.turns) > 1:
        text = "in turns: with its need given, each waits by itself until those before are done"
        lines[-1:] = folded("Next, ", text, width)
    return lines + [line for turn in answer.turns for line in _turn(turn, answer)]


def _headline(answer: Together, width: int) -> list[str]:
    spare, margin = answer.spare, answer.budget.margin
    text = f"{format_size(answer.wanted)} wanted, {_has(answer)}, margin {format_size(margin)}: "
    if -spare > margin:
        text += f"short by {format_size(-spare - margin)}, with the margin by {format_size(-spare)}"
    else:
        text += (
            f"{format_size(spare)} to spare"
            if spare >= 0
            else f"short by {format_size(-spare)} of the margin"
        )
    if answer.status == "fits":
        if (in_swap := answer.wanted + margin - answer.budget.total) > 0:
            text += f", {format_size(in_swap)} of it in swap: slow when all work at once"
        return folded("Fits together: ", text, width)
    never = "".join(f"{part.name} alone does not fit on this machine; " for part in answer.never)
    return folded("Never: " if never else "Not together: ", never + text, width)


def _has(answer: Together) -> str:
    swap = answer.budget.swap_total
    return f"{format_size(answer.budget.total)} RAM, {format_size(swap) if swap else 'no'} disk swap"


def _sum(answer: Together, width: int) -> list[str]:
    margin, zram = answer.budget.margin, answer.budget.zram_total
    rows = [("", "WANTS", "HOW WE KNOW")]
    for part in answer.parts:
        held = f"; runs and holds {format_size(part.held)}" if part.running else ""
        rows.append((part.name, format_size(part.wanted), part.basis + held))
    rows += [
        ("everything else", format_size(answer.rest), answer.rest_basis),
        ("margin", format_size(margin), "keeps the desktop usable"),
        ("together", format_size(answer.wanted + margin), ""),
        ("this machine", format_size(answer.memory), _has(answer)),
    ]
    if zram:
        rows.append(("", "", f"{format_size(zram)} zram is no memory"))
    return table(rows, width, shrink={2: 20, 0: 12}, right=(1,))


def _turn(turn: Sequence[Part], answer: Together) -> list[str]:
    """The jobs of a turn, what must be closed for it, and the commands that start those that do not run yet."""
    wanted = sum(part.wanted for part in turn)
    close = wanted - (answer.memory - answer.budget.margin - answer.rest)
    first = f"; first close {format_size(close)} of everything else" if close > 0 else ""
    lines = [f"  {' + '.join(part.name for part in turn)}: {format_size(wanted)}{first}"]
    for part in turn:
        size = -(-part.wanted // MIB)  # rounded up, to type
        need = f"{size // 1024}G" if size % 1024 == 0 else f"{size}M"
        command = f"oomproof run --need {need} --name {part.name} -- {part.command or 'CMD'}"
        lines += [] if part.running else [f"    {command}"]
    return lines


def to_json(answer: Together) -> dict[str, Any]:
    """Schema 1; sizes in bytes."""
    return {
        "schema": 1,
        "status": answer.status,
        "wanted_bytes": answer.wanted,
        "memory_bytes": answer.memory,
        "short_by_bytes": max(0, answer.wanted - answer.memory),
        "short_with_margin_bytes": max(0, -answer.spare),
        "everything_else_bytes": answer.rest,
        "jobs": [
            {"name": part.name, "need_bytes": part.need, "held_bytes": part.held, "wanted_bytes": part.wanted,
             "running": part.running, "basis": part.basis, "fits_alone": part not in answer.never}
            for part in answer.parts
        ],
        "turns": [
            {"jobs": [part.name for part in turn], "wanted_bytes": sum(part.wanted for part in turn)}
            for turn in answer.turns
        ],
        "remedies": [
            {"way": remedy.way, "bytes": remedy.size, "job": remedy.name or None} for remedy in answer.remedies()
        ],
    }  # fmt: skip
