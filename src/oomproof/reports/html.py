"""The crash page: one file that opens anywhere, offline, with the verdict first and the proof below it."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from pathlib import Path

from oomproof.causes import cause_of
from oomproof.diagnosis.verdict import Verdict
from oomproof.printable import printable
from oomproof.recording.run_folders import Run
from oomproof.reports import gpu_account, report_file
from oomproof.reports.html_chart import chart
from oomproof.reports.html_script import SCRIPT
from oomproof.reports.html_style import STYLE
from oomproof.reports.redaction import Redactor
from oomproof.reports.story import (
    Story,
    before_end,
    facts,
    held_note,
    prevention,
    tell,
    version,
    when,
    zone,
)
from oomproof.reports.verdict_selection import decisive_first, how, notable
from oomproof.units import format_duration, format_size

_PROCESSES = 8
_EVIDENCE = 80  # entries; a log of a thousand kills has as many
_TEXT = 4000  # characters of one quoted text


def write_html(verdict: Verdict, run: Run | None, path: Path, *, force: bool = False) -> None:
    """Writes the crash page. Raises OomproofError when ``path`` exists (unless ``force``) or cannot be written."""
    report_file.refuse_to_overwrite(path, force)
    page = render(tell(verdict, run, Redactor()))
    report_file.save(path, page.encode("utf-8", "replace"), force=force)


def render(story: Story) -> str:
    """The whole page as text."""
    sections = [
        _section("Memory", chart(story)),
        _section("Who held the memory at the end", _holders(story)),
        _section("The process that died", _victim(story)),
        _section("The card when it failed", _card(story)),
        _section("Who held the card's memory", _account(story)),
        _section("Phases", _phases(story)),
        _section("What may help", _remedies(story)),
        _section("Keeping it from happening again", _prevention(story)),
        _section("Before and after", _before_after(story)),
        _section("Causes considered", _causes(story)),
        _section("Evidence", _evidence(story), long=True),
        _section("Every kill in the text", _kills(story), long=True),
        _section("Could not be read", _missing(story)),
        _section("Versions", _table(story.versions)),
    ]
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    # Second lock behind the escaping: no script but ours runs, and nothing is ever fetched.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = f"{story.verdict.kind.title}: {story.title}"
    return printable(
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="generator" content="oomproof {escape(version())}"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><main>\n{_head(story)}\n"
        + "\n".join(section for section in sections if section)
        + f"\n<footer>{_foot(story)}</footer></main><script>{SCRIPT}</script></body></html>\n"
    )


def _head(story: Story) -> str:
    verdict = story.verdict
    badge = "" if verdict.kind.good else f'<span class="badge">{escape(verdict.certainty)}</span> '
    about = f"run {escape(story.title)}" if story.run else "verdict from a text"
    rows = facts(story)
    wide = {"command"}
    cells = "".join(
        f"<div{' class=wide' if name in wide else ''}><dt>{escape(name)}</dt><dd>"
        + (f"<code>{escape(value)}</code>" if name in wide else escape(value))
        + "</dd></div>"
        for name, value in rows
    )
    return (
        f'<header class="{story.tone}"><p class="eyebrow">oomproof · {about}</p><div class="verdict">'
        f"<h1>{escape(verdict.headline)}</h1>"
        f'<p>{badge}<span class="note">{escape(verdict.kind.title)}, {verdict.probability:.0%}</span></p>'
        f'<dl class="lines"><dt>why</dt><dd>{escape(verdict.why)}</dd><dt>next</dt><dd>{escape(verdict.next)}</dd></dl></div>'
        + (f'<dl class="card facts">{cells}</dl>' if cells else "")
        + "</header>"
    )


def _shown(value: object) -> str:
    """A number as text; whatever else came in its place is no markup."""
    return escape(str(value))


def _section(title: str, body: str, long: bool = False) -> str:
    if not body:
        return ""
    return f"<section{' class=long' if long else ''}><h2>{escape(title)}</h2>{body}</section>"


def _holders(story: Story) -> str:
    """Each process as last seen; the job's own figure stands beside them, because pages can be shared."""
    holders = story.timeline.holders
    if not holders:
        return ""
    most = max(1, max(holder.anon + holder.shared + holder.swap for holder in holders))
    rows = []
    for holder in holders[:_PROCESSES]:
        held = holder.anon + holder.shared + holder.swap
        rows.append(
            f'<tr><td>{escape(holder.name)}<span class="bar" style="width:{100 * held / most:.0f}%"></span></td>'
            f'<td>{escape(holder.role)}</td><td class="n optional">{_shown(holder.pid)}</td><td class="n">{format_size(holder.anon)}</td>'
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


def _victim(story: Story) -> str:
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
    return _table(rows)  # total-vm is left out on purpose: it is address space, and people read it as memory


def _card(story: Story) -> str:
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
    index = f"<p>GPU {_shown(gpu.index)}</p>" if gpu.index is not None else ""
    return f"{index}{bar}{_table(rows)}" if rows else ""


def _account(story: Story) -> str:
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


def _phases(story: Story) -> str:
    rows = story.timeline.phase_rows
    if not rows:
        return ""
    gpu = any(row.gpu_peak for row in rows)
    head = '<tr><th>phase</th><th class="n">entered</th><th class="n">time in it</th><th class="n">at entry</th><th class="n">peak</th>'
    head += '<th class="n">at exit</th><th class="n optional">floor</th>'
    head += ('<th class="n">peak on the GPU</th>' if gpu else "") + '<th class="n">last step</th></tr>'
    body = "".join(
        f'<tr><td>{escape(row.name)}</td><td class="n">{_shown(row.entered)}</td><td class="n">{format_duration(row.seconds)}</td>'
        + "".join(
            f'<td class="n{extra}">{format_size(size) if size is not None else "–"}</td>'
            for size, extra in ((row.entry, ""), (row.peak, ""), (row.exit, ""), (row.floor, " optional"))
        )
        + (f'<td class="n">{format_size(row.gpu_peak) if row.gpu_peak else "–"}</td>' if gpu else "")
        + f'<td class="n">{_shown(row.last_step) if row.last_step is not None else "–"}</td></tr>'
        for row in rows
    )
    return f'<div class="scroll"><table>{head}{body}</table></div>'


def _remedies(story: Story) -> str:
    items = []
    for remedy in story.verdict.remedies:
        saves = f", saves {format_size(remedy.saves_bytes)}" if remedy.saves_bytes is not None else ""
        text = f'{escape(remedy.title)} <span class="basis">{escape(remedy.basis)}{saves}</span>'
        if (change := how(remedy)) is not None:
            text += f"<pre>{escape(change)}</pre>"
        items.append(f"<li>{text}</li>")
    return f'<ol class="remedies">{"".join(items)}</ol>' if items else ""


def _prevention(story: Story) -> str:
    items = [
        f"<li>{escape(text)}" + (f"<pre>{escape(command)}</pre>" if command else "") + "</li>"
        for text, command in prevention(story)
    ]
    return f'<ul class="plain">{"".join(items)}</ul>' if items else ""


def _before_after(story: Story) -> str:
    if story.earlier is None or story.run is None:
        return ""
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        for row in (*story.measured, *story.changed)[:40]
    )
    head = f"<tr><th></th><th>{escape(story.earlier.id)}</th><th>{escape(story.run.id)}</th></tr>"
    return f'<div class="scroll"><table>{head}{body}</table></div>'


def _causes(story: Story) -> str:
    causes = notable(story.verdict)
    if len(causes) < 2:
        return ""
    body = "".join(
        f'<tr><td class="n">{cause.probability:.0%}</td><td>{escape(cause_of(cause.cause).title)}'
        f'<span class="bar" style="width:{100 * cause.probability:.0f}%"></span></td><td>{escape(cause.test)}</td></tr>'
        for cause in causes[:20]
    )
    head = '<tr><th class="n">probability</th><th>cause</th><th>what would settle it</th></tr>'
    return f'<div class="scroll"><table>{head}{body}</table></div>'


def _evidence(story: Story) -> str:
    items = []
    decided, beside = decisive_first(story.verdict)
    for item in (*decided, *beside)[:_EVIDENCE]:
        clock = f' · <span class="when">{escape(when(item.time))}</span>' if item.time is not None else ""
        text = item.text if len(item.text) <= _TEXT else item.text[:_TEXT] + " …"
        items.append(
            f'<li><div class="source">{escape(item.source)}{clock}</div><code>{escape(text)}</code>'
            f'<div class="says">{escape(item.says)}</div></li>'
        )
    left_out = len(story.verdict.evidence) - _EVIDENCE
    more = f'<p class="note">and {left_out} more: oomproof why --json</p>' if left_out > 0 else ""
    return f'<ul class="evidence">{"".join(items)}</ul>{more}' if items else ""


def _kills(story: Story) -> str:
    kills = story.verdict.kills
    if len(kills) < 2:
        return ""
    body = "".join(
        f"<tr><td>{escape(when(kill.time, date=True))}</td><td>{escape(cause_of(kill.cause).title)}</td>"
        f'<td>{escape(kill.victim.who)}</td><td class="n">'
        f"{format_size(kill.victim.anon_rss_bytes) if kill.victim.anon_rss_bytes is not None else ''}</td></tr>"
        for kill in kills[-200:]
    )
    head = '<tr><th>when</th><th>cause</th><th>victim</th><th class="n">its own memory</th></tr>'
    return f'<div class="scroll"><table>{head}{body}</table></div>'


def _missing(story: Story) -> str:
    items = [
        f"<li>{escape(gap.source)}: {escape(gap.reason)}"
        + (f"<pre>{escape(gap.how_to_grant)}</pre>" if gap.how_to_grant else "")
        + "</li>"
        for gap in story.verdict.missing
    ]
    return f'<ul class="plain">{"".join(items)}</ul>' if items else ""


def _table(rows: tuple[tuple[str, str], ...] | list[tuple[str, str]]) -> str:
    body = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return f'<table class="pairs">{body}</table>' if body else ""


def _foot(story: Story) -> str:
    end = story.timeline.end_wall or None
    clock = f" Times are {escape(zone(end))}." if story.run else ""
    return f"Written by oomproof {escape(version())} on {escape(when(_now(), date=True))}.{clock} Nothing on this page was loaded from anywhere."


def _now() -> float:
    import time

    return time.time()
