"""The story of a machine that went down: verdict, arithmetic, who held what, the timeline, before and after."""

from __future__ import annotations

from oomproof.diagnosis.advice import as_flag, run_line
from oomproof.diagnosis.outage_verdict import Outage
from oomproof.evidence.case_evidence import other_text
from oomproof.reports.document import Document, Items, Labels, Step, Steps, Table, listed, section, terminal
from oomproof.units import format_duration, format_size, format_time, format_zone


def outage_text(outage: Outage, *, width: int = 110, beside_verdict: bool = False) -> str:
    return terminal(outage_document(outage, beside_verdict), width)


def outage_document(outage: Outage, beside_verdict: bool = False) -> Document:
    """``beside_verdict``: neither verdict nor what could not be read: what stands around it tells that."""
    facts, zone = outage.facts, format_zone(outage.facts.last_sign)
    head = f"{outage.headline} ({outage.certainty})"
    verdict = Labels((("verdict", head), ("why", _why(outage)), ("next", next_step(outage))))
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


def next_step(outage: Outage) -> str:
    if outage.kind in ("memory", "filling") and outage.culprit is not None:
        names = ", ".join(share.run.name for share in outage.shares)
        return f"start {outage.culprit.name} with oomproof run as well, or when {names} is done: then it waits its turn"
    if outage.kind in ("memory", "filling") and outage.newest is not None:
        others = [share.run.name for share in outage.shares if share is not outage.newest]
        first = f"start {', '.join(others)} again first, and when that has ended " if others else "start "
        run = outage.newest.run
        if run.need is not None:  # then it waits by itself
            first = f"first {', '.join(others)}, then " if others else "start "
            need = run_line(run.command, f"--need {as_flag(run.need)}", kept=run.flags)
            return f"{first}{run.name} with what it needs, so that it waits its turn: {need}"
        return f"{first}{run.name}{'' if others else ' again'}: {run_line(run.command, kept=run.flags)}"
    if outage.kind in ("not-memory", "panic", "unknown"):
        return "for the kernel's last words: journalctl -k -b -1 -e; start the runs again as before"
    if outage.shares:
        last = outage.shares[-1].run
        return f"start again: {run_line(last.command, kept=last.flags)}"
    return "oomproof runs"


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
