"""Several deaths in words: the table, what they share, what that rules out, what changed between them."""

from __future__ import annotations

import textwrap
import time

from oomproof.diagnosis.pattern_facts import Ending, Patterns, Statement
from oomproof.diagnosis.pattern_states import in_days
from oomproof.units import format_duration, format_size

_SECTIONS = (("tied", "What the deaths share"), ("excluded", "What that rules out"), ("open", "Open"))


def patterns_text(patterns: Patterns, *, width: int = 110) -> str:
    deaths = patterns.deaths
    lived = len(patterns.endings) - len(deaths)
    head = f"{len(deaths)} death{'s' * (len(deaths) != 1)}"
    if lived:
        head += f" in {len(patterns.endings)} runs"
    parts = [head, *([_table(deaths, width)] if deaths else [])]
    for found, title in _SECTIONS:
        chosen = [each for each in patterns.statements if each.found == found]
        if chosen:
            parts.append("\n".join([title, *(line for each in chosen for line in _statement(each, width))]))
    if patterns.changes:
        lines = [line for each in patterns.changes[-20:] for line in _statement(each, width)]
        parts.append("\n".join(["Changes between the runs", *lines]))
    if between := _gaps(patterns):
        parts.append("\n".join(["From one death to the next", *between]))
    if patterns.untested:
        lines = [line for what, why in patterns.untested for line in _wrapped(f"{what}: {why}", width)]
        parts.append("\n".join(["Not tested", *lines]))
    if patterns.caution:
        parts.append("\n".join(_wrapped(patterns.caution, width, "")))
    return "\n\n".join(parts)


def _statement(each: Statement, width: int) -> list[str]:
    strength = f" [{each.strength}]" if each.found != "open" else ""
    return _wrapped(f"- {each.text}{strength}", width)


def _wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), max(40, width), initial_indent=indent, subsequent_indent=indent + "  "
    )


def _table(deaths: tuple[Ending, ...], width: int) -> str:
    rows = [("DATE", "RUN", "DEVICE", "STEP", "CAUSE", "AFTER", "HELD", "LAST LINE")]
    for each in deaths:
        of = f"/{each.total}" if each.total else ""
        held = each.memory.held if each.memory else None
        rows.append(
            (
                time.strftime("%F %H:%M", time.localtime(each.wall)) if each.wall is not None else "-",
                each.label[:24],
                each.device or "-",
                f"{each.step}{of}" if each.step is not None else "-",
                each.cause,
                format_duration(each.uptime) if each.uptime is not None else "-",
                format_size(held) if held is not None else "-",
                " ".join(each.last_line.split()) or "-",
            )
        )
    # a column nobody can fill only takes room
    shown = [at for at in range(8) if at in (0, 3, 7) or any(row[at] != "-" for row in rows[1:])]
    widths = {at: max(len(row[at]) for row in rows) for at in shown}
    room = max(20, width - sum(widths[at] + 2 for at in shown[:-1]))
    lines = []
    for row in rows:
        cells = [row[at].rjust(widths[at]) if at == 3 else row[at].ljust(widths[at]) for at in shown[:-1]]
        last = row[7] if len(row[7]) <= room else row[7][: room - 1] + "…"
        lines.append("  ".join([*cells, last]).rstrip())
    return "\n".join(lines)


def _gaps(patterns: Patterns) -> list[str]:
    gaps, found = patterns.gaps, []
    if gaps.days:
        days = [each * 86400 for each in gaps.days]
        listed = ", ".join(in_days(each) for each in days[-12:])
        found.append(f"  time     {listed} (middle {in_days(sorted(days)[len(days) // 2])})")
    if gaps.steps:
        steps = sorted(gaps.steps)
        found.append(
            f"  steps    each run got {steps[0]:,} to {steps[-1]:,} (middle {steps[len(steps) // 2]:,})"
        )
    if gaps.samples:
        samples = sorted(gaps.samples)
        per_step = f"batch {gaps.batch}"
        if gaps.accumulation:
            per_step += f"; × {gaps.accumulation} if the steps are optimizer steps"
        found.append(f"  samples  {samples[0]:,} to {samples[-1]:,} ({per_step})")
    return found
