"""Several deaths in words: the table, what they share, what that rules out, what changed between them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from oomproof.causes import cause_of
from oomproof.diagnosis.death_patterns import Ending, Patterns
from oomproof.reports.document import Document, Paragraph, Section, Table, listed, section, terminal
from oomproof.units import format_duration, format_size, format_time, format_zone

_ID = re.compile(r"\d{8}-\d{6}-\w{3}(?:/\d+)?")
_SECTIONS = (("tied", "What the deaths share"), ("excluded", "What that rules out"), ("open", "Open"))
_HEADING = ("RUN", "DEVICE", "STEP", "CAUSE", "AFTER", "HELD", "LAST LINE")
# columns that give way in a narrow terminal, with the least that each keeps; then those that are left out
_SHRINK = {"LAST LINE": 12, "RUN": 12, "CAUSE": 14, "DEVICE": 8}
_DROP = ("LAST LINE", "AFTER", "DEVICE", "RUN")


def patterns_text(patterns: Patterns, *, width: int = 110) -> str:
    return terminal(patterns_document(patterns), width)


def patterns_document(patterns: Patterns) -> Document:
    deaths, runs = patterns.deaths, len(patterns.endings)
    head = f"{len(deaths)} death{'s' * (len(deaths) != 1)}"
    head += f" in {runs} runs" if runs > len(deaths) else ""
    parts = [section(Paragraph(head))]
    if deaths:
        of = f" of {deaths[-1].job}" if deaths[-1].job else ""
        parts = [section(Paragraph(f"{head}{of}: {_causes(deaths)}")), section(_table(deaths))]
    if patterns.others:
        parts.append(Section("Deaths of other programs", (_table(patterns.others),), indent=""))
    for name, title in _SECTIONS:
        found = (statement.text for statement in patterns.statements if statement.found == name)
        parts += listed(title, found, "- ")
    parts += listed("Changes between the runs", (statement.text for statement in patterns.changes), "- ")
    if patterns.caution:
        parts.append(section(Paragraph(patterns.caution)))
    return tuple(parts)


def _causes(deaths: Sequence[Ending]) -> str:
    counts = Counter(cause_of(death.cause).title for death in deaths)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{title} ({count})" for title, count in counts.most_common())


def _table(deaths: Sequence[Ending]) -> Table:
    wall = next((death.wall for death in deaths if death.wall is not None), None)
    zone = f" ({format_zone(wall)})" if wall is not None else ""
    labels = _labels(death.label for death in deaths)
    rows = [(f"DATE{zone}", *_HEADING), *(_row(death, labels[death.label]) for death in deaths)]
    # a column without values only takes space
    shown = [at for at in range(len(rows[0])) if at == 0 or any(row[at] != "-" for row in rows[1:])]
    head, *cells = (tuple(row[at] for at in shown) for row in rows)
    place = {heading: at for at, heading in enumerate(head)}
    shrink = {place[name]: least for name, least in _SHRINK.items() if name in place}
    drop = [place[name] for name in _DROP if name in place]
    right = (place["STEP"],) if "STEP" in place else ()
    return Table(head, tuple(cells), right=right, shrink=shrink, drop=drop)


def _row(death: Ending, label: str) -> tuple[str, ...]:
    held = death.memory.held if death.memory else None
    # to the minute
    when = (
        format_time(death.wall, zone=False)[:16] if death.wall is not None else format_time(death.since_boot)
    )
    return (
        when or "-",
        label,
        death.device or "-",
        "-" if death.step is None else f"{death.step}/{death.total}" if death.total else str(death.step),
        cause_of(death.cause).title,
        format_duration(death.uptime) if death.uptime is not None else "-",
        format_size(held) if held is not None else "-",
        " ".join(death.last_line.split()) or "-",
    )


def _labels(labels: Iterable[str]) -> dict[str, str]:
    """Ids without the day, which commands accept too: all ids of a day begin alike, and a narrow table would cut off
    where they differ."""
    given = set(labels)
    if all(map(_ID.fullmatch, given)):
        return {label: label.partition("-")[2] for label in given}
    return {label: label[:24] for label in given}
