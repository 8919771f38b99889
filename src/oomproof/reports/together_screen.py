"""What `oomproof check --together` shows: the set, the sum, and what would make it fit, on one screen; the same as JSON."""

from __future__ import annotations

from typing import Any

from oomproof.ledger.together import Remedy, Together
from oomproof.reports.table_text import folded, table
from oomproof.units import GIB, MIB, format_size

SCHEMA = 1


def screen(answer: Together, width: int, add_swap: str = "", note: str = "") -> list[str]:
    """``add_swap``: the command that adds what is missing. ``note``: what the user should know of how it was counted."""
    lines = [*folded(*_headline(answer), width), "", *_sum(answer, width), ""]
    if note:
        lines += [*folded("note: ", note, width), ""]
    if answer.status != "fits":
        lines += [*_turns(answer, width), "", "What would make it fit"]
        for remedy in answer.remedies:
            lines += _remedy(remedy, answer, width, add_swap)
        lines.append("")
    return [*lines, *_next(answer)]


def _headline(answer: Together) -> tuple[str, str]:
    budget = answer.budget
    has = f"{format_size(budget.total)} RAM"
    has += f" + {format_size(budget.swap_total)} disk swap" if budget.swap_total else ", no disk swap"
    wanted = f"{format_size(answer.wanted)} wanted, {has}, margin {format_size(budget.margin)}"
    if answer.status == "fits":
        spare = answer.memory - answer.wanted - budget.margin
        slow = (
            f", {format_size(answer.in_swap)} of it in swap: slow when all work at once"
            if answer.in_swap
            else ""
        )
        return "Fits together: ", f"{wanted}: {format_size(spare)} to spare{slow}"
    short = f"short by {format_size(answer.short)}, with the margin by {format_size(answer.short_by)}"
    if not answer.short:
        short = f"short by {format_size(answer.short_by)} of the margin"
    if answer.status == "never":
        largest = max(answer.parts, key=lambda part: part.wanted)
        return "Never: ", f"{largest.name} alone does not fit on this machine; {wanted}: {short}"
    return "Not together: ", f"{wanted}: {short}"


def _sum(answer: Together, width: int) -> list[str]:
    budget = answer.budget
    rows = [("", "WANTS", "HOW WE KNOW")]
    for part in answer.parts:
        held = f"; runs and holds {format_size(part.held)}" if part.running else ""
        more = ", which is more" if part.running and part.held > part.need else ""
        rows.append((part.name, format_size(part.wanted), f"{part.basis}{held}{more}"))
    if answer.rest > answer.rest_now:
        basis = f"as you say; now {format_size(answer.rest_now)}"
    else:
        basis = "what is in use now beyond these"
    rows.append(("everything else", format_size(answer.rest), basis))
    rows.append(("margin", format_size(budget.margin), "keeps the desktop usable"))
    rows.append(("together", format_size(answer.wanted + budget.margin), ""))
    has = f"{format_size(budget.total)} RAM"
    has += f", {format_size(budget.swap_total)} disk swap" if budget.swap_total else ", no disk swap"
    has += f"; {format_size(budget.zram_total)} zram is no memory" if budget.zram_total else ""
    rows.append(("this machine", format_size(answer.memory), has))
    return table(rows, width, shrink={2: 20, 0: 12}, right=(1,))


def _turns(answer: Together, width: int) -> list[str]:
    left = max(0, answer.memory - answer.rest - answer.budget.margin)
    lines = [f"In turns, {format_size(left)} for the jobs of each"]
    running = {part.name for part in answer.parts if part.running}
    for number, turn in enumerate(answer.turns, 1):
        text = f"{' + '.join(turn.names)}: {format_size(turn.wanted)}"
        text += ", now" if running & set(turn.names) else ""
        if turn.close and answer.status != "never":
            text += f", when {format_size(turn.close)} of everything else are closed"
        elif turn.close:
            text += ", short even alone"
        lines += folded(f"  {number}. ", text, width)
    return lines


def _remedy(remedy: Remedy, answer: Together, width: int, add_swap: str) -> list[str]:
    box, command = "  [ ] ", "        "
    if remedy.way == "turns":
        lines = folded(
            box,
            "one after the other: with its need told, each waits by itself until the ones before are done",
            width,
        )
        turn = [name for turn in answer.turns for name in turn.names]
        for part in sorted(answer.parts, key=lambda part: turn.index(part.name)):
            if not part.running:
                lines.append(f"{command}oomproof run --need {_typed(part.wanted)} --name {part.name} -- CMD")
        return lines
    size = format_size(remedy.size)
    if remedy.way == "swap":
        text = (
            f"{size} more disk swap (not zram): slow while all work at once, so pause one for the other. A paused job lies on "
            "disk meanwhile: oomproof pauses the newest by itself, or: oomproof pause RUN"
        )
        without = (
            ""
            if answer.budget.swap_total
            else ". Without disk swap a pause only stops growth, it frees nothing"
        )
        return folded(box, text + without, width) + ([f"{command}{add_swap}"] if add_swap else [])
    if remedy.way == "smaller":
        text = f"{remedy.name} smaller: at most {size} (batch, workers, a smaller or quantized model)"
        return folded(box, text, width)
    return folded(box, f"close {size} of everything else; what holds it: oomproof check", width)


def _next(answer: Together) -> list[str]:
    waiting = [part for part in answer.parts if not part.running]
    if answer.status == "never":
        return ["Next: make it fit, then ask again", "  oomproof check --together ..."]
    first = answer.turns[0].names if answer.turns else ()
    startable = [part for part in waiting if part.name in first] or waiting
    if not startable:
        return ["Next: all of them run already", "  oomproof runs"]
    part = max(startable, key=lambda part: part.wanted)
    when = "start with the largest:" if len(waiting) > 1 else "start it:"
    if answer.status != "fits" and len(waiting) < len(answer.parts):
        when = "start it, it waits for its turn:"
    return [f"Next: {when}", f"  oomproof run --need {_typed(part.wanted)} --name {part.name} -- CMD"]


def _typed(size: int) -> str:
    """A size to type, rounded up."""
    return f"{size // GIB}G" if size % GIB == 0 else f"{-(-size // MIB)}M"


def to_json(answer: Together) -> dict[str, Any]:
    """Schema 1; sizes in bytes."""
    budget = answer.budget
    return {
        "schema": SCHEMA,
        "status": answer.status,
        "wanted_bytes": answer.wanted,
        "memory_bytes": answer.memory,
        "ram_bytes": budget.total,
        "disk_swap_bytes": budget.swap_total,
        "margin_bytes": budget.margin,
        "short_by_bytes": answer.short,
        "short_with_margin_bytes": answer.short_by,
        "in_swap_bytes": answer.in_swap,
        "everything_else_bytes": answer.rest,
        "everything_else_now_bytes": answer.rest_now,
        "jobs": [
            {"name": part.name, "need_bytes": part.need, "held_bytes": part.held, "wanted_bytes": part.wanted,
             "running": part.running, "basis": part.basis}
            for part in answer.parts
        ],
        "turns": [
            {"jobs": list(turn.names), "wanted_bytes": turn.wanted, "close_first_bytes": turn.close} for turn in answer.turns
        ],
        "remedies": [
            {"way": remedy.way, "bytes": remedy.size or None, "job": remedy.name or None} for remedy in answer.remedies
        ],
    }  # fmt: skip
