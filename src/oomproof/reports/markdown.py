"""The page people write by hand after such a night, as Markdown: ready to commit beside the code."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from oomproof import __version__
from oomproof.causes import cause_of
from oomproof.diagnosis.verdict import Verdict
from oomproof.printable import printable
from oomproof.recording.run_folders import Run
from oomproof.reports import gpu_account, report_file, text_document
from oomproof.reports.chart import draw
from oomproof.reports.chart_clock import clock_text
from oomproof.reports.markdown_parts import code as _code
from oomproof.reports.markdown_parts import fence as _fence
from oomproof.reports.markdown_parts import table as _table
from oomproof.reports.markdown_parts import text as _text
from oomproof.reports.redaction import Redactor
from oomproof.reports.story import (
    Moment,
    Story,
    before_end,
    chronology,
    facts,
    held_note,
    prevention,
    sentence,
    tell,
    when,
)
from oomproof.reports.table_text import cut
from oomproof.reports.verdict_selection import decisive_first, how, notable
from oomproof.units import format_duration, format_size, format_time

_EVIDENCE = 40
_MOMENTS = 60
_ROWS = 40
_TEXT = 1000


def write_markdown(
    verdict: Verdict, run: Run | None, path: Path, *, force: bool = False, **quoted: Any
) -> None:
    """Writes the report; ``quoted`` as ``tell`` takes it. Raises OomproofError when ``path`` exists (unless ``force``) or
    cannot be written."""
    report_file.write(path, lambda: render(tell(verdict, run, Redactor(), **quoted)), force=force)


def render(story: Story) -> str:
    """The whole page as text."""
    sections = [
        ("What happened", _what_happened(story)),
        ("Timeline", _timeline(story)),
        ("Root cause", _root_cause(story)),
        ("Where the code stood", _stack(story)),
        ("Who held the card's memory", _account(story)),
        ("Evidence", _evidence(story)),
        ("What was changed", _changed(story)),
        ("Before and after", _before_after(story)),
        ("What may help", _remedies(story)),
        ("Prevention", _prevention(story)),
        ("Next steps", _next_steps(story)),
        ("What it printed last", _fence("\n".join(story.log)) if story.log else ""),
        ("Environment", _table(("", ""), story.environment)),
    ]
    if story.outage:
        sections.insert(
            2, ("The outage", text_document.markdown_of(text_document.parts_of(story.outage), "###"))
        )
    title = f"# {_text(story.title)}: {_text(sentence(story))}"
    parts = [title, *(f"## {name}\n\n{body}" for name, body in sections if body)]
    parts.append(f"<sub>Written by oomproof {__version__} on {format_time(time.time())}.</sub>")
    return printable("\n\n".join(parts)) + "\n"


def _what_happened(story: Story) -> str:
    verdict = story.verdict
    sure = "" if verdict.kind.good else f" ({verdict.certainty}, {verdict.probability:.0%})"
    parts = [f"**{_text(verdict.headline)}**{sure}", f"Why: {_text(verdict.why)}"]
    rows = [(name, _code(value) if name == "command" else _text(value)) for name, value in facts(story)]
    if rows:
        parts.append(_table(("", ""), rows, ready=True))
    return "\n\n".join(parts)


def _timeline(story: Story) -> str:
    moments = [moment for moment in chronology(story) if moment.wall is not None]
    if not moments:
        return ""
    walls = [moment.wall for moment in moments if moment.wall]
    several_days = max(walls) - min(walls) > 20 * 3600
    rows = [
        (when(moment.wall, date=several_days), _text(cut(moment.text, 300)))
        for moment in _ends(moments, _MOMENTS)
        if moment is not None
    ]
    body = _table(("time", "what"), rows, ready=True)
    if story.run is not None:
        clock = clock_text(story.timeline.end_wall, story.timeline.begin)
        begin = format_time(walls[0], zone=False).partition(" ")[0]
        body = f"{begin}, times are {clock}.\n\n{body}"
    left_out = len(moments) - _MOMENTS
    if left_out > 0:
        body += f"\n\n{left_out} moments in between are left out."
    samples = [(point.t, float(point.use)) for point in story.timeline.host]
    if samples:
        snapshot = draw(samples, width=72, limit=story.limit)
        body += f"\n\nMemory of the job (anonymous + shared + swapped):\n\n{_fence(snapshot)}"
    return body


def _account(story: Story) -> str:
    oom = story.gpu_oom
    if oom is None:
        return ""
    rows = [
        (_text(part.name), format_size(part.bytes), _text(part.what)) for part in gpu_account.account(oom)
    ]
    table = _table(("who", "held", "what"), rows, ready=True)
    return f"{_text(gpu_account.heading(oom))}:\n\n{table}"


def _root_cause(story: Story) -> str:
    verdict = story.verdict
    parts = [f"{_text(verdict.kind.title)}, {_text(verdict.certainty)}: {_text(verdict.why)}."]
    where = []
    if verdict.phase != "unknown":
        where.append(f"in phase {_text(verdict.phase)}")
    if verdict.step is not None:
        where.append(f"at step {verdict.step}")
    if where:
        parts.append(f"It happened {' '.join(where)}.")
    if (victim := verdict.victim) is not None:
        sizes = [
            f"{format_size(size)} {name}"
            for name, size in (("of its own", victim.anon_rss_bytes), ("shared", victim.shmem_rss_bytes))
            if size
        ]
        held = f", holding {' and '.join(sizes)}" if sizes else ""
        parts.append(f"The process that died: {_text(victim.who)}{held}.")
    if (gpu := verdict.gpu) is not None:
        told = (
            ("asked for", gpu.requested_bytes),
            ("free", gpu.free_bytes),
            ("allocated", gpu.allocated_bytes),
            ("reserved but unused", gpu.reserved_unallocated_bytes),
            ("total", gpu.total_bytes),
        )
        sizes = [f"{name} {format_size(size)}" for name, size in told if size is not None]
        if sizes:
            parts.append(f"GPU {gpu.index if gpu.index is not None else '?'}: {', '.join(sizes)}.")
    if story.timeline.holders:
        heaviest = [
            (
                _text(holder.name),
                _text(holder.role),
                str(holder.pid),
                format_size(holder.held),
                format_size(holder.swap),
                before_end(holder.seen),
            )
            for holder in story.timeline.holders[:8]
        ]
        parts.append("Who held the memory, as last seen:")
        parts.append(_table(("process", "role", "pid", "held", "in swap", "seen"), heaviest, ready=True))
        rest = len(story.timeline.holders) - 8
        if rest > 0:
            parts.append(f"and {rest} more.")
        parts.append(held_note(story))
    if story.timeline.phase_rows:
        phases = [
            (
                _text(row.name),
                str(row.entered),
                format_duration(row.seconds),
                *(
                    format_size(size) if size is not None else "–"
                    for size in (row.entry, row.peak, row.exit, row.floor)
                ),
                format_size(row.gpu_peak) if row.gpu_peak else "–",
            )
            for row in story.timeline.phase_rows
        ]
        parts.append(
            _table(
                ("phase", "entered", "time in it", "at entry", "peak", "at exit", "floor", "peak on the GPU"),
                phases,
                ready=True,
            )
        )
    causes = notable(verdict)
    if len(causes) > 1:
        rows = [
            (f"{cause.probability:.0%}", cause_of(cause.cause).title, cause.test) for cause in causes[:12]
        ]
        parts.append("What else was considered:")
        parts.append(_table(("probability", "cause", "what would settle it"), rows))
    return "\n\n".join(parts)


def _stack(story: Story) -> str:
    if story.stack is None:
        return ""
    lines = []
    for shown in story.stack.frames:
        lines.append(shown.frame.words)
        here = shown.frame.line
        lines += [f"{'>' if number == here else ' '} {number:5}  {line}" for number, line in shown.source]
    return f"{_text(story.stack.title)}; innermost first.\n\n{_fence(chr(10).join(lines))}"


def _evidence(story: Story) -> str:
    items = []
    decided, beside = decisive_first(story.verdict)
    for item in (*decided, *beside)[:_EVIDENCE]:
        clock = f" ({when(item.time)})" if item.time is not None else ""
        items.append(f"- {_text(item.source)}{clock}: {_code(cut(item.text, _TEXT))}  \n  {_text(item.says)}")
    left_out = len(story.verdict.evidence) - _EVIDENCE
    if left_out > 0:
        items.append(f"- and {left_out} more: `oomproof why --json`")
    for gap in story.verdict.missing:
        grant = f"; to open it: {_code(gap.how_to_grant)}" if gap.how_to_grant else ""
        items.append(f"- not readable: {_text(gap.source)}, {_text(gap.reason)}{grant}")
    return "\n".join(items)


def _changed(story: Story) -> str:
    if story.run is None:
        return ""
    earlier = story.earlier.compared
    if earlier is None:
        return "Nothing to compare with: this is the first recorded run of this command."
    which = f"the {'last good run' if story.earlier.good else 'run before it'} ({earlier.id})"
    if not story.changed:
        return f"Nothing, against {which}: same arguments, same code, same limit."
    rows = [(name, _code(a), _code(b)) for name, a, b in story.changed[:_ROWS]]
    return f"Against {which}:\n\n" + _table(
        ("", "before", "after"), [(_text(name), a, b) for name, a, b in rows], ready=True
    )


def _before_after(story: Story) -> str:
    if story.earlier.compared is None or story.run is None:
        return ""
    head = ("", f"before: {story.earlier.compared.id}", f"after: {story.run.id}")
    return _table(head, story.measured[:_ROWS])


def _remedies(story: Story) -> str:
    items = []
    for number, remedy in enumerate(story.verdict.remedies, 1):
        saves = f", saves {format_size(remedy.saves_bytes)}" if remedy.saves_bytes is not None else ""
        item = f"{number}. {_text(remedy.title)} ({remedy.basis}{saves})"
        if (change := how(remedy)) is not None:
            item += f"  \n   {_code(change)}"
        items.append(item)
    return "\n".join(items)


def _prevention(story: Story) -> str:
    return "\n".join(
        f"- {_text(text)}" + (f"  \n  {_code(command)}" if command else "")
        for text, command in prevention(story)
    )


def _next_steps(story: Story) -> str:
    verdict = story.verdict
    items = [verdict.next] if verdict.next else []
    items += [
        f"to rule out {cause_of(cause.cause).title}: {cause.test}"
        for cause in notable(verdict)[1:4]
        if cause.test
    ]
    return "\n".join(f"- [ ] {_text(item)}" for item in items)


def _ends(items: list[Moment], count: int) -> list[Moment]:
    """The first third and the last two thirds of too many."""
    if len(items) <= count:
        return items
    return [*items[: count // 3], *items[-(count - count // 3) :]]
