"""What was killed on this machine, newest last: the table, who held what at the last of them, and its outages."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise

from oomproof.causes import cause_of
from oomproof.diagnosis import verdict as verdicts
from oomproof.diagnosis.advice import as_flag, run_line
from oomproof.diagnosis.outage_verdict import Outage, SystemHistory
from oomproof.diagnosis.verdict import Command, sentence, steps
from oomproof.errors import OomproofError
from oomproof.evidence.case_evidence import other_text
from oomproof.evidence.stored_kills import SystemKill
from oomproof.evidence.system_kills import SystemKills
from oomproof.recording.run_folders import find, to_type
from oomproof.reports.document import (
    Document,
    Items,
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
from oomproof.units import format_duration, format_size, format_time, format_zone


def outage_text(outage: Outage, *, width: int = 110, beside_verdict: bool = False) -> str:
    return terminal(outage_document(outage, beside_verdict), width)


def outage_document(outage: Outage, beside_verdict: bool = False) -> Document:
    """``beside_verdict``: neither verdict nor what could not be read: what stands around it tells that."""
    facts, zone = outage.facts, format_zone(outage.facts.last_sign)
    head = f"{outage.headline} ({outage.certainty})"
    following = next_steps(outage)
    commands = tuple(step.command for step in following if step.command)
    verdict = Labels((("verdict", head), ("why", _why(outage)), ("next", sentence(following))), commands)
    timeline = (f"{_stamp(at)}  {text}" for at, text in facts.timeline)
    unread = Steps(tuple(Step(f"{source}: {reason}") for source, reason in facts.missing))
    return (
        *(() if beside_verdict else (section(verdict),)),
        *listed("Needed and available", _arithmetic(outage)),
        *((section(_runs(outage), title="Who was alive"),) if outage.shares else ()),
        *listed("Beside the runs, not started by oomproof", map(other_text, facts.others[:5])),
        *((section(_minute(outage), title="The last minute"),) if facts.host else ()),
        *listed(f"Timeline ({zone})", timeline, one_line=True),
        section(*_after(outage), title=f"Before and after ({zone})"),
        *((section(unread, title="Could not be read"),) if facts.missing and not beside_verdict else ()),
    )


def _why(outage: Outage) -> str:
    facts = outage.facts
    if outage.kind == "shutdown":
        return f"{facts.shutdown_told_by}; no memory verdict follows from it"
    words = ["the boot id changed and no exit status was written"]
    if outage.kind == "panic":
        words.append(f"the kernel's last words: {facts.panic}")
    if outage.kind == "after-kernel-kill":
        words.append(facts.kernel_kills[-1][1])
    elif not any(source.startswith("kernel log") for source, _ in facts.missing):
        words.append("the kernel's log of that boot names no kill")
    if facts.host:
        words.append(_last(outage))
    if outage.culprit is not None:
        words.append(other_text(outage.culprit))
    if outage.shortfall is not None and outage.shortfall > 0 and outage.newest is not None:
        at_least = "at least " if outage.newest.run.at_least else ""
        words.append(f"{outage.newest.run.name} was short by {at_least}{format_size(outage.shortfall)}")
    return "; ".join(words)


def _last(outage: Outage) -> str:
    point = outage.facts.host[-1]
    return f"at the last sample {format_size(point.available)} of {format_size(point.total)} was available"


def next_steps(outage: Outage) -> tuple[verdicts.Step, ...]:
    if outage.kind in ("memory", "filling") and outage.culprit is not None:
        names = ", ".join(share.run.name for share in outage.shares)
        words = f"start {outage.culprit.name} with oomproof run as well, or when {names} is done: then it waits its turn"
        return steps(words)
    if outage.kind in ("memory", "filling") and outage.newest is not None:
        others = [share.run.name for share in outage.shares if share is not outage.newest]
        first = f"start {', '.join(others)} again first, and when that has ended " if others else "start "
        run = outage.newest.run
        if run.need is not None:  # then it waits by itself
            first = f"first {', '.join(others)}, then " if others else "start "
            need = run_line(run.command, f"--need {as_flag(run.need)}", kept=run.flags)
            return steps(f"{first}{run.name} with what it needs, so that it waits its turn: ", Command(need))
        again = Command(run_line(run.command, kept=run.flags))
        return steps(f"{first}{run.name}{'' if others else ' again'}: ", again)
    if outage.kind in ("not-memory", "panic", "unknown"):
        return steps("for the kernel's last words: journalctl -k -b -1 -e; start the runs again as before")
    if outage.shares:
        last = outage.shares[-1].run
        return steps("start again: ", Command(run_line(last.command, kept=last.flags)))
    return steps(Command("oomproof runs"))


def _arithmetic(outage: Outage) -> list[str]:
    """The sum a person would have done before starting the second job."""
    lines = []
    newest, host = outage.newest, outage.facts.host
    if newest is not None and newest.run.need is not None and outage.there_at_start is not None:
        start = [point for point in host if point.wall <= (newest.run.started or 0.0)] or [*host]
        point = start[-1] if start[-1].wall <= (newest.run.started or 0.0) else start[0]
        need = format_size(newest.run.need)
        swap = f"{format_size(point.swap_free)} of {format_size(point.swap_total)} swap free"
        swap = swap if point.swap_total else "no swap"
        lines.append(
            f"when {newest.run.name} started: {format_size(point.available)} available"
            f" + {swap}"
            f" = {format_size(outage.there_at_start)} there"
        )
        lines.append(f"it needed {need} ({newest.run.need_basis})")
        there, difference = format_size(outage.there_at_start), newest.run.need - outage.there_at_start
        if difference > 0:
            at_least = "at least " if newest.run.at_least else ""
            lines.append(f"{need} − {there} = short by {at_least}{format_size(difference)}")
        elif not newest.run.at_least:
            lines.append(f"{there} − {need} = {format_size(-difference)} to spare")
    if outage.needed is not None and outage.there is not None:
        lines.append(
            f"at the last sample: {format_size(outage.needed)} still to come, {format_size(outage.there)} there"
            + (
                f": short by {format_size(outage.needed - outage.there)}"
                if outage.needed > outage.there
                else ""
            )
        )
    for share in outage.shares:
        if share.run.need is None and share.run.allowed is not None and outage.there is not None:
            more = max(0, share.run.allowed - share.run.held)
            lines.append(
                f"{share.run.name} was allowed {format_size(share.run.allowed)} by its --limit: up to"
                f" {format_size(more)} more, with {format_size(outage.there)} there"
            )
    if outage.seconds_left is not None:
        unknown = "no run's need is known; " if outage.needed is None else ""
        left = format_duration(outage.seconds_left)
        lines.append(f"{unknown}at the last seconds' growth what was there would have lasted {left}")
    return lines


def _runs(outage: Outage) -> Table:
    zone = format_zone(outage.facts.last_sign)
    head = ("RUN", f"STARTED ({zone})", "HELD", "GREW IN THE LAST MINUTE", "STILL TO TAKE", "COMMAND")
    rows = []
    for share in outage.shares:
        rate = f" ({format_size(share.rate)}/s)" if share.rate > 0 else ""
        rows.append(
            (
                share.run.name[:24],
                _stamp(share.run.started) if share.run.started is not None else "-",
                format_size(share.run.held),
                f"{format_size(share.growth)}{rate}",
                format_size(share.still) if share.still is not None else "not known",
                share.run.command,
            )
        )
    return Table(head, tuple(rows), shrink={5: 16, 0: 12}, drop=(4, 1, 5))


def _minute(outage: Outage) -> Labels:
    last = outage.facts.host[-1]
    first = next(point for point in outage.facts.host if last.wall - point.wall <= 60.0)
    total = format_size(last.total)
    rows = [("available", f"{format_size(first.available)} → {format_size(last.available)} of {total}")]
    if last.swap_total:
        used = [format_size(point.swap_total - point.swap_free) for point in (first, last)]
        rows.append(("swap", f"{used[0]} → {used[1]} used of {format_size(last.swap_total)}"))
    else:
        rows.append(("swap", "none"))
    if outage.stalled is not None:
        rows.append(("pressure", f"all tasks were stalled {outage.stalled:.0%} of the time"))
    return Labels(tuple(rows))


def _after(outage: Outage) -> tuple[Labels, Items]:
    facts, boot = outage.facts, "not known"
    if facts.next_boot is not None:
        away = format_duration(facts.next_boot - facts.last_sign)
        source = "" if facts.boots_recorded else " (the present boot; there may have been others between)"
        boot = f"{_stamp(facts.next_boot)}, {away} later{source}"
    rows = [("last sign of life", _stamp(facts.last_sign)), ("next boot", boot)]
    if facts.host and facts.available_now is not None:
        before = format_size(facts.host[-1].available)
        rows.append(("available", f"{before} before, {format_size(facts.available_now)} now"))
    again = (
        f"{share.run.name}: {f'started again {_stamp(at)}' if (at := share.run.started_again) else 'not started again'}"
        for share in outage.shares
    )
    return Labels(tuple(rows)), Items(tuple(again))


def _stamp(wall: float) -> str:
    return format_time(wall, zone=False)


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
