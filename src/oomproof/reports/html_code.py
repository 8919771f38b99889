"""The crash page's quotations: the stack with the user's source around each line of it, and the end of the log."""

from __future__ import annotations

from html import escape

from oomproof.reports.code_shown import ShownFrame
from oomproof.reports.html_parts import fold
from oomproof.reports.story import Story


def stack(story: Story) -> str:
    shown = story.stack
    if shown is None:
        return ""
    rows = "".join(_frame(frame) for frame in shown.frames)
    changed = any(frame.changed for frame in shown.frames)
    note = '<p class="note">A file shown here was changed after the run ended: its lines may have moved.</p>'
    return f'<p class="note">{escape(shown.title)}; innermost first.</p><ol class="stack">{rows}</ol>{note if changed else ""}'


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


def log(story: Story) -> str:
    if not story.log:
        return ""
    count = len(story.log)
    text = f'<pre class="log">{escape(chr(10).join(story.log))}</pre>'
    return fold(f"the last {count} lines" if count > 1 else "its only line", text)
