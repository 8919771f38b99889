"""The crash page's proof: three facts that decide, the others folded, the causes considered, the kills, what was not read."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from oomproof.causes import cause_of
from oomproof.evidence.case_file import Evidence
from oomproof.reports.html_parts import command, fold, section, table
from oomproof.reports.story import Story, when
from oomproof.reports.verdict_selection import decisive_first, found_nothing, notable, telling_first
from oomproof.units import format_size

_OPEN = 3
_MOST = 80  # entries; a log of a thousand kills has as many
_TEXT = 4000  # characters of one quoted text


def evidence(story: Story) -> str:
    """Of a run only its own kills: what else died on that machine is told where the first cause rests on it."""
    decided, beside = decisive_first(story.verdict)
    if story.run is not None:
        beside = [item for item in beside if not item.id.startswith("kernel.other.")]
    items = (*telling_first(decided), *beside)
    empty = [item for item in items if found_nothing(item)]
    found = [item for item in items if not found_nothing(item)]
    more = found[_OPEN:]
    parts = [
        _items(found[:_OPEN]),
        fold(f"{len(more)} more fact{'s' * (len(more) != 1)}", _items(more)),
        fold(f"checked, nothing found: {len(empty)}", _items(empty)),
    ]
    return section("What decides it", "".join(parts), long=True)


def _items(items: Sequence[Evidence]) -> str:
    rows = []
    for item in items[:_MOST]:
        clock = f' · <span class="when">{escape(when(item.time))}</span>' if item.time is not None else ""
        text = item.text if len(item.text) <= _TEXT else item.text[:_TEXT] + " …"
        rows.append(
            f'<li><div class="says">{escape(item.says)}</div><code>{escape(text)}</code>'
            f'<div class="source">{escape(item.source)}{clock}</div></li>'
        )
    left_out = len(items) - _MOST
    more = f'<p class="note">and {left_out} more: oomproof why --json</p>' if left_out > 0 else ""
    return f'<ul class="evidence">{"".join(rows)}</ul>{more}' if rows else ""


def causes(story: Story) -> str:
    ranked = notable(story.verdict)
    if len(ranked) < 2:
        return ""
    body = "".join(
        f'<tr><td class="n">{cause.probability:.0%}</td><td>{escape(cause_of(cause.cause).title)}'
        f'<span class="bar" style="width:{100 * cause.probability:.0f}%"></span></td><td>{escape(cause.test)}</td></tr>'
        for cause in ranked[:20]
    )
    head = '<tr><th class="n">probability</th><th>cause</th><th>what would settle it</th></tr>'
    return f'<div class="scroll"><table class="causes">{head}{body}</table></div>'


def kills(story: Story) -> str:
    listed = story.verdict.kills
    if len(listed) < 2:
        return ""
    rows = [
        (
            when(kill.time, date=True),
            cause_of(kill.cause).title,
            kill.victim.who,
            format_size(kill.victim.anon_rss_bytes) if kill.victim.anon_rss_bytes is not None else "",
        )
        for kill in listed[-200:]
    ]
    return table(("when", "cause", "victim", "its own memory"), rows, numbers=(3,))


def missing(story: Story) -> str:
    items = [
        f"<li>{escape(gap.source)}: {escape(gap.reason)}{command(gap.how_to_grant) if gap.how_to_grant else ''}</li>"
        for gap in story.verdict.missing
    ]
    return (
        fold(f"{len(items)} source{'s' * (len(items) != 1)}", f'<ul class="plain">{"".join(items)}</ul>')
        if items
        else ""
    )
