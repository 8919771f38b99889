"""What `oomproof check --together` shows: the set, the sum, and what would make it fit, on one screen; the same as JSON."""

from __future__ import annotations

from typing import Any

from oomproof.ledger.together import Part, Remedy, Together, Turn
from oomproof.reports.table_text import folded, table
from oomproof.units import GIB, MIB, format_size

SCHEMA = 1


def screen(answer: Together, width: int, add_swap: str = "", note: str = "") -> list[str]:
    """``add_swap``: the command that adds what is missing. ``note``: what the user should know of how it was counted."""
    lines = [*folded(*_headline(answer), width), "", *_sum(answer, width), ""]
    if cards := _cards(answer, width):
        lines += [*cards, ""]
    if note:
        lines += [*folded("note: ", note, width), ""]
    if answer.status != "fits":
        lines += [*_turns(answer, width), ""]
    if answer.remedies:
        lines.append("What would make it fit")
        for remedy in answer.remedies:
            lines += _remedy(remedy, answer, width, add_swap)
        lines.append("")
    return [*lines, *_next(answer)]


def _headline(answer: Together) -> tuple[str, str]:
    budget = answer.budget
    has = f"{format_size(budget.total)} RAM"
    has += f" + {format_size(budget.swap_total)} disk swap" if budget.swap_total else ", no disk swap"
    wanted = f"{format_size(answer.wanted)} wanted, {has}, margin {format_size(budget.margin)}"
    spare = f"{format_size(answer.memory - answer.wanted - budget.margin)} to spare"
    if answer.status == "fits":
        slow = (
            f", {format_size(answer.in_swap)} of it in swap: slow when all work at once"
            if answer.in_swap
            else ""
        )
        return "Fits together: ", f"{wanted}: {spare}{slow}"
    short = f"short by {format_size(answer.short)}, with the margin by {format_size(answer.short_by)}"
    if not answer.short:
        short = f"short by {format_size(answer.short_by)} of the margin" if answer.short_by else spare
    full = "".join(
        f"; GPU {card.index} short by {format_size(card.short)}" for card in answer.cards if card.short
    )
    if answer.never:
        why = "; ".join(_never(part, answer) for part in answer.parts if part.name in answer.never)
        return "Never: ", f"{why}; {wanted}: {short}{full}"
    return "Not together: ", f"{wanted}: {short}{full}"


def _cards(answer: Together, width: int) -> list[str]:
    """A line for each card that is used."""
    wanted = {part.name: part.card.wanted for part in answer.parts}
    lines = []
    for card in answer.cards:
        terms = [f"{name} {format_size(wanted[name])}" for name in card.names]
        terms += [f"{format_size(card.rest)} of others"] if card.rest else []
        left = card.total - card.rest - card.wanted
        end = f"short by {format_size(card.short)}" if card.short else f"{format_size(left)} to spare"
        lines += folded(
            f"GPU {card.index}, {format_size(card.total)}: ", f"{' + '.join(terms)}: {end}", width
        )
    return lines


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
    whose = "The others in turns" if answer.never else "In turns"
    lines = [f"{whose}, {format_size(left)} for the jobs of each"] if answer.turns else []
    running = {part.name for part in answer.parts if part.running}
    for number, turn in enumerate(answer.turns, 1):
        text = f"{' + '.join(turn.names)}: {format_size(turn.wanted)}"
        text += "".join(f", {format_size(card.wanted)} on GPU {card.index}" for card in turn.cards)
        text += ", now" if running & set(turn.names) else ""
        if to_close := _to_close(turn):
            text += f"; does not fit before you close {to_close}"
        lines += folded(f"  {number}. ", text, width)
    for part in answer.parts:
        if part.name in answer.never:
            lines += folded("  -  ", f"{_never(part, answer)}: it fits in no turn", width)
    return lines


def _to_close(turn: Turn) -> str:
    """What must go before this turn fits."""
    parts = [f"{format_size(turn.close)} of everything else"] if turn.close else []
    parts += [f"{format_size(card.short)} of others on GPU {card.index}" for card in turn.cards if card.short]
    return " and ".join(parts)


def _never(part: Part, answer: Together) -> str:
    """Why this job does not even fit alone."""
    if part.wanted > answer.budget.ever:
        return f"{part.name} alone does not fit on this machine"
    card = next((card for card in answer.cards if part.name in card.names), None)
    if card is None:
        return f"{part.name} wants a GPU, and there is none here"
    return f"{part.name} alone does not fit on GPU {card.index}"


def _remedy(remedy: Remedy, answer: Together, width: int, add_swap: str) -> list[str]:
    box, command = "  [ ] ", "        "
    if remedy.way == "turns":
        lines = folded(
            box,
            "one after the other: with its need given, each waits by itself until the ones before are done",
            width,
        )
        turn = [name for turn in answer.turns for name in turn.names]
        for part in sorted(answer.parts, key=lambda part: turn.index(part.name)):
            if not part.running:
                lines.append(f"{command}{_run(part, answer)}")
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
    if remedy.way == "gpu-share":
        text = (
            f"take turns on GPU {remedy.card}: --gpu-share on each. The one that waits has its GPU memory moved to RAM "
            "(NVIDIA, driver 570 or newer)"
        )
        lines = folded(box, text, width)
        names = next(card.names for card in answer.cards if card.index == remedy.card)
        return lines + [
            f"{command}{_run(part, answer, ' --gpu-share')}" for part in answer.parts if part.name in names
        ]
    if remedy.way == "gpu-smaller":
        text = f"{remedy.name} smaller on GPU {remedy.card}: at most {size} (batch, sequence length, a quantized model)"
        return folded(box, text, width)
    if remedy.way == "gpu-close":
        return folded(
            box, f"close {size} of what else is on GPU {remedy.card}; who holds it: oomproof check", width
        )
    if remedy.way == "smaller":
        text = f"{remedy.name} smaller: at most {size} (batch, workers, a smaller or quantized model)"
        return folded(box, text, width)
    return folded(box, f"close {size} of everything else; what holds it: oomproof check", width)


def _next(answer: Together) -> list[str]:
    waiting = [part for part in answer.parts if not part.running]
    ask_again = "  oomproof check --together ..."
    if answer.never:
        return [f"Next: make {answer.never[0]} smaller or leave it out, then ask again", ask_again]
    turn = answer.turns[0]
    startable = [part for part in waiting if part.name in turn.names]
    if not waiting:
        return ["Next: all of them run already", "  oomproof runs"]
    if startable and _to_close(turn):
        return [f"Next: close {_to_close(turn)}, then ask again", ask_again]
    part = max(startable or waiting, key=lambda part: part.wanted)
    when = "start with the largest:" if len(waiting) > 1 else "start it:"
    if answer.status != "fits" and len(waiting) < len(answer.parts):
        when = "start it, it waits for its turn:"
    return [f"Next: {when}", f"  {_run(part, answer)}"]


def _run(part: Part, answer: Together, more: str = "") -> str:
    """The command that starts it with its need told."""
    gpu = ""
    if part.card.wanted:
        card = next((card.index for card in answer.cards if part.name in card.names), part.card.index)
        gpu = f" --gpu-need {_typed(part.card.wanted)}" + (f":{card}" if card is not None else "")
    need = f" --need {_typed(part.wanted)}" if part.wanted else ""
    return f"oomproof run{need}{gpu}{more} --name {part.name} -- {part.command or 'CMD'}"


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
             "running": part.running, "basis": part.basis, "gpu_wanted_bytes": part.card.wanted, "gpu": part.card.index,
             "fits_alone": part.name not in answer.never}
            for part in answer.parts
        ],
        "turns": [
            {"jobs": list(turn.names), "wanted_bytes": turn.wanted, "close_first_bytes": turn.close,
             "close_first_gpu_bytes": turn.gpu_close}
            for turn in answer.turns
        ],
        "gpus": [
            {"index": card.index, "total_bytes": card.total, "others_bytes": card.rest, "wanted_bytes": card.wanted,
             "jobs": list(card.names), "short_by_bytes": card.short}
            for card in answer.cards
        ],
        "remedies": [
            {"way": remedy.way, "bytes": remedy.size or None, "job": remedy.name or None, "gpu": remedy.card}
            for remedy in answer.remedies
        ],
    }  # fmt: skip
