"""Kills out of several texts as one history: dated, each told once, and those that are not of the job in question. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from oomproof.causes import cause_of
from oomproof.evidence.texts.finding import Finding
from oomproof.evidence.texts.line_prefixes import date_without_year
from oomproof.records import dataclass, replace

SAME_KILL = 60.0  # seconds within which two sources may date one kill; pids come round later than that
# `dmesg -T` counts no suspended hours: identical figures of one pid are one kill all the same
_DRIFT = 86400.0
_AFTER = 600.0  # seconds a job may still print after one of its processes was killed
_BEFORE = 3600.0  # seconds a job may have printed nothing when it was killed
_SINCE_BOOT = 1e8
# Names, as the kernel cuts them, of what is never a training.
_DESKTOP = frozenset({
    "chrome", "chromium", "chromium-browse", "firefox", "firefox-bin", "firefox-esr", "Web Content", "WebExtensions",
    "Isolated Web Co", "Privileged Cont", "brave", "msedge", "opera", "slack", "teams", "Discord", "spotify", "zoom",
    "thunderbird", "gnome-shell", "plasmashell", "Xorg", "Xwayland", "code", "mysqld", "mariadbd", "postgres", "mongod",
    "redis-server", "snapd", "dockerd", "containerd", "apache2", "nginx",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobLog:
    """A job's own text. ``told``: the last date in it; ``written``: the file's own, never before its last line."""

    source: str
    told: float | None = None
    written: float | None = None
    pids: tuple[int, ...] = ()  # that it names as dead


def dated(findings: Sequence[Finding], written: float) -> list[Finding]:
    """In their order, with a year for stamps that have none: no line of a file is younger than the file, and none is
    younger than the lines behind it."""
    latest = written
    when: dict[int, float] = {}
    for at, finding in sorted(enumerate(findings), key=lambda entry: -entry[1].sort_key):
        wall = date_without_year(finding.time, latest)
        if wall is not None:
            when[at] = wall
            latest = min(latest, wall)
    return [
        replace(finding, seconds=when[at]) if at in when else finding for at, finding in enumerate(findings)
    ]


def wall_of(finding: Finding) -> float | None:
    """Epoch seconds; None for a kernel's uptime, which is no date."""
    return finding.seconds if finding.seconds is not None and finding.seconds >= _SINCE_BOOT else None


def oldest_first(findings: Iterable[Finding]) -> list[Finding]:
    """By their lines within one text; by their dates over several, where all have one."""
    told = sorted(findings, key=lambda finding: finding.sort_key)
    walls = {id(finding): wall_of(finding) for finding in told}
    if len({finding.source for finding in told}) > 1 and None not in walls.values():
        told.sort(key=lambda finding: walls[id(finding)] or 0.0)
    return told


def told_twice(
    pids: tuple[int | None, int | None], walls: tuple[float | None, float | None], same_figures: bool | None
) -> bool:
    """Whether two tellings are of one kill. ``same_figures``: None where one of them has none."""
    if pids[0] is None or pids[0] != pids[1]:
        return False
    first, second = walls
    if first is not None and second is not None:
        apart = abs(first - second)
        return apart <= SAME_KILL or (same_figures is True and apart <= _DRIFT)
    return same_figures is not False


def told_once(findings: Sequence[Finding]) -> list[Finding]:
    """The same kill in kern.log and in the journal is one: the fuller telling stays, with the date of either."""
    kept: list[Finding] = []
    for finding in findings:
        at = next((at for at, other in enumerate(kept) if _same(finding, other)), None)
        if at is None:
            kept.append(finding)
            continue
        fuller, other = sorted((kept[at], finding), key=_fullness, reverse=True)
        wall = wall_of(fuller) or wall_of(other)
        kept[at] = replace(fuller, seconds=wall if wall is not None else fuller.seconds)
    return kept


def _same(finding: Finding, other: Finding) -> bool:
    if finding.source == other.source or not (cause_of(finding.cause).kill and cause_of(other.cause).kill):
        return False
    victim, older = finding.victim, other.victim
    if victim is None or older is None or (victim.name and older.name and victim.name != older.name):
        return False
    figures = None
    if victim.anon_rss is not None and older.anon_rss is not None:
        figures = (victim.anon_rss, victim.total_vm) == (older.anon_rss, older.total_vm)
    return told_twice((victim.pid, older.pid), (wall_of(finding), wall_of(other)), figures)


def _fullness(finding: Finding) -> tuple[int, int, float]:
    known = finding.victim is not None and finding.victim.anon_rss is not None
    return len(finding.kernel.jobs), known, finding.strength


def of_others(findings: Sequence[Finding], logs: Sequence[JobLog]) -> list[Finding]:
    """Kills that are not of the jobs whose logs these are: of another day, or of a browser."""
    if not logs:
        return []
    return [
        finding
        for finding in findings
        if cause_of(finding.cause).kill and not any(may_explain(finding, log) for log in logs)
    ]


def may_explain(kill: Finding, log: JobLog) -> bool:
    if kill.source == log.source or set(kill.pids) & set(log.pids):
        return True
    if kill.victim is not None and kill.victim.name in _DESKTOP:
        return False
    wall = wall_of(kill)
    if wall is None:
        return True
    if log.told is not None:
        return -_AFTER <= wall - log.told <= _BEFORE
    return log.written is None or wall - log.written <= _BEFORE
