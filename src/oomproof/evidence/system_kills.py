"""What was killed for memory on this machine, by whom, and whether it was ours: every source it can read, joined."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from oomproof.causes import cause_of
from oomproof.errors import OomproofError
from oomproof.evidence.case_file import Missing
from oomproof.evidence.kill_owners import OurRuns, feed_journal, guard_stops, kills_in_verdicts
from oomproof.evidence.stored_kills import SystemKill, stored_kills
from oomproof.evidence.texts.finding import Finding
from oomproof.evidence.texts.guard_parser import ANCHORS as GUARD_ANCHORS
from oomproof.evidence.texts.guard_parser import GuardParser
from oomproof.evidence.texts.kernel_parser import ANCHORS as KERNEL_ANCHORS
from oomproof.evidence.texts.kernel_parser import REPORT_END, REPORT_STARTS, KernelParser
from oomproof.evidence.texts.kill_history import SAME_KILL, told_twice, wall_of
from oomproof.evidence.texts.line_prefixes import date_without_year
from oomproof.evidence.texts.long_texts import marked_lines
from oomproof.leaf.action_kinds import KILL
from oomproof.machine import kernel_log
from oomproof.machine.clock import boottime
from oomproof.machine.kill_counters import CgroupKills, cgroup_kills, machine_kills
from oomproof.recording.attempt import Attempt
from oomproof.recording.run_folders import Run, list_runs
from oomproof.records import dataclass, replace

LOG_FILES = ("/var/log/kern.log", "/var/log/syslog", "/var/log/messages")
_MACOS = "log show --last 2h --predicate 'eventMessage CONTAINS \"memorystatus\"' | oomproof why -"


@dataclass(frozen=True, slots=True)
class SystemKills:
    since: float
    kills: tuple[SystemKill, ...] = ()  # oldest first; those without a time before all others
    counted: int | None = None  # by the kernel since boot, everybody's
    logged: int = 0  # of those, how many the kernel's log still tells
    cgroups: tuple[CgroupKills, ...] = ()
    sources: tuple[str, ...] = ()  # those that could be read
    missing: tuple[Missing, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "since": self.since,
            "kills": [kill.to_json() for kill in self.kills],
            "counted_since_boot": self.counted,
            "logged_since_boot": self.logged,
            "cgroups": [
                {"path": cgroup.path, "kills": cgroup.kills, "version": cgroup.version}
                for cgroup in self.cgroups
            ],
            "sources": list(self.sources),
            "missing": [
                {"source": source.source, "reason": source.reason, "how_to_grant": source.how_to_grant}
                for source in self.missing
            ],
        }


def system_kills(
    since: float,
    *,
    proc: str = "/proc",
    kmsg: str = "/dev/kmsg",
    journalctl: str = "journalctl",
    logs: Sequence[str] = LOG_FILES,
    runs: Sequence[Run] | None = None,
    now: float | None = None,
    kept: Sequence[SystemKill] | None = None,
) -> SystemKills:
    """``since`` in epoch seconds. ``kept``: told by an earlier look, of logs that may be gone by now. Never raises for what it
    reads."""
    now = time.time() if now is None else now
    missing: list[Missing] = []
    sources: list[str] = []
    # the whole ring, so that what it tells can be held against the kernel's own count
    of_boot = _from_ring(kmsg, journalctl, now, sources, missing)
    all_kills = list(of_boot)
    kernel, guards = KernelParser("journal"), GuardParser("journal")

    def feed(number: int, line: str) -> None:
        kernel.feed(number, line)
        guards.feed(number, line)

    gap = feed_journal(since, feed, command=journalctl)
    if gap is None:
        sources.append("journal")
    all_kills += _kills([*kernel.finish(), *guards.finish()], 0.0, now)
    if gap is not None:
        read, of_files = _from_files(logs, now)
        sources += read
        all_kills += of_files
        if not read:
            missing.append(gap)
    if earlier := list(stored_kills() if kept is None else kept):
        sources.append("what was kept of earlier logs")
    known = list_runs() if runs is None else runs
    told = _joined([*all_kills, *earlier, *kills_in_verdicts(known, since)])
    kills = [kill for kill in told if kill.wall is None or kill.wall >= since]
    ours = OurRuns(known, proc)
    kills = [kill if kill.run else _owned(kill, ours) for kill in kills]
    kills += _by_our_guards(known, since, kills)
    counted = machine_kills(proc)
    if counted is None:
        missing.append(Missing("/proc/vmstat", "it has no count of OOM kills", ""))
    if not ours.pids_comparable and kills:
        missing.append(
            Missing(
                "pids",
                "in a container the kernel counts pids differently: only cgroups can be matched with runs",
                "run oomproof on the host, or with --pid=host",
            )
        )
    return SystemKills(
        since,
        tuple(sorted(kills, key=lambda kill: kill.wall or 0.0)),
        counted,
        sum(cause_of(kill.cause).kernel_kill for kill in of_boot),
        cgroup_kills(proc),
        tuple(sources),
        tuple(missing),
    )


def _from_ring(
    kmsg: str, journalctl: str, now: float, sources: list[str], missing: list[Missing]
) -> list[SystemKill]:
    if sys.platform == "darwin":
        missing.append(Missing("the system log of macOS", "it is not read from here", _MACOS))
        return []
    log = kernel_log.read(0.0, kmsg=kmsg, journalctl=journalctl)
    if log.reason is not None:
        missing.append(Missing(log.source, log.reason, log.how_to_grant))
        return []
    sources.append(log.source)
    if log.overwritten:
        # ring and boot: early kills may be gone; the count beside the list shows whether any are
        sources[-1] += ", its oldest lines overwritten"
    kernel, guards = KernelParser(log.source), GuardParser(log.source)
    for number, line in enumerate(log.lines, 1):
        text = f"[{line.time:12.6f}] {line.text}"
        kernel.feed(number, text)
        guards.feed(number, text)  # daemons that write to /dev/kmsg
    return _kills([*kernel.finish(), *guards.finish()], now - boottime(), now)


def _from_files(paths: Sequence[str], now: float) -> tuple[list[str], list[SystemKill]]:
    """Where there is no journal, syslog may keep what the daemons said."""
    read, kills = [], []
    anchors = [*dict.fromkeys([*KERNEL_ANCHORS, *GUARD_ANCHORS])]
    for path in paths:
        kernel, guards = KernelParser(path), GuardParser(path)
        try:
            for number, line in marked_lines(path, anchors, REPORT_STARTS, REPORT_END):
                kernel.feed(number, line)
                guards.feed(number, line)
        except (OomproofError, OSError):
            continue  # not there, empty, or not for us to read
        read.append(path)
        kills += _kills([*kernel.finish(), *guards.finish()], 0.0, now)
    return read, kills


def _kills(findings: Iterable[Finding], offset: float, now: float) -> list[SystemKill]:
    """``offset``: what makes a time since boot one of the wall clock; 0 where the boot is not known."""
    kills = []
    for finding in findings:
        if not cause_of(finding.cause).kill:
            continue
        victim = finding.victim
        kills.append(
            SystemKill(
                wall=_wall(finding, offset, now),
                cause=finding.cause,
                pid=victim.pid if victim else None,
                name=victim.name if victim else None,
                held=_held(finding),
                certainty="proven"
                if finding.strength >= 0.9
                else "likely"
                if finding.strength >= 0.6
                else "possible",
                source=finding.source,
                text=" ".join(finding.text.split())[:600],
                cgroup=finding.cgroup,
                limit=finding.limit,
                facts=finding.kernel,
            )
        )
    return kills


def _held(finding: Finding) -> int | None:
    sizes = finding.victim
    if sizes is not None and sizes.anon_rss is not None:
        return sizes.anon_rss + (sizes.shmem_rss or 0)
    return finding.guard.held


def _wall(finding: Finding, offset: float, now: float) -> float | None:
    wall = wall_of(finding) or date_without_year(finding.time, now)
    if wall is None and finding.seconds is not None and offset:
        return finding.seconds + offset
    return wall


def _joined(kills: Sequence[SystemKill]) -> list[SystemKill]:
    """One kill told by several sources is one; the fullest telling stays. A unit that systemd reports dead of
    an OOM kill is the echo of a kill that names its process."""
    kept: list[SystemKill] = []
    for other_kill in sorted(
        kills, key=lambda kill: (kill.pid is None, kill.held is None, not kill.facts.jobs)
    ):
        twin = next((other for other in kept if _same(other_kill, other)), None)
        if twin is None:
            kept.append(other_kill)
        elif twin.wall is None and other_kill.wall is not None:
            kept[kept.index(twin)] = replace(twin, wall=other_kill.wall)
    return kept


def _same(kill: SystemKill, other: SystemKill) -> bool:
    timed = kill.wall is not None and other.wall is not None
    if kill.pid is not None and other.pid is not None:
        figures = kill.held == other.held if kill.held is not None and other.held is not None else None
        return told_twice((kill.pid, other.pid), (kill.wall, other.wall), figures)
    near = abs((kill.wall or 0.0) - (other.wall or 0.0)) <= SAME_KILL
    kernel = cause_of(kill.cause).kernel_kill and cause_of(other.cause).kernel_kill
    return kernel and timed and near


def _owned(kill: SystemKill, ours: OurRuns) -> SystemKill:
    run = ours.owner(kill.wall, kill.pid, kill.cgroup)
    return kill if run is None else replace(kill, run=run.id, run_name=run.name)


def _by_our_guards(runs: Sequence[Run], since: float, told: Sequence[SystemKill]) -> list[SystemKill]:
    """What our own guards ended is listed too, unless the kernel was quicker with the same process."""
    kills = []
    for run, stop in guard_stops(runs, since):
        if any(kill.run == run.id and abs((kill.wall or 0.0) - stop.wall) <= SAME_KILL for kill in told):
            continue
        text = f"the guard sent {'SIGKILL' if stop.action == KILL else 'SIGTERM'}: {stop.why}"
        kills.append(
            SystemKill(
                stop.wall, "stopped-by-guard", stop.pid, stop.name, stop.held, "proven", Attempt.actions_file.name,
                text, run=run.id, run_name=run.name,
            )
        )  # fmt: skip
    return kills
