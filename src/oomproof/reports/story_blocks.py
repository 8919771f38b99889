"""What a story shows of memory, causes, changes and proof, as blocks: for Markdown and for the crash page."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.causes import cause_of
from oomproof.evidence.case_file import Evidence
from oomproof.records import replace
from oomproof.reports import gpu_account
from oomproof.reports.document import Block, Labels, Paragraph, Proof, Step, Steps, Table
from oomproof.reports.story import Story, before_end, held_note, prevention, when
from oomproof.reports.table_text import cut
from oomproof.reports.verdict_blocks import decisive_first, remedies, telling_first
from oomproof.units import format_duration, format_size

_PROCESSES = 8
_MOST = 80  # pieces of evidence; a log of a thousand kills has as many
_TEXT = 4000  # characters of one quoted text


def holders(story: Story) -> list[Block]:
    """Each process as last seen; the job's own figure stands beside them."""
    seen = story.timeline.holders
    if not seen:
        return []
    most = max(1, max(holder.held for holder in seen))
    rows = [
        (
            holder.name,
            holder.role,
            str(holder.pid),
            format_size(holder.held),
            format_size(holder.swap),
            before_end(holder.seen),
        )
        for holder in seen[:_PROCESSES]
    ]
    bars = [holder.held / most for holder in seen[:_PROCESSES]]
    if rest := seen[_PROCESSES:]:
        rows.append((f"{len(rest)} more", "", "", format_size(sum(holder.held for holder in rest)), "", ""))
    head = ("process", "role", "pid", "held", "in swap", "seen")
    return [
        Table(head, tuple(rows), right=(2, 3, 4), optional=(2, 5), bars=tuple(bars)),
        Paragraph(held_note(story)),
    ]


def victim(story: Story) -> Labels:
    """total-vm is left out on purpose: it is address space, and people read it as memory."""
    victim = story.verdict.victim
    if victim is None:
        return Labels(())
    sizes = (
        ("its own memory", victim.anon_rss_bytes),
        ("shared memory", victim.shmem_rss_bytes),
        ("files mapped", victim.file_rss_bytes),
    )
    told = ((name, format_size(size)) for name, size in sizes if size is not None)
    return Labels((("process", victim.who), *told))


def others_on_card(story: Story) -> int | None:
    """What of the card neither the job's memory nor free memory is."""
    gpu = story.verdict.gpu
    if gpu is None or not gpu.total_bytes or gpu.free_bytes is None or gpu.allocated_bytes is None:
        return None
    return max(
        0,
        gpu.total_bytes - gpu.free_bytes - gpu.allocated_bytes - (gpu.reserved_unallocated_bytes or 0),
    )


def card(story: Story) -> Labels:
    gpu = story.verdict.gpu
    if gpu is None:
        return Labels(())
    told = (
        ("asked for", gpu.requested_bytes),
        ("free", gpu.free_bytes),
        ("allocated by the job", gpu.allocated_bytes),
        ("reserved by the job, unused", gpu.reserved_unallocated_bytes),
        ("others, and what the driver keeps", others_on_card(story)),
        ("size of the card", gpu.total_bytes),
    )
    return Labels(tuple((name, format_size(size)) for name, size in told if size is not None))


def account(story: Story) -> list[Block]:
    """Rows that add up to the card, from the allocator's own account."""
    oom = story.gpu_oom
    if oom is None:
        return []
    parts = gpu_account.account(oom)
    notes = [gpu_account.heading(oom)]
    if oom.stack:
        notes.append("at " + ", called by ".join(oom.stack[:3]))
    notes += [f"{format_size(line.bytes)} made at {line.line}" for line in oom.lines[:5]]
    if oom.snapshot:
        notes.append(
            f"the snapshot {oom.snapshot} in the run's folder agent/ opens in PyTorch's memory viewer"
        )
    rows = tuple((part.name, format_size(part.bytes), part.what) for part in parts)
    bars = tuple(part.bytes / oom.total for part in parts)
    return [
        Table(("who", "held", "what"), rows, right=(1,), optional=(2,), bars=bars),
        Paragraph("; ".join(notes)),
    ]


def phases(story: Story) -> list[Block]:
    listed = story.timeline.phase_rows
    gpu = any(row.gpu_peak for row in listed)
    head = ["phase", "entered", "time in it", "at entry", "peak", "at exit", "floor"]
    head += [*(["peak on the GPU"] if gpu else []), "last step"]
    rows = []
    for row in listed:
        sizes = (row.entry, row.peak, row.exit, row.floor, *([row.gpu_peak or None] if gpu else []))
        told = (format_size(size) if size is not None else "–" for size in sizes)
        step = str(row.last_step) if row.last_step is not None else "–"
        rows.append((row.name, str(row.entered), format_duration(row.seconds), *told, step))
    right = tuple(range(1, len(head)))
    return [Table(tuple(head), tuple(rows), right=right, optional=(6,))] if rows else []


def kills(story: Story) -> list[Block]:
    """Every kill of a text that names several."""
    listed = story.verdict.kills if story.run is None else ()
    rows = tuple(
        (
            when(kill.time, date=True),
            cause_of(kill.cause).title,
            kill.victim.who,
            format_size(kill.victim.anon_rss_bytes) if kill.victim.anon_rss_bytes is not None else "",
        )
        for kill in listed[-200:]
    )
    return [Table(("when", "cause", "victim", "its own memory"), rows, right=(3,))] if len(rows) > 1 else []


def evidence(story: Story) -> list[Evidence]:
    """What decides it first. Of a run only its own kills: what else died on that machine stands where the first cause
    rests on it."""
    decided, beside = decisive_first(story.verdict)
    if story.run is not None:
        beside = [item for item in beside if not item.id.startswith("kernel.other.")]
    return [*telling_first(decided), *beside]


def proof(items: Sequence[Evidence]) -> Proof:
    shown = tuple(replace(item, text=cut(item.text, _TEXT)) for item in items[:_MOST])
    return Proof(shown, max(0, len(items) - _MOST))


def to_do(story: Story) -> tuple[Steps, Steps]:
    """What to change in the job; how to start it so that it does not come to that again."""
    return remedies(story.verdict), Steps(tuple(Step(text, "", typed) for text, typed in prevention(story)))
