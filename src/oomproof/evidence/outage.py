"""Finds, in the recordings, the times the machine went down under its runs, and reads all that was alive then."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from oomproof.causes import cause_of
from oomproof.evidence.files import integer, number, part, string
from oomproof.evidence.outage_facts import HostPoint, OutageFacts, RunFacts
from oomproof.evidence.outage_timeline import timeline
from oomproof.evidence.texts.kernel import KernelParser
from oomproof.machine import kernel_log, memory
from oomproof.machine import wtmp as wtmp_file
from oomproof.machine.clock import boot_wall
from oomproof.recording.attempt import Attempt
from oomproof.recording.runs import Run, list_runs
from oomproof.recording.series import HostRow, JobRow
from oomproof.recording.state_files import load
from oomproof.units import format_size

_ALIVE = 120.0  # seconds before the last sign of all within which a run must have shown one of its own
_BEFORE = 900.0  # seconds of the machine's last samples that are read
_SHUTDOWN = 600.0  # systemd gives services 90 s each to stop, in a row where they depend on each other


class _Cut:
    """One attempt of an earlier boot that nobody saw end."""

    def __init__(self, run: Run, attempt: Attempt) -> None:
        self.run, self.attempt = run, attempt
        self.started, _ = load(attempt.started_file)
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
    now = _boot_id(proc)
    cut: dict[str, list[_Cut]] = {}
    for run in known:
        if run.elsewhere(now) is not None:
            continue
        for attempt in run.attempts():
            if attempt.exit_file.exists():
                continue
            one = _Cut(run, attempt)
            if one.boot_id and one.boot_id != now and one.last is not None:
                cut.setdefault(one.boot_id, []).append(one)
    found = [_facts(boot, each, known, proc, wtmp, journalctl) for boot, each in cut.items()]
    return sorted(found, key=lambda each: each.last_sign)


def outage_of(
    run: Run, *, proc: str = "/proc", wtmp: str = "/var/log/wtmp", journalctl: str = "journalctl"
) -> OutageFacts | None:
    """The outage that this run did not survive, with all others that were alive then; None if there was none."""
    found = find_outages(proc=proc, wtmp=wtmp, journalctl=journalctl)
    return next((each for each in found if any(one.id == run.id for one in each.runs)), None)


def _boot_id(proc: str) -> str:
    try:
        return Path(proc, "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _facts(
    boot_id: str, cut: list[_Cut], known: Sequence[Run], proc: str, wtmp: str, journalctl: str
) -> OutageFacts:
    last = max(each.last or 0.0 for each in cut)
    alive = [each for each in cut if last - (each.last or 0.0) <= _ALIVE]
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
        runs=tuple(sorted((_run(each, known, last) for each in alive), key=lambda one: one.started or 0.0)),
        host=host,
        next_boot=next_boot,
        boots_recorded=recorded,
        shutdown=shutdown,
        shutdown_told_by=told_by,
        kernel_kills=kills,
        panic=panic,
        timeline=timeline(
            [(each.run, each.attempt, each.begin, each.offset) for each in alive],
            known, boot_id, host, last, next_boot, shutdown, kills,
        ),
        available_now=here.available if here else None,
        total_now=here.total if here else None,
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
    for each in alive:
        for line in each.attempt.keeper_events():
            at = number(line.get("boottime"))
            told = (line.get("event") or line.get("kind")) == "sigterm"
            if told and at is not None and abs(last - (at + each.offset)) <= _SHUTDOWN:
                return boot, recorded, at + each.offset, f"the keeper of {each.run.name} was told to end"
    return boot, recorded, None, ""


def _kernel(
    boot_id: str, one: _Cut, last: float, journalctl: str, missing: list[tuple[str, str]]
) -> tuple[tuple[tuple[float, str], ...], str | None]:
    """The kernel's kills and its own failure in the last quarter of an hour: only a kept journal has them."""
    log = kernel_log.read(
        max(0.0, last - one.offset - _BEFORE), journalctl=journalctl, boot=boot_id.replace("-", "")
    )
    if log.reason is not None:
        missing.append((log.source, log.reason))
        return (), None
    parser = KernelParser(log.source)
    for number_, line in enumerate(log.lines, 1):
        parser.feed(number_, f"[{line.time:12.6f}] {line.text}")
    kills, panic = [], None
    for each in parser.finish():
        if cause_of(each.cause).kernel_kill and each.victim is not None:
            held = (each.victim.anon_rss or 0) + (each.victim.shmem_rss or 0)
            words = (
                f"the kernel killed {each.victim.name} (pid {each.victim.pid}), holding {format_size(held)}"
            )
            kills.append(((each.seconds or 0.0) + one.offset, words))
        elif "Kernel panic" in each.text:
            panic = each.text
    return tuple(kills), panic


def _host(alive: list[_Cut]) -> tuple[HostPoint, ...]:
    """Every run's sampler looked at the same machine: the points of all, in order."""
    points = {}
    for each in alive:
        with each.recording.series() as series:
            rows = series.newest(HostRow, _BEFORE)
        for row in rows:
            if row.mem_total is None or row.mem_available is None:
                continue
            wall = row.t + each.offset
            points[wall] = HostPoint(
                wall,
                row.mem_total,
                row.mem_available,
                row.swap_total or 0,
                row.swap_free or 0,
                row.psi_full_us,
            )
    return tuple(points[wall] for wall in sorted(points))


def _run(each: _Cut, known: Sequence[Run], last: float) -> RunFacts:
    with each.recording.series() as series:
        use = tuple((row.t + each.offset, row.use) for row in series.newest(JobRow, _BEFORE))
    need, basis, at_least = _need(each, known)
    held = use[-1][1] if use else 0
    again = [
        run.created
        for run in known
        if run.created > last and (run.name == each.run.name or run.argv == each.run.argv)
    ]
    return RunFacts(
        each.run.id, each.run.name, shlex.join(each.run.argv), each.begin, held, use,
        max(need, held) if need is not None else None, basis, at_least,
        integer(part(each.run.info, "settings").get("limit")), min(again, default=None),
    )  # fmt: skip


def _need(each: _Cut, known: Sequence[Run]) -> tuple[int | None, str, bool]:
    """What it would have taken in all, how that is known, and whether it is only a lower bound: as the same
    command took when it was let; as its owner said; as far as it came before it died."""
    whole: list[int] = []
    cut_short: list[int] = []
    for run in known:
        if run.id == each.run.id or run.argv != each.run.argv or not run.argv:
            continue
        for attempt in run.attempts():
            exited, _ = load(attempt.exit_file)
            peak = attempt.recording().peaks().use if exited else None
            if isinstance(peak, int):
                (whole if exited.get("code") == 0 else cut_short).append(peak)
    if whole:
        return max(whole), f"the peak of {_runs(len(whole))} of the same command", False
    if declared := integer(part(each.run.info, "settings").get("need")):
        return declared, "as declared", False
    if cut_short:
        return max(cut_short), f"at least: {_runs(len(cut_short))} of the same command came so far", True
    return None, "", False


def _runs(count: int) -> str:
    return f"{count} other run{'s' * (count != 1)}"
