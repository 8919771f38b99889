"""Where a card's memory was when it ran out, as rows that add up to the card and what --spill lent it: for the page, the report and the terminal."""

from __future__ import annotations

from oomproof.evidence.gpu_oom import GpuOom, neighbour_text
from oomproof.records import dataclass
from oomproof.reports.table_text import cut
from oomproof.units import format_size

_NAMES = {
    "parameter": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer": "optimizer state",
    "kv-cache": "KV cache",
    "activation": "tensors of a running graph",
    "tensor": "single tensors",
}
_SMALL = 0.002  # of the card: a row below this tells nothing


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    bytes: int
    what: str = ""


def account(oom: GpuOom) -> list[Part]:
    """Free, neighbours, context, then what the job's tensors are: largest first within the job."""
    own = [
        Part(_name(owner.kind, owner.owner), owner.bytes, _what(owner.owner, owner.count, owner.example))
        for owner in oom.owners
    ]
    merged: dict[str, Part] = {}
    for part in own:
        known = merged.get(part.name)
        merged[part.name] = Part(part.name, part.bytes + known.bytes, known.what) if known else part
    listed = sum(part.bytes for part in merged.values())
    rest = max(0, oom.allocated + oom.spilled - listed)
    if rest:
        merged["rest"] = Part(
            "kept for backward, workspaces, small tensors", rest, "no variable of Python holds it"
        )
    tensors = sorted(merged.values(), key=lambda part: -part.bytes)
    split = oom.unused
    gaps = f"largest piece {format_size(oom.largest_free)}" if oom.largest_free is not None else ""
    others, context = oom.others, oom.context
    around = (
        [Part("other processes", others, "; ".join(neighbour_text(neighbour) for neighbour in oom.neighbours[:3])),
         Part("CUDA context and libraries", context or 0)]
        if others is not None
        else [Part("other processes and the CUDA context", oom.outside)]
    )  # fmt: skip
    spill = Part("pinned by --spill, unused", oom.spill - oom.spilled, "host memory")
    parts = [
        *tensors,
        Part("reserved by PyTorch, unused", split, gaps),
        spill,
        *around,
        Part("free", oom.free),
    ]
    return [part for part in parts if part.bytes >= oom.total * _SMALL]


def _name(kind: str, owner: str) -> str:
    return _NAMES.get(kind) or owner


def _what(owner: str, count: int, example: str) -> str:
    many = f"{count} tensors" if count > 1 else ""
    return ", ".join(
        part for part in (many, f"such as {example}" if example and count > 1 else example) if part
    )


def heading(oom: GpuOom) -> str:
    where = f"in {oom.phase}" if oom.phase else ""
    step = f"step {oom.step}" if oom.step is not None else ""
    asked = f"asked for {format_size(oom.requested)}" if oom.requested is not None else ""
    card = f"GPU {oom.device} of {format_size(oom.total)}"
    card += f" and {format_size(oom.spill)} of spill" if oom.spill else ""
    return ", ".join(part for part in (card, where, step, asked) if part)


def lines(oom: GpuOom, width: int = 80) -> list[str]:
    """For a terminal."""
    parts = account(oom)
    most = max((part.bytes for part in parts), default=1)
    name = max((len(part.name) for part in parts), default=0)
    name = min(name, 52)
    text_lines = [f"  who held the card when it ran out ({heading(oom)})"]
    for part in parts:
        bar = "█" * max(1, round(16 * part.bytes / most))
        row = f"  {cut(part.name, name):<{name}}  {format_size(part.bytes):>9}  {bar:<16}  {part.what}"
        text_lines.append(cut(row.rstrip(), max(60, width)))
    if oom.stack:
        text_lines.append(
            f"  at {oom.stack[0]}" + (f", called by {oom.stack[1]}" if len(oom.stack) > 1 else "")
        )
    for line in oom.lines[:5]:
        text_lines.append(f"  {format_size(line.bytes):>9}  made at {line.line}, {line.count} times")
    return text_lines
