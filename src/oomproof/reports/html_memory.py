"""The crash page's tables of memory: who held it, the process that died, the card, the phases."""

from __future__ import annotations

from html import escape

from oomproof.reports import gpu_account
from oomproof.reports.html_parts import pairs, shown
from oomproof.reports.story import Story, before_end, held_note
from oomproof.units import format_duration, format_size

_PROCESSES = 8


def holders(story: Story) -> str:
    """Each process as last seen; the job's own figure stands beside them, because pages can be shared."""
    holders = story.timeline.holders
    together = sum(holder.anon + holder.shared + holder.swap for holder in holders)
    if not holders or not story.may_be_memory or together < (story.peak or 0) // 2:
        return ""  # not about memory, or last seen long before the end
    most = max(1, max(holder.anon + holder.shared + holder.swap for holder in holders))
    rows = []
    for holder in holders[:_PROCESSES]:
        held = holder.anon + holder.shared + holder.swap
        rows.append(
            f'<tr><td>{escape(holder.name)}<span class="bar" style="width:{100 * held / most:.0f}%"></span></td>'
            f'<td>{escape(holder.role)}</td><td class="n optional">{shown(holder.pid)}</td><td class="n">{format_size(holder.anon)}</td>'
            f'<td class="n">{format_size(holder.shared)}</td><td class="n">{format_size(holder.swap)}</td>'
            f'<td class="n optional">{before_end(holder.seen)}</td></tr>'
        )
    rest = holders[_PROCESSES:]
    if rest:
        own = sum(holder.anon for holder in rest)
        rows.append(
            f'<tr><td colspan="3">{len(rest)} more</td><td class="n">{format_size(own)}</td><td></td><td></td></tr>'
        )
    head = (
        '<tr><th>process</th><th>role</th><th class="n optional">pid</th><th class="n">its own</th><th class="n">shared</th>'
        '<th class="n">in swap</th><th class="n optional">seen</th></tr>'
    )
    return f'<div class="scroll"><table class="processes">{head}{"".join(rows)}</table></div><p class="note">{escape(held_note(story))}</p>'


def victim(story: Story) -> str:
    victim = story.verdict.victim
    if victim is None:
        return ""
    rows = [("process", victim.who)]
    for name, size in (
        ("its own memory", victim.anon_rss_bytes),
        ("shared memory", victim.shmem_rss_bytes),
        ("files mapped", victim.file_rss_bytes),
    ):
        if size is not None:
            rows.append((name, format_size(size)))
    return pairs(rows)  # total-vm is left out on purpose: it is address space, and people read it as memory


def card(story: Story) -> str:
    gpu = story.verdict.gpu
    if gpu is None:
        return ""
    told = [
        ("asked for", gpu.requested_bytes),
        ("free", gpu.free_bytes),
        ("allocated by the job", gpu.allocated_bytes),
        ("reserved by the job, unused", gpu.reserved_unallocated_bytes),
        ("size of the card", gpu.total_bytes),
    ]
    rows = [(name, format_size(size)) for name, size in told if size is not None]
    bar = ""
    if gpu.total_bytes and gpu.free_bytes is not None and gpu.allocated_bytes is not None:
        unused = gpu.reserved_unallocated_bytes or 0
        rest = max(0, gpu.total_bytes - gpu.free_bytes - gpu.allocated_bytes - unused)
        rows.insert(-1, ("others, and what the driver keeps", format_size(rest)))
        parts = (("job", gpu.allocated_bytes), ("reserved", unused), ("others", rest))
        cells = "".join(
            f'<span class="{name}" style="width:{100 * size / gpu.total_bytes:.2f}%"></span>'
            for name, size in parts
        )
        bar = f'<div class="card-bar" role="img" aria-label="the card\'s memory">{cells}</div>'
        bar += (
            '<div class="legend keys"><ul><li class="job">allocated</li><li class="reserved">reserved, unused</li>'
            '<li class="others">others</li><li class="free">free</li></ul></div>'
        )
    index = f"<p>GPU {shown(gpu.index)}</p>" if gpu.index is not None else ""
    return f"{index}{bar}{pairs(rows)}" if rows else ""


def account(story: Story) -> str:
    """Rows that add up to the card, from the allocator's own account."""
    oom = story.gpu_oom
    if oom is None:
        return ""
    rows = "".join(
        f'<tr><td>{escape(part.name)}<span class="bar" style="width:{100 * part.bytes / oom.total:.1f}%"></span></td>'
        f'<td class="n">{format_size(part.bytes)}</td><td class="optional">{escape(part.what)}</td></tr>'
        for part in gpu_account.account(oom)
    )
    head = '<tr><th>who</th><th class="n">held</th><th class="optional">what</th></tr>'
    notes = [gpu_account.heading(oom)]
    if oom.stack:
        notes.append("at " + ", called by ".join(oom.stack[:3]))
    notes += [f"{format_size(line.bytes)} made at {line.line}" for line in oom.lines[:5]]
    if oom.snapshot:
        notes.append(
            f"the snapshot {oom.snapshot} in the run's folder agent/ opens in PyTorch's memory viewer"
        )
    return f'<div class="scroll"><table class="processes">{head}{rows}</table></div><p class="note">{escape("; ".join(notes))}</p>'


def phases(story: Story) -> str:
    rows = story.timeline.phase_rows
    if not rows:
        return ""
    gpu = any(row.gpu_peak for row in rows)
    head = '<tr><th>phase</th><th class="n">entered</th><th class="n">time in it</th><th class="n">at entry</th><th class="n">peak</th>'
    head += '<th class="n">at exit</th><th class="n optional">floor</th>'
    head += ('<th class="n">peak on the GPU</th>' if gpu else "") + '<th class="n">last step</th></tr>'
    body = "".join(
        f'<tr><td>{escape(row.name)}</td><td class="n">{shown(row.entered)}</td><td class="n">{format_duration(row.seconds)}</td>'
        + "".join(
            f'<td class="n{extra}">{format_size(size) if size is not None else "–"}</td>'
            for size, extra in ((row.entry, ""), (row.peak, ""), (row.exit, ""), (row.floor, " optional"))
        )
        + (f'<td class="n">{format_size(row.gpu_peak) if row.gpu_peak else "–"}</td>' if gpu else "")
        + f'<td class="n">{shown(row.last_step) if row.last_step is not None else "–"}</td></tr>'
        for row in rows
    )
    return f'<div class="scroll"><table>{head}{body}</table></div>'
