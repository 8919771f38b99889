"""Several deaths in words: the table, what they share, what that rules out, what changed between them."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable

from oomproof.causes import cause_of
from oomproof.diagnosis.pattern_facts import Ending, Patterns, Statement
from oomproof.diagnosis.pattern_states import in_days
from oomproof.reports.table_text import table
from oomproof.units import format_duration, format_size, format_span, format_time, format_zone

_ID = re.compile(r"\d{8}-\d{6}-\w{3}(?:/\d+)?")
_SECTIONS = (("tied", "What the deaths share"), ("excluded", "What that rules out"), ("open", "Open"))


def patterns_text(patterns: Patterns, *, width: int = 110) -> str:
    deaths = patterns.deaths
    lived = len(patterns.endings) - len(deaths)
    head = f"{len(deaths)} death{'s' * (len(deaths) != 1)}"
    if lived:
        head += f" in {len(patterns.endings)} runs"
    if deaths and deaths[-1].job:
        head += f" of {deaths[-1].job}"
    if deaths:
        head += f": {_causes(deaths)}"
    parts = [head, *([_table(deaths, width)] if deaths else [])]
    if patterns.others:
        count = len(patterns.others)
        lines = ["Deaths of other programs", _table(patterns.others[-20:], width)]
        parts.append("\n".join(lines if count <= 20 else [*lines, f"and {count - 20} before them"]))
    for section, title in _SECTIONS:
        chosen = [statement for statement in patterns.statements if statement.found == section]
        if chosen:
            parts.append(
                "\n".join([title, *(line for statement in chosen for line in _statement(statement, width))])
            )
    if patterns.changes:
        lines = [line for change in patterns.changes[-20:] for line in _statement(change, width)]
        parts.append("\n".join(["Changes between the runs", *lines]))
    if between := _gaps(patterns):
        parts.append("\n".join(["From one death to the next", *between]))
    if patterns.untested:
        lines = [line for what, why in patterns.untested for line in _wrapped(f"{what}: {why}", width)]
        parts.append("\n".join(["Not tested", *lines]))
    if patterns.caution:
        parts.append("\n".join(_wrapped(patterns.caution, width, "")))
    return "\n\n".join(parts)


def _causes(deaths: tuple[Ending, ...]) -> str:
    counts = Counter(cause_of(death.cause).title for death in deaths)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{title} ({count})" for title, count in counts.most_common())


def _statement(statement: Statement, width: int) -> list[str]:
    strength = f" [{statement.strength}]" if statement.found != "open" else ""
    return _wrapped(f"- {statement.text}{strength}", width)


def _wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), max(40, width), initial_indent=indent, subsequent_indent=indent + "  "
    )


def _table(deaths: tuple[Ending, ...], width: int) -> str:
    wall = next((death.wall for death in deaths if death.wall is not None), None)
    rows = [
        (
            f"DATE ({format_zone(wall)})" if wall is not None else "DATE",
            "RUN",
            "DEVICE",
            "STEP",
            "CAUSE",
            "AFTER",
            "HELD",
            "LAST LINE",
        )
    ]
    labels = _labels(death.label for death in deaths)
    for death in deaths:
        of = f"/{death.total}" if death.total else ""
        held = death.memory.held if death.memory else None
        rows.append(
            (
                _when(death),
                labels[death.label],
                death.device or "-",
                f"{death.step}{of}" if death.step is not None else "-",
                cause_of(death.cause).title,
                format_duration(death.uptime) if death.uptime is not None else "-",
                format_size(held) if held is not None else "-",
                " ".join(death.last_line.split()) or "-",
            )
        )
    # a column nobody can fill only takes space
    shown = [at for at in range(8) if at == 0 or any(row[at] != "-" for row in rows[1:])]
    cells = [[row[at] for at in shown] for row in rows]
    place = {column: number for number, column in enumerate(shown)}
    shrink = {place[at]: least for at, least in ((7, 12), (1, 12), (4, 14), (2, 8)) if at in place}
    drop = [place[at] for at in (7, 5, 2, 1) if at in place]
    return "\n".join(
        table(cells, width, shrink=shrink, drop=drop, right=[place[at] for at in (3,) if at in place])
    )


def _labels(labels: Iterable[str]) -> dict[str, str]:
    """Of ids what follows the day, which commands take for them too: all ids of a day begin alike, and a narrow table would cut
    what they differ in."""
    given = set(labels)
    if all(map(_ID.fullmatch, given)):
        return {label: label.partition("-")[2] for label in given}
    return {label: label[:24] for label in given}


def _when(death: Ending) -> str:
    if death.wall is not None:
        return format_time(death.wall, zone=False)[:16]  # to the minute
    return format_time(death.since_boot) or "-"


def _gaps(patterns: Patterns) -> list[str]:
    gaps, parts = patterns.gaps, []
    if gaps.days:
        days = [day * 86400 for day in gaps.days]
        listed = ", ".join(in_days(day) for day in days[-12:])
        parts.append(f"  time     {listed} (median {in_days(sorted(days)[len(days) // 2])})")
    if gaps.steps:
        steps = sorted(gaps.steps)
        parts.append(
            f"  steps    each run got {format_span(f'{steps[0]:,}', f'{steps[-1]:,}')} (median {steps[len(steps) // 2]:,})"
        )
    if gaps.samples:
        samples = sorted(gaps.samples)
        per_step = f"batch {gaps.batch}"
        if gaps.accumulation:
            per_step += f"; × {gaps.accumulation} if the steps are optimizer steps"
        parts.append(f"  samples  {format_span(f'{samples[0]:,}', f'{samples[-1]:,}')} ({per_step})")
    return parts
