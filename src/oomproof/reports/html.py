"""The crash page: one file that opens anywhere, offline, with the verdict first and the proof below it."""

from __future__ import annotations

import time
from html import escape
from pathlib import Path
from typing import Any

from oomproof import __version__
from oomproof.diagnosis.verdict import Verdict
from oomproof.recording.profile_files import profile_of
from oomproof.recording.run_folders import Run
from oomproof.reports import html_code, html_memory, html_proof, report_file, text_document
from oomproof.reports.chart_clock import clock_text
from oomproof.reports.html_chart import chart
from oomproof.reports.html_parts import command, document, fold, pairs, prose, section, table, whole_sizes
from oomproof.reports.redaction import Redactor
from oomproof.reports.story import Story, facts, prevention, sentence, tell, when
from oomproof.reports.verdict_selection import how
from oomproof.units import format_size


def write_html(verdict: Verdict, run: Run | None, path: Path, *, force: bool = False, **quoted: Any) -> None:
    """Writes the crash page; ``quoted`` as ``tell`` takes it. Raises OomproofError when ``path`` exists (unless ``force``)
    or cannot be written."""
    report_file.write(path, lambda: render(tell(verdict, run, Redactor(), **quoted)), force=force)


def render(story: Story) -> str:
    """The whole page as text."""
    parts = [
        _head(story),
        section("Memory", chart(story)),
        text_document.html_of(text_document.parts_of(story.outage)),
        section("Where the code stood", html_code.stack(story)),
        section("What to do", _remedies(story)),
        section("Profile", _profile(story)),
        html_proof.evidence(story),
        section("What it printed last", html_code.log(story)),
        section("Who held the memory at the end", html_memory.holders(story)),
        section("The process that died", html_memory.victim(story)),
        section("The card when it failed", html_memory.card(story)),
        section("Who held the card's memory", html_memory.account(story)),
        section("Phases", html_memory.phases(story)),
        section(_beside(story), _compared(story)),
        section("Causes considered", html_proof.causes(story)),
        section("Every kill in the text", html_proof.kills(story), long=True) if story.run is None else "",
        section("Could not be read", html_proof.missing(story)),
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
        f'<dl class="lines"><dt>why</dt><dd>{prose(verdict.why)}</dd><dt>next</dt><dd>{prose(verdict.next)}</dd></dl></div>'
        + (f'<dl class="card facts">{cells}</dl>' if cells else "")
        + "</header>"
    )


def _remedies(story: Story) -> str:
    """One list: what to change in the job, then how to start it so that it does not come to that again."""
    items = []
    for remedy in story.verdict.remedies:
        saves = f", saves {format_size(remedy.saves_bytes)}" if remedy.saves_bytes is not None else ""
        change = how(remedy)
        text = f'{prose(remedy.title[:1].upper() + remedy.title[1:])} <span class="basis">{escape(remedy.basis)}{saves}</span>'
        items.append(f"<li>{text}{command(change) if change else ''}</li>")
    items += [f"<li>{prose(text)}{command(typed) if typed else ''}</li>" for text, typed in prevention(story)]
    return f'<ol class="remedies">{"".join(items)}</ol>' if items else ""


def _profile(story: Story) -> str:
    """The largest lines, and where the profiler's own page lies: it opens only on the machine of the run."""
    profile = profile_of(story.run.attempt) if story.run is not None else None
    if profile is None:
        return ""
    rows = [
        (
            format_size(line.get("bytes")),
            f"{Path(str(line.get('file'))).name}:{line.get('line')}",
            str(line.get("function")),
        )
        for line in profile.lines
    ]
    link = f'<a href="{escape(profile.page.as_uri())}">{escape(profile.page.name)}</a>'
    return f"<p>{escape(profile.profiler)}: {link}</p>" + (
        table(("bytes", "line", "function"), rows) if rows else ""
    )


def _beside(story: Story) -> str:
    return "Beside the last good run" if story.earlier.good else "Beside the run before it"


def _compared(story: Story) -> str:
    earlier = story.earlier.compared
    if earlier is None or story.run is None:
        return ""
    head = ("", f"{earlier.name}, {when(earlier.created, date=True)}", "this run")
    few, rest = story.changed[:8], story.changed[8:40]
    same = "" if story.changed else '<p class="note">Same arguments, same code, same limit.</p>'
    return (
        table(head, (*story.measured[:40], *few)) + same
        + fold(f"{len(rest)} more differences", table(head, rest))
    )  # fmt: skip


def _foot(story: Story) -> str:
    clock = f" Times are {escape(clock_text(story.timeline.end_wall, story.timeline.begin))}."
    return (
        f"Written by oomproof {escape(__version__)} on {escape(when(time.time(), date=True))}.{clock} "
        "Nothing on this page was loaded from anywhere; secrets that were recognised are shown as •••."
    )
