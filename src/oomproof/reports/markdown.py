"""The page people write by hand after such a night, as Markdown: ready to commit beside the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oomproof.causes import cause_of
from oomproof.diagnosis.verdict import Verdict
from oomproof.printable import printable
from oomproof.recording.run_folders import Run
from oomproof.reports import report_file, story_blocks
from oomproof.reports.chart import clock_text, draw
from oomproof.reports.document import Block, Paragraph, Table, foot
from oomproof.reports.markdown_parts import blocks, fence, sections, table, text
from oomproof.reports.redaction import Redactor
from oomproof.reports.story import Moment, Story, chronology, facts, sentence, tell, when
from oomproof.reports.table_text import cut
from oomproof.reports.verdict_blocks import considered, missing
from oomproof.units import format_time

_MOMENTS = 60
_ROWS = 40


def write_markdown(
    verdict: Verdict, run: Run | None, path: Path, *, force: bool = False, **quoted: Any
) -> None:
    """Writes the report; ``quoted`` as ``tell`` takes it. Raises OomproofError when ``path`` exists (unless ``force``) or
    cannot be written."""
    report_file.write(path, lambda: render(tell(verdict, run, Redactor(), **quoted)), force=force)


def render(story: Story) -> str:
    """The whole page as text."""
    change, start = story_blocks.to_do(story)
    named = [
        ("What happened", _what_happened(story)),
        ("Timeline", _timeline(story)),
        ("The outage", sections(story.outage, "###")),
        ("Root cause", blocks(_root_cause(story))),
        ("Where the code stood", _stack(story)),
        ("Who held the card's memory", blocks(story_blocks.account(story))),
        ("Evidence", _evidence(story)),
        ("What was changed", blocks(_changed(story))),
        ("Before and after", _before_after(story)),
        ("What may help", blocks([change])),
        ("Prevention", blocks([start])),
        ("Next steps", _next_steps(story)),
        ("What it printed last", fence("\n".join(story.log)) if story.log else ""),
        ("Environment", table(("", ""), story.environment)),
    ]
    title = f"# {text(story.title)}: {text(sentence(story))}"
    parts = [title, *(f"## {name}\n\n{body}" for name, body in named if body), f"<sub>{foot()}</sub>"]
    return printable("\n\n".join(parts)) + "\n"


def _what_happened(story: Story) -> str:
    verdict = story.verdict
    sure = "" if verdict.kind.good else f" ({verdict.certainty}, {verdict.probability:.0%})"
    parts = (
        f"**{text(verdict.headline)}**{sure}",
        f"Why: {text(verdict.why)}",
        table(("", ""), facts(story)),
    )
    return "\n\n".join(filter(None, parts))


def _timeline(story: Story) -> str:
    moments = [moment for moment in chronology(story) if moment.wall is not None]
    if not moments:
        return ""
    walls = [moment.wall for moment in moments if moment.wall]
    several_days = max(walls) - min(walls) > 20 * 3600
    rows = [
        (when(moment.wall, date=several_days), cut(moment.text, 300))
        for moment in _ends(moments, _MOMENTS)
        if moment is not None
    ]
    body = table(("time", "what"), rows)
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
        body += f"\n\nMemory of the job (anonymous + shared + swapped):\n\n{fence(snapshot)}"
    return body


def _root_cause(story: Story) -> list[Block]:
    verdict = story.verdict
    parts: list[Block] = [Paragraph(f"{verdict.kind.title}, {verdict.certainty}: {verdict.why}.")]
    where = [f"in phase {verdict.phase}"] if verdict.phase != "unknown" else []
    where += [f"at step {verdict.step}"] if verdict.step is not None else []
    if where:
        parts.append(Paragraph(f"It happened {' '.join(where)}."))
    if verdict.victim is not None:
        parts += [Paragraph("The process that died:"), story_blocks.victim(story)]
    if (gpu := verdict.gpu) is not None:
        parts += [Paragraph(f"GPU {gpu.index if gpu.index is not None else '?'}:"), story_blocks.card(story)]
    if story.timeline.holders:
        parts += [Paragraph("Who held the memory, as last seen:"), *story_blocks.holders(story)]
    parts += story_blocks.phases(story)
    causes = considered(verdict)
    if len(causes.ranked) > 1:
        parts += [Paragraph("What else was considered:"), causes]
    return parts


def _stack(story: Story) -> str:
    if story.stack is None:
        return ""
    lines = []
    for shown in story.stack.frames:
        lines.append(shown.frame.words)
        here = shown.frame.line
        lines += [f"{'>' if number == here else ' '} {number:5}  {line}" for number, line in shown.source]
    return f"{text(story.stack.title)}; innermost first.\n\n{fence(chr(10).join(lines))}"


def _evidence(story: Story) -> str:
    proof = blocks([story_blocks.proof(story_blocks.evidence(story))])
    return "\n".join(filter(None, (proof, blocks([missing(story.verdict, "not readable: ")]))))


def _changed(story: Story) -> list[Block]:
    if story.run is None:
        return []
    earlier = story.earlier.compared
    if earlier is None:
        return [Paragraph("Nothing to compare with: this is the first recorded run of this command.")]
    which = f"the {'last good run' if story.earlier.good else 'run before it'} ({earlier.id})"
    if not story.changed:
        return [Paragraph(f"Nothing, against {which}: same arguments, same code, same limit.")]
    return [
        Paragraph(f"Against {which}:"),
        Table(("", "before", "after"), story.changed[:_ROWS], code=(1, 2)),
    ]


def _before_after(story: Story) -> str:
    if story.earlier.compared is None or story.run is None:
        return ""
    head = ("", f"before: {story.earlier.compared.id}", f"after: {story.run.id}")
    return table(head, story.measured[:_ROWS])


def _next_steps(story: Story) -> str:
    verdict = story.verdict
    items = [verdict.next] if verdict.next else []
    items += [
        f"to rule out {cause_of(cause.cause).title}: {cause.test}"
        for cause in considered(verdict).ranked[1:4]
        if cause.test
    ]
    return "\n".join(f"- [ ] {text(item)}" for item in items)


def _ends(items: list[Moment], count: int) -> list[Moment]:
    """The first third and the last two thirds of too many."""
    if len(items) <= count:
        return items
    return [*items[: count // 3], *items[-(count - count // 3) :]]
