"""What `oomproof data inspect` prints: a short block for each file."""

from __future__ import annotations

from oomproof.printable import one_line
from oomproof.reports.table_text import folded, table
from oomproof.sizing.data.load_cost import AT_LEAST, LoadCost, Part
from oomproof.sizing.data.load_proof import Proof
from oomproof.units import format_duration, format_size

_SHOWN_PARTS = 6  # the largest; all are in --json
_HEAD = 11


def block(path: str, cost: LoadCost, available: int | None, proof: Proof | None, width: int) -> str:
    lines = [one_line(f"{path}: {cost.format}, {cost.contents}, {format_size(cost.disk)} on disk")]
    lines += _row("memory", _memory(cost), width)
    if proof is not None:
        lines += _row("measured", _measured(cost, proof), width)
    if available is not None and cost.peak is not None and not cost.mapped and cost.peak > available:
        lines += _row("too large", f"only {format_size(available)} of memory are available now", width)
    lines += _parts(cost.parts, width)
    for note in cost.notes:
        lines += _row("note", note, width)
    for number, line in enumerate(cost.cheaper):
        # code and commands are not folded: they are there to be copied
        lines.append(one_line(("" if number else "cheaper").rjust(_HEAD - 2) + "  " + line))
    return "\n".join(lines)


def _row(head: str, text: str, width: int) -> list[str]:
    return folded(head.rjust(_HEAD - 2) + "  ", text, width)


def _memory(cost: LoadCost) -> str:
    if cost.mapped:
        return (
            f"{format_size(cost.kept)} once every page is touched, as pages of the file, which the kernel can take back: "
            f"{cost.usual} ({cost.basis})"
        )
    if cost.basis == AT_LEAST:
        return f"at least {format_size(cost.kept)}: {cost.usual}"
    return f"peak {format_size(cost.peak)}, kept {format_size(cost.kept)}: {cost.usual} ({cost.basis})"


def _measured(cost: LoadCost, proof: Proof) -> str:
    seconds = format_duration(proof.seconds)
    if cost.mapped:
        return f"{format_size(proof.mapped)} of pages of the file and {format_size(proof.peak)} of its own, in {seconds}"
    told = f"peak {format_size(proof.peak)}, kept {format_size(proof.kept)}, in {seconds}"
    return f"{told}: {proof.peak / cost.peak:.0%} of the predicted peak" if cost.peak else told


def _parts(parts: tuple[Part, ...], width: int) -> list[str]:
    """The largest, in the order of the file."""
    if len(parts) == 1 and not parts[0].name:
        return _row("array", f"{_shape(parts[0])} {parts[0].type}", width)
    sizes = sorted((part.bytes or 0 for part in parts), reverse=True)
    least = sizes[_SHOWN_PARTS - 1] if len(parts) > _SHOWN_PARTS else -1
    shown = [part for part in parts if (part.bytes or 0) >= least][:_SHOWN_PARTS]
    rows = [
        [
            part.name or "(no name)",
            part.type,
            _shape(part),
            "?" if part.bytes is None else format_size(part.bytes),
        ]
        for part in shown
    ]
    lines = [
        " " * _HEAD + line
        for line in (table(rows, width - _HEAD, shrink={0: 12, 1: 8}, right=(3,)) if rows else [])
    ]
    if len(parts) > len(shown):
        lines.append(" " * _HEAD + f"and {len(parts) - len(shown)} smaller")
    return lines


def _shape(part: Part) -> str:
    return "" if part.shape is None else "×".join(map(str, part.shape)) or "a single value"
