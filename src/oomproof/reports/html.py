"""The crash page: one file that opens anywhere, offline, with the verdict first and the proof below it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from oomproof import __version__
from oomproof.diagnosis.verdict import Verdict
from oomproof.evidence.case_file import Evidence
from oomproof.recording.profile_files import profile_of
from oomproof.recording.run_folders import Run
from oomproof.records import replace
from oomproof.reports import report_file, story_blocks
from oomproof.reports.chart import clock_text
from oomproof.reports.code_shown import ShownFrame
from oomproof.reports.document import Block, Labels, Paragraph, Steps, Table
from oomproof.reports.html_chart import chart
from oomproof.reports.html_parts import blocks, document, fold, note, pairs, section, sections, whole_sizes
from oomproof.reports.redaction import Redactor
from oomproof.reports.story import Story, facts, sentence, tell, when
from oomproof.reports.verdict_blocks import considered, found_nothing, missing
from oomproof.units import format_size

_OPEN = 3  # facts that are not folded away


def write_html(verdict: Verdict, run: Run | None, path: Path, *, force: bool = False, **quoted: Any) -> None:
    """Writes the crash page; ``quoted`` as ``tell`` takes it. Raises OomproofError when ``path`` exists (unless ``force``)
    or cannot be written."""
    report_file.write(path, lambda: render(tell(verdict, run, Redactor(), **quoted)), force=force)


def render(story: Story) -> str:
    """The whole page as text."""
    beside = "Beside the last good run" if story.earlier.good else "Beside the run before it"
    parts = [
        _head(story),
        section("Memory", chart(story)),
        sections(story.outage),
        section("Where the code stood", _stack(story)),
        section("What to do", _what_to_do(story)),
        section("Profile", _profile(story)),
        section("What decides it", _evidence(story), long=True),
        section("What it printed last", _log(story)),
        section("Who held the memory at the end", _holders(story)),
        section("The process that died", pairs(story_blocks.victim(story).rows)),
        section("The card when it failed", _card(story)),
        section("Who held the card's memory", _with_note(story_blocks.account(story))),
        section("Phases", blocks(story_blocks.phases(story))),
        section(beside, _compared(story)),
        section("Causes considered", _causes(story)),
        section("Every kill in the text", blocks(story_blocks.kills(story)), long=True),
        section("Could not be read", _missing(story)),
        section("Environment", pairs(story.environment)) if story.run else "",
        f"<footer>{_foot(story)}</footer>",
    ]
    return document(f"{sentence(story)}: {story.title}", "\n".join(part for part in parts if part))


def _head(story: Story) -> str:
    verdict, told = story.verdict, sentence(story)
    badge = "" if verdict.kind.good else f'<span class="badge">{escape(verdict.certainty)}</span> '
    about = f"run {escape(story.title)}" if story.run else "verdict from a text"
    same = told.lower().startswith(verdict.headline.lower())
    headline = "" if same else f'<span class="headline">{escape(verdict.headline)}</span> '
    wide = {"command"}
    cells = "".join(
        f"<div{' class=wide' if name in wide else ''}><dt>{escape(name)}</dt><dd>"
        + (f"<code>{escape(value)}</code>" if name in wide else escape(value))
        + "</dd></div>"
        for name, value in facts(story)
    )
    return (
        f'<header class="{story.tone}"><p class="eyebrow">oomproof · {about}</p><div class="verdict">'
        f"<h1>{whole_sizes(told)}</h1>"
        f'<p>{headline}{badge}<span class="note">{verdict.probability:.0%}</span></p>'
        f"{blocks([Labels((('why', verdict.why), ('next', verdict.next)))])}</div>"
        + (f'<dl class="card facts">{cells}</dl>' if cells else "")
        + "</header>"
    )


def _what_to_do(story: Story) -> str:
    """One list: what to change in the job, then how to start it so that it does not come to that again."""
    change, start = story_blocks.to_do(story)
    steps = (
        replace(step, text=step.text[:1].upper() + step.text[1:]) for step in (*change.items, *start.items)
    )
    return blocks([Steps(tuple(steps), ordered=True)])


def _profile(story: Story) -> str:
    """The largest lines, and where the profiler's own page lies: it opens only on the machine of the run."""
    profile = profile_of(story.run.attempt) if story.run is not None else None
    if profile is None:
        return ""
    rows = tuple(
        (
            format_size(line.get("bytes")),
            f"{Path(str(line.get('file'))).name}:{line.get('line')}",
            str(line.get("function")),
        )
        for line in profile.lines
    )
    link = f'<a href="{escape(profile.page.as_uri())}">{escape(profile.page.name)}</a>'
    return f"<p>{escape(profile.profiler)}: {link}</p>{blocks([Table(('bytes', 'line', 'function'), rows)])}"


def _evidence(story: Story) -> str:
    """Three facts that decide; the others, and what was looked at in vain, are folded away."""
    found: list[Evidence] = []
    empty: list[Evidence] = []
    for item in story_blocks.evidence(story):
        (empty if found_nothing(item) else found).append(item)
    shown, more, silent = (
        blocks([story_blocks.proof(items)]) for items in (found[:_OPEN], found[_OPEN:], empty)
    )
    count = len(found) - _OPEN
    return (
        shown
        + fold(f"{count} more fact{'s' * (count != 1)}", more)
        + fold(f"checked, nothing found: {len(empty)}", silent)
    )


def _holders(story: Story) -> str:
    held = sum(holder.held for holder in story.timeline.holders)
    if not story.may_be_memory or held < (story.peak or 0) // 2:
        return ""  # not about memory, or last seen long before the end
    return _with_note(story_blocks.holders(story))


def _with_note(shown: Sequence[Block]) -> str:
    """A table and, small below it, what is said of it."""
    return "".join(note(block.text) if isinstance(block, Paragraph) else blocks([block]) for block in shown)


def _card(story: Story) -> str:
    gpu, others = story.verdict.gpu, story_blocks.others_on_card(story)
    bar = ""
    if gpu is not None and gpu.total_bytes and others is not None:
        parts = (
            ("job", gpu.allocated_bytes or 0),
            ("reserved", gpu.reserved_unallocated_bytes or 0),
            ("others", others),
        )
        cells = "".join(
            f'<span class="{name}" style="width:{100 * size / gpu.total_bytes:.2f}%"></span>'
            for name, size in parts
        )
        bar = (
            f'<div class="card-bar" role="img" aria-label="the card\'s memory">{cells}</div>'
            '<div class="legend keys"><ul><li class="job">allocated</li><li class="reserved">reserved, unused</li>'
            '<li class="others">others</li><li class="free">free</li></ul></div>'
        )
    rows = pairs(story_blocks.card(story).rows)
    index = f"<p>GPU {escape(str(gpu.index))}</p>" if gpu is not None and gpu.index is not None else ""
    return f"{index}{bar}{rows}" if rows else ""


def _compared(story: Story) -> str:
    earlier = story.earlier.compared
    if earlier is None or story.run is None:
        return ""
    head = ("", f"{earlier.name}, {when(earlier.created, date=True)}", "this run")
    few, rest = story.changed[:8], story.changed[8:40]
    same = "" if story.changed else note("Same arguments, same code, same limit.")
    more = fold(f"{len(rest)} more differences", blocks([Table(head, rest)]))
    return blocks([Table(head, (*story.measured[:40], *few))]) + same + more


def _causes(story: Story) -> str:
    causes = considered(story.verdict)
    return blocks([causes]) if len(causes.ranked) > 1 else ""


def _missing(story: Story) -> str:
    count = len(story.verdict.missing)
    return fold(f"{count} source{'s' * (count != 1)}", blocks([missing(story.verdict)]))


def _stack(story: Story) -> str:
    """The stack with the user's source around each line of it."""
    stack = story.stack
    if stack is None:
        return ""
    changed = any(frame.changed for frame in stack.frames)
    moved = (
        note("A file shown here was changed after the run ended: its lines may have moved.")
        if changed
        else ""
    )
    frames = "".join(map(_frame, stack.frames))
    return f'{note(f"{stack.title}; innermost first.")}<ol class="stack">{frames}</ol>{moved}'


def _frame(shown: ShownFrame) -> str:
    frame = shown.frame
    place = f'<span class="file">{escape(frame.file)}:{escape(str(frame.line or "?"))}</span> in <b>{escape(frame.name)}</b>'
    if not shown.own:
        return f'<li class="library">{place}</li>'
    if not shown.source:
        return f"<li>{place}</li>"
    lines = "".join(
        f'<span class="line{" here" if number == frame.line else ""}"><i>{number}</i>{escape(line) or " "}</span>'
        for number, line in shown.source
    )
    return f'<li>{place}<pre class="source">{lines}</pre></li>'


def _log(story: Story) -> str:
    count = len(story.log)
    text = f'<pre class="log">{escape(chr(10).join(story.log))}</pre>' if count else ""
    return fold(f"the last {count} lines" if count > 1 else "its only line", text)


def _foot(story: Story) -> str:
    clock = f" Times are {escape(clock_text(story.timeline.end_wall, story.timeline.begin))}."
    return (
        f"Written by oomproof {escape(__version__)} on {escape(when(time.time(), date=True))}.{clock} "
        "Nothing on this page was loaded from anywhere; secrets that were recognised are shown as •••."
    )
