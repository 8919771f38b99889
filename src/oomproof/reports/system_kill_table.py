"""What was killed on this machine, as a table, newest last, with what could not be read and how to open it."""

from __future__ import annotations

import textwrap
import time

from oomproof.causes import cause_of
from oomproof.evidence.system_kills import SystemKill, SystemKills
from oomproof.reports.table_text import table
from oomproof.units import format_size


def system_text(report: SystemKills, *, width: int = 110) -> str:
    since = time.strftime("%F %H:%M", time.localtime(report.since))
    read = ", ".join(report.sources)
    kernel_read = not any(gap.source.startswith("kernel log") for gap in report.missing)
    if report.kills:
        ours = sum(kill.run is not None for kill in report.kills)
        count = len(report.kills)
        head = f"{count} kill{'s' * (count != 1)} for memory since {since}, {ours} of them of runs of ours"
        parts = [textwrap.fill(head, width), _table(report.kills, width)]
    elif report.sources:
        told = f"no kill for memory since {since} (read: {read})"
        if not kernel_read:
            told += "; but the kernel's own log could not be read, so there may have been some"
        parts = [textwrap.fill(told, width)]
    else:
        parts = [f"whether anything was killed since {since} cannot be told: no log could be read"]
    lines = []
    if report.counted is not None:
        told = f"the kernel counted {report.counted} OOM kill{'s' * (report.counted != 1)} since boot"
        if report.counted > report.logged and kernel_read:
            told += f"; its log still tells {report.logged} of them"
        elif report.counted and not kernel_read:
            told += "; which, its log would tell"
        lines += textwrap.wrap(told, width - 2)
    for cgroup in report.cgroups[:10]:
        lines.append(f"cgroup {cgroup.path}: {cgroup.kills} killed in it")
    if len(report.cgroups) > 10:
        lines.append(f"and {len(report.cgroups) - 10} cgroups more")
    if lines:
        parts.append("\n".join(["Counters", *(f"  {line}" for line in lines)]))
    if report.missing:
        lines = ["Could not be read"]
        for gap in report.missing:
            lines += textwrap.wrap(
                f"- {gap.source}: {gap.reason}", width, initial_indent="  ", subsequent_indent="    "
            )
            if gap.how_to_grant:
                lines.append(f"      {gap.how_to_grant}")
        parts.append("\n".join(lines))
    last = next((kill for kill in reversed(report.kills) if kill.run is not None), None)
    if last is not None:
        parts.append(f"next     oomproof why {last.run}")
    return "\n\n".join(parts)


def _table(kills: tuple[SystemKill, ...], width: int) -> str:
    rows = [("TIME", "VICTIM", "HELD", "BY", "OURS", "CERTAINTY")]
    for kill in kills:
        victim = kill.name or kill.cgroup or "?"
        rows.append(
            (
                time.strftime("%F %T", time.localtime(kill.wall))
                if kill.wall is not None
                else "unknown time",
                f"{victim[-40:]} ({kill.pid})" if kill.pid is not None else victim[-48:],
                format_size(kill.held) if kill.held is not None else "-",
                _by(kill),
                kill.run_name or "no",
                kill.certainty,
            )
        )
    return "\n".join(table(rows, width, shrink={3: 14, 1: 12, 4: 8}, drop=(5, 4), right=(2,)))


def _by(kill: SystemKill) -> str:
    name = cause_of(kill.cause).title
    if kill.limit is not None and kill.cause == "oom-kill-memcg":
        name += f" {format_size(kill.limit)}"
    return name
