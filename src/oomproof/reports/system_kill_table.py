"""What was killed on this machine, newest last: the table, who held what at the last of them, and its outages."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise

from oomproof.causes import cause_of
from oomproof.diagnosis.outage_verdict import SystemHistory
from oomproof.errors import OomproofError
from oomproof.evidence.stored_kills import SystemKill
from oomproof.evidence.system_kills import SystemKills
from oomproof.recording.run_folders import find, to_type
from oomproof.reports.document import (
    Document,
    Labels,
    Paragraph,
    Section,
    Step,
    Steps,
    Table,
    listed,
    section,
    terminal,
)
from oomproof.reports.outage_report import outage_document
from oomproof.units import format_duration, format_size, format_time, format_zone

_JOBS = 6
# seconds between kills that are worth a forecast; of their middle, by which they may differ
_SHORTEST, _ALIKE = 3600.0, 0.3


def system_text(history: SystemHistory, *, width: int = 110) -> str:
    return terminal(system_document(history), width)


def system_document(history: SystemHistory) -> Document:
    report = history.kills
    parts = [section(Paragraph(_headline(history)))]
    if report.kills:
        regular = tuple(map(Paragraph, _regular(report.kills)))
        parts += [section(_table(report.kills)), *((section(*regular),) if regular else ())]
        parts += _shortage(report.kills)
    parts += listed("Counters", _counters(report))
    if report.missing:
        steps = (Step(f"{gap.source}: {gap.reason}", "", gap.how_to_grant) for gap in report.missing)
        parts.append(section(Steps(tuple(steps)), title="Could not be read"))
    parts += [part for outage in history.outages for part in outage_document(outage)]
    last = next((kill.run for kill in reversed(report.kills) if kill.run is not None), None)
    if last is not None:
        parts.append(section(Labels((("next", f"oomproof why {_typed(last)}"),))))
    return tuple(parts)


def _headline(history: SystemHistory) -> str:
    report, down = history.kills, _went_down(history)
    since = f"since {format_time(report.since)}" if report.since else "on record"
    if report.kills:
        ours = sum(kill.run is not None for kill in report.kills)
        count = len(report.kills)
        return (
            f"{down}{count} kill{'s' * (count != 1)} for memory {since}, {ours} of them in runs of oomproof"
        )
    if not report.sources:
        return f"{down}whether anything was killed {since} cannot be told: no log could be read"
    unsure = (
        ""
        if _kernel_read(report)
        else "; but the kernel's own log could not be read, so there may have been some"
    )
    return f"{down}no kill for memory {since} (read: {', '.join(report.sources)}){unsure}"


def _kernel_read(report: SystemKills) -> bool:
    return not any(gap.source.startswith("kernel log") for gap in report.missing)


def _counters(report: SystemKills) -> list[str]:
    lines = []
    if report.counted is not None:
        told = f"the kernel counted {report.counted} OOM kill{'s' * (report.counted != 1)} since boot"
        if report.counted > report.logged and _kernel_read(report):
            told += f"; its log still names {report.logged} of them"
        elif report.counted and not _kernel_read(report):
            told += "; its log would name them"
        lines.append(told)
    lines += [f"cgroup {cgroup.path}: {cgroup.kills} killed in it" for cgroup in report.cgroups[:10]]
    return lines + ([f"and {more} cgroups more"] if (more := len(report.cgroups) - 10) > 0 else [])


def _went_down(history: SystemHistory) -> str:
    """The worst first: its story stands below all kills."""
    if not history.outages:
        return ""
    last, count = history.outages[-1].facts.last_sign, len(history.outages)
    times = f"{count} times, the last time" if count > 1 else "once,"
    return f"the machine went down under a run {times} after {format_time(last)} (below); "


def _typed(run_id: str) -> str:
    """What `why` takes for it."""
    try:
        return to_type(find(run_id))
    except OomproofError:  # it was removed meanwhile
        return run_id


def _table(kills: tuple[SystemKill, ...]) -> Table:
    zone = next((format_zone(kill.wall) for kill in kills if kill.wall is not None), "no zone")
    rows = []
    for kill in kills:
        victim = kill.name or kill.cgroup or "?"
        rows.append(
            (
                format_time(kill.wall, zone=False) or "unknown time",
                f"{victim[-40:]} ({kill.pid})" if kill.pid is not None else victim[-48:],
                format_size(kill.held) if kill.held is not None else "-",
                _by(kill),
                kill.run_name or "no",
                kill.certainty,
            )
        )
    head = (f"TIME ({zone})", "VICTIM", "HELD", "BY", "OURS", "CERTAINTY")
    return Table(head, tuple(rows), right=(2,), shrink={3: 14, 1: 12, 4: 8}, drop=(5, 4))


def _regular(kills: tuple[SystemKill, ...]) -> list[str]:
    """Programs that were killed at regular intervals, and when the next would be due."""
    lines = []
    for name, (interval, last, count) in sorted(regular_kills(kills).items()):
        due = last + interval
        when = (
            f"next about {format_time(due, zone=False)}" if due > time.time() else "the next one is overdue"
        )
        lines.append(f"{name} was killed every {format_duration(interval)} ({count} times); {when}")
    return lines


def regular_kills(kills: Iterable[SystemKill]) -> dict[str, tuple[float, float, int]]:
    """Program → seconds between its kills, the last one's time, how many; of those with at least two alike intervals."""
    times: dict[str, list[float]] = {}
    for kill in kills:
        if kill.name and kill.wall is not None:
            times.setdefault(kill.run_name or kill.name, []).append(kill.wall)
    regular = {}
    for name, walls in times.items():
        between = [later - earlier for earlier, later in pairwise(sorted(walls))]
        middle = sorted(between)[len(between) // 2] if between else 0.0
        if len(between) >= 2 and middle >= _SHORTEST and max(between) - min(between) <= _ALIKE * middle:
            regular[name] = (middle, max(walls), len(walls))
    return regular


def _shortage(kills: tuple[SystemKill, ...]) -> list[Section]:
    """The last shortage that the kernel drew up an account of: who held what, asked for what, and what was there."""
    kill = next((kill for kill in reversed(kills) if kill.facts.jobs), None)
    if kill is None:
        return []
    facts, machine = kill.facts, kill.facts.machine
    rows = tuple(
        (
            job.name or "?",
            str(len(job.pids)),
            "-" if job.uid is None else str(job.uid),
            format_size(job.ram),
            format_size(job.swap) if job.swap else "-",
            "killed" if kill.pid in job.pids and len(job.pids) == 1
            else f"pid {kill.pid} of it killed" if kill.pid in job.pids else "",
        )
        for job in facts.jobs[:_JOBS]
    )  # fmt: skip
    head = ("PROGRAM", "PROCESSES", "UID", "RAM", "SWAP", "END")
    told = []
    if facts.asked_by is not None:
        asked = f"{format_size(facts.asked)} " if facts.asked is not None else ""
        told.append(("asked", f"{facts.asked_by} asked for {asked}more"))
    if machine.ram is not None:
        swap = (
            f"{format_size(machine.swap_free)} of {format_size(machine.swap_total)}"
            if machine.swap_total
            else "no"
        )
        told.append(
            (
                "available",
                f"{format_size(machine.free)} of {format_size(machine.ram)} RAM was free, {swap} swap",
            )
        )
    elif kill.limit is not None:
        told.append(("available", f"the limit of {format_size(kill.limit)} was full"))
    if kill.held is not None:
        told.append(("after", f"the kill gave {format_size(kill.held)} back"))
    title = f"Who held what when {kill.name or '?'} ({kill.pid}) was killed, {format_time(kill.wall)}"
    table = Table(head, rows, right=(1, 3, 4), shrink={0: 10, 5: 10}, drop=(2,))
    return [section(table, *([Labels(tuple(told))] if told else []), title=title)]


def _by(kill: SystemKill) -> str:
    name = cause_of(kill.cause).title
    if kill.limit is not None and kill.cause == "oom-kill-memcg":
        name += f" {format_size(kill.limit)}"
    return name
