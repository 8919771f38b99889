"""The last minutes before a machine went down, as one row of dated sentences."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.evidence.json_files import number, string
from oomproof.evidence.outage_facts import HostPoint
from oomproof.recording.attempt import Attempt
from oomproof.recording.run_folders import Run
from oomproof.units import format_size

_BEFORE = 900.0
_MARKS = (0.5, 0.25, 0.1, 0.05)  # of RAM left: worth a line when first crossed
_MOST = 40


def timeline(
    alive: Sequence[tuple[Run, Attempt, float | None, float]],
    known: Sequence[Run],
    boot_id: str,
    host: Sequence[HostPoint],
    last: float,
    next_boot: float | None,
    shutdown: float | None,
    kills: Sequence[tuple[float, str]],
) -> tuple[tuple[float, str], ...]:
    """``alive``: (run, attempt, when it began, wall clock at boottime 0)."""
    moments: list[tuple[float, str]] = []
    for run, attempt, begin, offset in alive:
        if begin is not None:
            moments.append((begin, f"{run.name} started"))
        moments += _told(run, attempt, offset, last)
    moments += _ended_before(known, boot_id, {run.id for run, _, _, _ in alive}, last)
    moments += _crossings(host)
    moments += list(kills)
    if shutdown is not None:
        moments.append((shutdown, "the machine was told to shut down"))
    moments.append((last, _last_message(host)))
    if next_boot is not None:
        moments.append((next_boot, "the machine booted again"))
    moments.sort(key=lambda moment: moment[0])
    # starts long ago stay: they say who was there first
    return tuple(moments if len(moments) <= _MOST else [*moments[:10], *moments[10 - _MOST :]])


def _told(run: Run, attempt: Attempt, offset: float, last: float) -> list[tuple[float, str]]:
    """What the guard did and what the recording noted, without repeating itself."""
    moments: list[tuple[float, str]] = []
    for line in attempt.actions():
        at, what = number(line.get("boottime")), string(line.get("action"))
        if at is not None and what is not None and last - (at + offset) <= _BEFORE:
            why = string(line.get("why")) or ""
            moments.append((at + offset, f"{run.name}: guard: {what}{f', {why}' if why else ''}"))
    with attempt.recording().series() as series:
        events = series.events(last=10)
    done = tuple(moments)
    for event in reversed(events):
        wall, told = event.t + offset, event.text or event.kind
        # an action is noted in both places
        if last - wall <= _BEFORE and not any(abs(at - wall) < 2.0 and told in words for at, words in done):
            moments.append((wall, f"{run.name}: {told}"))
    return moments


def _ended_before(
    known: Sequence[Run], boot_id: str, alive: set[str], last: float
) -> list[tuple[float, str]]:
    """Runs of that boot that ended in its last minutes: a kill just before is part of the story."""
    moments = []
    for run in known:
        if run.id in alive or run.info.get("boot_id") != boot_id:
            continue
        exited, _ = run.attempt.load_exit()
        at = number(exited.get("wall"))
        if at is not None and 0 <= last - at <= _BEFORE:
            how = (
                f"by signal {exited['signal']}"
                if exited.get("signal")
                else f"with status {exited.get('code')}"
            )
            moments.append((at, f"{run.name} ended {how}"))
    return moments


def _crossings(host: Sequence[HostPoint]) -> list[tuple[float, str]]:
    moments = []
    for mark in _MARKS:
        above = False
        for point in host:
            if point.available > mark * point.total:
                above = True
            elif above:
                left, total = format_size(point.available), format_size(point.total)
                moments.append((point.wall, f"{left} of {total} available, less than {mark:.0%}"))
                break
    swap = next(
        (point for point in host if point.swap_total and point.swap_free <= point.swap_total // 50), None
    )
    if swap is not None:
        # full from the first sample we have: it was so before
        already = " already" if host and swap is host[0] else ""
        moments.append((swap.wall, f"swap was{already} full ({format_size(swap.swap_total)})"))
    return moments


def _last_message(host: Sequence[HostPoint]) -> str:
    if not host:
        return "last sign of life"
    point = host[-1]
    text = f"last sample: {format_size(point.available)} of {format_size(point.total)} available"
    if point.swap_total:
        text += f", {format_size(point.swap_free)} of {format_size(point.swap_total)} swap free"
    return text
