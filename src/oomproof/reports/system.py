"""What was killed on this machine, as a table, newest last, with what could not be read and how to open it."""

from __future__ import annotations

import textwrap
import time

from oomproof.causes import cause_of
from oomproof.evidence.system import SystemKill, SystemKills
from oomproof.units import format_size


def system_text(found: SystemKills, *, width: int = 110) -> str:
    since = time.strftime("%F %H:%M", time.localtime(found.since))
    read = ", ".join(found.sources)
    kernel_read = not any(gap.source.startswith("kernel log") for gap in found.missing)
    if found.kills:
        ours = sum(each.run is not None for each in found.kills)
        count = len(found.kills)
        head = f"{count} kill{'s' * (count != 1)} for memory since {since}, {ours} of them of runs of ours"
        parts = [head, _table(found.kills, width)]
    elif found.sources:
        told = f"no kill for memory since {since} (read: {read})"
        if not kernel_read:
            told += "; but the kernel's own log could not be read, so there may have been some"
        parts = [told]
    else:
        parts = [f"whether anything was killed since {since} cannot be told: no log could be read"]
    lines = []
    if found.counted is not None:
        told = f"the kernel counted {found.counted} OOM kill{'s' * (found.counted != 1)} since boot"
        if found.counted > found.logged and kernel_read:
            told += f"; its log still tells {found.logged} of them"
        elif found.counted and not kernel_read:
            told += "; which, its log would tell"
        lines.append(told)
    for each in found.cgroups[:10]:
        lines.append(f"cgroup {each.path}: {each.kills} killed in it")
    if len(found.cgroups) > 10:
        lines.append(f"and {len(found.cgroups) - 10} cgroups more")
    if lines:
        parts.append("\n".join(["Counters", *(f"  {line}" for line in lines)]))
    if found.missing:
        lines = ["Could not be read"]
        for gap in found.missing:
            lines += textwrap.wrap(
                f"- {gap.source}: {gap.reason}", width, initial_indent="  ", subsequent_indent="    "
            )
            if gap.how_to_grant:
                lines.append(f"      {gap.how_to_grant}")
        parts.append("\n".join(lines))
    last = next((each for each in reversed(found.kills) if each.run is not None), None)
    if last is not None:
        parts.append(f"next     oomproof why {last.run}")
    return "\n\n".join(parts)


def _table(kills: tuple[SystemKill, ...], width: int) -> str:
    rows = [("TIME", "VICTIM", "HELD", "BY", "OURS", "CERTAINTY")]
    for each in kills:
        victim = each.name or each.cgroup or "?"
        rows.append(
            (
                time.strftime("%F %T", time.localtime(each.wall))
                if each.wall is not None
                else "unknown time",
                f"{victim[-40:]} ({each.pid})" if each.pid is not None else victim[-48:],
                format_size(each.held) if each.held is not None else "-",
                _by(each),
                each.run_name or "no",
                each.certainty,
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(6)]
    lines = []
    for row in rows:
        cells = [cell.rjust(widths[at]) if at == 2 else cell.ljust(widths[at]) for at, cell in enumerate(row)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _by(kill: SystemKill) -> str:
    name = cause_of(kill.cause).label or kill.cause
    if kill.limit is not None and kill.cause == "oom-kill-memcg":
        name += f" {format_size(kill.limit)}"
    return name
