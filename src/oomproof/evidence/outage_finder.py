"""Finds, in the recordings, the times the machine went down under its runs, and reads all that was alive then."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from oomproof.causes import cause_of
from oomproof.evidence.case_file import OtherJob
from oomproof.evidence.json_files import integer, number, part, string, strings
from oomproof.evidence.memory_growth import other_jobs
from oomproof.evidence.texts.kernel_parser import KernelParser
from oomproof.machine import kernel_log, memory, processes
from oomproof.machine import wtmp as wtmp_file
from oomproof.machine.clock import boot_wall
from oomproof.recording.attempt import Attempt
from oomproof.recording.run_folders import Run, list_runs
from oomproof.recording.run_peak import figures_of
from oomproof.recording.series import HostRow, JobRow
from oomproof.records import dataclass
from oomproof.runner.run_flags import as_typed
from oomproof.units import format_size


class HostPoint(NamedTuple):
    wall: float
    total: int
    available: int
    swap_total: int
    swap_free: int
    psi_full: int | None = None  # microseconds since boot in which every task stalled


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run that was alive then. ``use`` are (wall, bytes), oldest first, at least the last sample."""

    id: str
    name: str
    command: str
    started: float | None
    held: int
    use: tuple[tuple[float, int], ...] = ()
    need: int | None = None  # what it would have taken in all
    need_basis: str = ""  # how that is known
    at_least: bool = False  # the need is a lower bound: a run of the same command got that far and died
    allowed: int | None = None  # its --limit: the most it could have taken, not what it would have
    started_again: float | None = None
    flags: tuple[tuple[str, str], ...] = ()  # (--flag, value) as typed


@dataclass(frozen=True, slots=True)
class OutageFacts:
    boot_id: str
    last_sign: float  # the last moment anything was written down
    runs: tuple[RunFacts, ...]
    host: tuple[HostPoint, ...] = ()
    others: tuple[OtherJob, ...] = ()  # jobs that are no runs of oomproof, largest first, as last seen
    next_boot: float | None = None
    boots_recorded: bool = False  # by wtmp; else next_boot is when the present boot began
    shutdown: float | None = None  # an orderly one, as wtmp or the keepers tell
    shutdown_told_by: str = ""
    kernel_kills: tuple[tuple[float, str], ...] = ()  # (wall, words), from a journal kept over the reboot
    panic: str | None = None
    timeline: tuple[tuple[float, str], ...] = ()
    available_now: int | None = None
    missing: tuple[tuple[str, str], ...] = ()  # (source, reason)


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


_ALIVE = 120.0  # seconds before the last sign of all within which a run must have shown one of its own
_BEFORE = 900.0  # seconds of the machine's last samples that are read
_SHUTDOWN = 600.0  # systemd gives services 90 s each to stop, in a row where they depend on each other


class _Cut:
    """One attempt of an earlier boot that nobody saw end."""

    def __init__(self, run: Run, attempt: Attempt) -> None:
        self.run, self.attempt = run, attempt
        self.started, _ = attempt.load_started()
        self.recording = attempt.recording()
        told = string(self.started.get("boot_id")) or string(run.info.get("boot_id"))
        self.boot_id = told or self.recording.meta.get("boot_id") or ""
        self.offset = self._offset()
        self.begin = number(self.started.get("wall")) or number(run.info.get("created"))
        last = self.recording.last_sample_time()
        self.last = last + self.offset if isinstance(last, (int, float)) and self.offset else self.begin

    def _offset(self) -> float:
        wall, boottime = number(self.started.get("wall")), number(self.started.get("boottime"))
        try:
            return float(self.recording.meta["wall_offset"])
        except (KeyError, ValueError):
            return wall - boottime if wall is not None and boottime is not None else 0.0


def find_outages(
    *,
    runs: Sequence[Run] | None = None,
    proc: str = "/proc",
    wtmp: str = "/var/log/wtmp",
    journalctl: str = "journalctl",
) -> list[OutageFacts]:
    """Oldest first, one for each boot that ended under a run of ours. Never raises for what it reads."""
    known = list_runs() if runs is None else list(runs)
    now = processes.boot_id(proc)
    cut: dict[str, list[_Cut]] = {}
    for run in known:
        if run.elsewhere(now) is not None:
            continue
        for attempt in run.attempts():
            if attempt.exit_file.exists():
                continue
            cut_run = _Cut(run, attempt)
            if cut_run.boot_id and cut_run.boot_id != now and cut_run.last is not None:
                cut.setdefault(cut_run.boot_id, []).append(cut_run)
    outages = [_facts(boot, cut_runs, known, proc, wtmp, journalctl) for boot, cut_runs in cut.items()]
    return sorted(outages, key=lambda outage: outage.last_sign)


def outage_of(
    run: Run, *, proc: str = "/proc", wtmp: str = "/var/log/wtmp", journalctl: str = "journalctl"
) -> OutageFacts | None:
    """The outage that this run did not survive, with all others that were alive then; None if there was none."""
    outages = find_outages(proc=proc, wtmp=wtmp, journalctl=journalctl)
    return next(
        (outage for outage in outages if any(known_run.id == run.id for known_run in outage.runs)), None
    )


def _facts(
    boot_id: str, cut: list[_Cut], known: Sequence[Run], proc: str, wtmp: str, journalctl: str
) -> OutageFacts:
    last = max(cut_run.last or 0.0 for cut_run in cut)
    alive = [cut_run for cut_run in cut if last - (cut_run.last or 0.0) <= _ALIVE]
    missing: list[tuple[str, str]] = []
    next_boot, recorded, shutdown, told_by = _boots(alive, last, proc, wtmp, missing)
    kills, panic = _kernel(boot_id, alive[0], last, journalctl, missing)
    host = _host(alive)
    try:
        here: memory.Memory | None = memory.read(proc)
    except (OSError, ValueError):
        here = None
    return OutageFacts(
        boot_id=boot_id,
        last_sign=last,
        runs=tuple(sorted((_run(cut_run, known, last) for cut_run in alive), key=lambda facts_of_run: facts_of_run.started or 0.0)),
        host=host,
        others=_others(alive),
        next_boot=next_boot,
        boots_recorded=recorded,
        shutdown=shutdown,
        shutdown_told_by=told_by,
        kernel_kills=kills,
        panic=panic,
        timeline=timeline(
            [(cut_run.run, cut_run.attempt, cut_run.begin, cut_run.offset) for cut_run in alive],
            known, boot_id, host, last, next_boot, shutdown, kills,
        ),
        available_now=here.available if here else None,
        missing=tuple(missing),
    )  # fmt: skip


def _boots(
    alive: list[_Cut], last: float, proc: str, wtmp: str, missing: list[tuple[str, str]]
) -> tuple[float | None, bool, float | None, str]:
    """(the next boot, whether wtmp says so, an orderly shutdown between, who told of it)."""
    log = wtmp_file.read(wtmp)
    if log.reason is not None:
        missing.append(("wtmp", log.reason))
    boot = log.boot_after(last)
    recorded = boot is not None
    if boot is None:
        present = boot_wall(proc)
        boot = present if present is not None and present > last else None
    until = min(boot if boot is not None else float("inf"), last + _SHUTDOWN)
    # the record is written seconds after services were told to stop, and clocks are set at boot
    shutdown = log.shutdown_between(last - 5.0, until)
    if shutdown is not None:
        return boot, recorded, shutdown, "wtmp has a shutdown"
    for cut_run in alive:
        for line in cut_run.attempt.keeper_events():
            at = number(line.get("boottime"))
            told = (line.get("event") or line.get("kind")) == "sigterm"
            if told and at is not None and abs(last - (at + cut_run.offset)) <= _SHUTDOWN:
                return (
                    boot,
                    recorded,
                    at + cut_run.offset,
                    f"the keeper of {cut_run.run.name} was told to end",
                )
    return boot, recorded, None, ""


def _kernel(
    boot_id: str, cut_run: _Cut, last: float, journalctl: str, missing: list[tuple[str, str]]
) -> tuple[tuple[tuple[float, str], ...], str | None]:
    """The kernel's kills and its own failure in the last quarter of an hour: only a kept journal has them."""
    log = kernel_log.read(
        max(0.0, last - cut_run.offset - _BEFORE), journalctl=journalctl, boot=boot_id.replace("-", "")
    )
    if log.reason is not None:
        missing.append((log.source, log.reason))
        return (), None
    parser = KernelParser(log.source)
    for number_, line in enumerate(log.lines, 1):
        parser.feed(number_, f"[{line.time:12.6f}] {line.text}")
    kills, panic = [], None
    for finding in parser.finish():
        if cause_of(finding.cause).kernel_kill and finding.victim is not None:
            held = (finding.victim.anon_rss or 0) + (finding.victim.shmem_rss or 0)
            words = f"the kernel killed {finding.victim.name} (pid {finding.victim.pid}), holding {format_size(held)}"
            kills.append(((finding.seconds or 0.0) + cut_run.offset, words))
        elif "Kernel panic" in finding.text:
            panic = finding.text
    return tuple(kills), panic


def _host(alive: list[_Cut]) -> tuple[HostPoint, ...]:
    """Every run's sampler looked at the same machine: the points of all, in order."""
    points = {}
    for cut_run in alive:
        with cut_run.recording.series() as series:
            rows = series.newest(HostRow, _BEFORE)
        for row in rows:
            if row.mem_total is None or row.mem_available is None:
                continue
            wall = row.t + cut_run.offset
            points[wall] = HostPoint(
                wall,
                row.mem_total,
                row.mem_available,
                row.swap_total or 0,
                row.swap_free or 0,
                row.psi_full_us,
            )
    return tuple(points[wall] for wall in sorted(points))


def _others(alive: list[_Cut]) -> tuple[OtherJob, ...]:
    """Unmanaged jobs as each run last saw them; of several runs the one that saw them last."""
    found: dict[int, OtherJob] = {}
    for cut_run in alive:
        with cut_run.recording.series() as series:
            jobs = other_jobs(series, series.end())
        for job in jobs:
            if not job.managed and (job.pid not in found or job.t > found[job.pid].t):
                found[job.pid] = job
    return tuple(sorted(found.values(), key=lambda job: -job.held))


def _run(cut_run: _Cut, known: Sequence[Run], last: float) -> RunFacts:
    with cut_run.recording.series() as series:
        use = tuple((row.t + cut_run.offset, row.use) for row in series.newest(JobRow, _BEFORE))
    need, basis, at_least = _need(cut_run, known)
    held = use[-1][1] if use else 0
    again = [
        run.created
        for run in known
        if run.created > last and (run.name == cut_run.run.name or run.argv == cut_run.run.argv)
    ]
    return RunFacts(
        cut_run.run.id, cut_run.run.name, shlex.join(cut_run.run.argv), cut_run.begin, held, use,
        max(need, held) if need is not None else None, basis, at_least,
        integer(part(cut_run.run.info, "settings").get("limit")), min(again, default=None),
        as_typed(strings(cut_run.run.info, "flags")),
    )  # fmt: skip


def _need(cut_run: _Cut, known: Sequence[Run]) -> tuple[int | None, str, bool]:
    """What it would have taken in all, how that is known, and whether it is only a lower bound: as the same
    command took when it was let; as its owner said; as far as it came before it died."""
    whole: list[int] = []
    cut_short: list[int] = []
    for run in known:
        if run.id == cut_run.run.id or run.argv != cut_run.run.argv or not run.argv:
            continue
        for attempt in run.attempts():
            exited, _ = attempt.load_exit()
            peak = figures_of(attempt).peaks.use if exited else None
            if isinstance(peak, int):
                (whole if exited.get("code") == 0 else cut_short).append(peak)
    if whole:
        return max(whole), f"the peak of {_runs(len(whole))} of the same command", False
    if declared := integer(part(cut_run.run.info, "settings").get("need")):
        return declared, "--need", False
    if cut_short:
        return max(cut_short), f"at least: {_runs(len(cut_short))} of the same command came so far", True
    return None, "", False


def _runs(count: int) -> str:
    return f"{count} other run{'s' * (count != 1)}"
