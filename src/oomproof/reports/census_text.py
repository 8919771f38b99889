"""`oomproof inspect` in words and as JSON: what a job's variables hold."""

from __future__ import annotations

from typing import Any

from oomproof.diagnosis.data_copies import advice
from oomproof.diagnosis.verdict import plain
from oomproof.evidence.variable_line import variable_line, where
from oomproof.printable import one_line
from oomproof.recording.census_record import Census, copies_text, grown, size_text
from oomproof.reports.table_text import folded, table
from oomproof.units import format_size, format_time

_ROWS = 12
_LEAST_SHARE = 0.002  # of what has a name: less is not worth a line


def census_lines(name: str, censuses: list[Census], started: float, width: int) -> list[str]:
    """Of the last; ``censuses``: all of that process, oldest first."""
    last = censuses[-1]
    step = f", step {last.step}" if last.step is not None else ""
    when = format_time(last.wall, zone=False)
    lines = folded("", f"{name}: pid {last.pid} at {when}{step}: {_totals(last)}", width)
    total = sum(thing.total for thing in last.things)
    things = [thing for thing in last.things[:_ROWS] if thing.total >= _LEAST_SHARE * total]
    rows = [[thing.name, thing.what, size_text(thing), where(thing, started)] for thing in things]
    if rows:
        heading = ["variable", "what it is", "holds", "where"]
        lines += ["", *table([heading, *rows], width, shrink={1: 16, 0: 16, 3: 16}, right=[2])]
    for group in last.copies:
        lines += [
            "",
            *folded("copies  ", copies_text(group), width),
            *folded("next    ", advice(group, started).title, width),
        ]
    rises = grown(censuses)[:5]
    if rises:
        lines.append("")
        since = format_time(rises[0].since, zone=False)
        for rise in rises:
            more = format_size(rise.thing.ram - rise.before)
            lines.append(
                one_line(f"grew    {rise.thing.name} ({where(rise.thing, started)}): +{more} since {since}")
            )
    return lines


def _totals(census: Census) -> str:
    """``108 MiB of 151 MiB have names``."""
    text = f"{format_size(census.ram)} in named variables"
    if census.anon is not None:
        text += f", {format_size(census.anon)} in the process"
    if census.mapped:
        text += f"; {format_size(census.mapped)} mapped from disk, which is page cache and not RAM of its own"
    if census.gpu:
        text += f"; {format_size(census.gpu)} on the GPU"
    return text + ("" if census.complete else " (not all seen: there was no more time)")


def census_json(run_id: str, censuses: list[Census], started: float) -> dict[str, Any]:
    last = censuses[-1]
    things = [
        {**(plain(thing) or {}), "assigned_line": variable_line(thing, started)} for thing in last.things
    ]
    return {
        "schema": 1,
        "run": run_id,
        "pid": last.pid,
        "time": last.wall,
        "why": last.why,
        "phase": last.phase or None,
        "step": last.step,
        "process_bytes": last.anon,
        "named_bytes": last.ram,
        "mapped_bytes": last.mapped,
        "gpu_bytes": last.gpu,
        "complete": last.complete,
        "seconds": last.seconds,
        "things": things,
        "copies": [
            {"rows": group.rows, "holders": [[thing.name for thing in holder] for holder in group.holders]}
            for group in last.copies
        ],
        "grown": [
            {"name": rise.thing.name, "before": rise.before, "after": rise.thing.ram, "since": rise.since}
            for rise in grown(censuses)
        ],
    }
