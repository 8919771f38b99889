"""What stands in the ledger: a run's entry, waiting or admitted, and the peak of a run that has ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from oomproof.leaf.small_files import is_locked
from oomproof.machine import processes
from oomproof.recording import run_folders
from oomproof.recording.attempt import Attempt
from oomproof.recording.run_folders import Run
from oomproof.records import dataclass, replace
from oomproof.units import MIB, format_size

WAITING, ADMITTED = "waiting", "admitted"
# what run.json has of an entry
CLAIM = ("key", "need", "need_low", "basis", "gpu_need", "gpu", "priority", "asked", "cap", "twin")


@dataclass(frozen=True, slots=True)
class Entry:
    """One run. Times are seconds since boot, so that no change of the date can move them; ``boot`` says of which boot.

    The entry lives as long as its holder: the front that asked, and from the start of the job on its keeper or the job.
    """

    run: str
    uid: int
    name: str
    key: str
    state: str
    boot: str
    asked: float
    front_pid: int
    front_start: int | None
    folder: str = ""
    admitted: float | None = None
    priority: int = 0
    need_low: int | None = None
    need: int | None = None  # None: nothing is known
    basis: str = ""
    gpu_need: int = 0
    gpu: int | None = None
    cap: int | None = None  # its --limit: it cannot need more
    twin: str = ""
    keeper_pid: int | None = None
    keeper_start: int | None = None
    job_pid: int | None = None
    job_start: int | None = None
    cgroup: str | None = None
    cgroup_version: int = 0

    @property
    def attempt(self) -> Attempt | None:
        """What it runs as; another user's may not be seen."""
        return Run(Path(self.folder)).attempt if self.folder else None


@dataclass(frozen=True, slots=True)
class Peak:
    """What one run of a command held at most. Not ``whole``: it was ended before its own end, so it is a lower bound."""

    run: str
    key: str
    wall: float
    use: int
    gpu: int | None
    seconds: float | None
    whole: bool


def is_live(entry: Entry, boot: str, proc: str = "/proc") -> bool:
    """Whether its holder lives: of this boot, and the very process, not one that got its pid later."""
    if entry.boot != boot:
        return False
    if entry.keeper_pid is None and not _lives(entry.front_pid, entry.front_start, entry.uid, proc):
        entry = _as_started(entry)  # the front was killed before it could write down who keeps the job
        if entry.keeper_pid is None:
            return _has_keeper(entry)
    if entry.keeper_pid is None:
        return True
    return _lives(entry.keeper_pid, entry.keeper_start, entry.uid, proc) or (
        entry.job_pid is not None and _lives(entry.job_pid, entry.job_start, entry.uid, proc)
    )


def _as_started(entry: Entry) -> Entry:
    if entry.state != ADMITTED or entry.uid != os.getuid():
        return entry
    started = entry.attempt.started() if entry.attempt else {}
    return with_started(entry, started) if started else entry


def _has_keeper(entry: Entry) -> bool:
    """Whether a keeper holds the run's lock: it does from before the job exists."""
    mine = entry.state == ADMITTED and entry.uid == os.getuid()
    return mine and bool(entry.folder) and is_locked(Run(Path(entry.folder)).keeper_lock)


def with_started(entry: Entry, started: dict[str, object]) -> Entry:
    """The entry once the job runs: who keeps it, and where what it holds can be read."""
    keeper, job, backend = (started.get(name) for name in ("keeper", "job", "backend"))
    if not isinstance(keeper, dict) or not isinstance(job, dict):
        return entry
    backend = backend if isinstance(backend, dict) else {}
    return replace(
        entry,
        keeper_pid=keeper.get("pid"),
        keeper_start=keeper.get("start"),
        job_pid=job.get("pid"),
        job_start=job.get("start"),
        cgroup=backend.get("memory"),
        cgroup_version=int(backend.get("version") or 0),
    )


def _lives(pid: int, start: int | None, uid: int, proc: str) -> bool:
    if processes.is_alive(pid, start, proc):
        return True
    if uid == os.getuid() or proc != "/proc" or processes.stat_fields(pid, proc):
        return False
    # /proc may hide other users' processes (hidepid): whether the pid exists can still be asked
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def live_entries() -> list[Entry]:
    """This user's live runs. Those that wait enter themselves again at their next look."""
    entries = []
    boot = processes.boot_id()
    for run in run_folders.list_runs():
        started = run.started()
        of_now = boot in (run.info.get("boot_id"), started.get("boot_id"))  # either file may be damaged
        if not of_now or not run.keeper_lives():
            continue
        entry = with_started(from_info(run, boot, float(started.get("boottime") or 0.0)), started)
        if entry.keeper_pid is not None:
            entries.append(entry)
    return entries


def from_info(run: run_folders.Run, boot: str, since: float) -> Entry:
    kept = {name: value for name in CLAIM if (value := (run.info.get("claim") or {}).get(name)) is not None}
    entry = Entry(
        run.id, os.getuid(), run.name, "", ADMITTED, boot, since, front_pid=0, front_start=0,
        folder=str(run.folder), admitted=since,
    )  # fmt: skip
    return replace(entry, **kept)


# A command that held less than this before is not worth a queue: `oomproof run -- ls` must not wait for a training.
NEGLIGIBLE = 64 * MIB
AT_LEAST = "at least"  # begins the basis of a need that is only a lower bound
SPILL_ONLY = f"{AT_LEAST}: what --spill pins"  # all that is known of it


@dataclass(frozen=True, slots=True)
class Need:
    """An interval and how we know it. ``high`` is what is reserved."""

    low: int
    high: int
    basis: str
    gpu: int | None = None

    @property
    def sentence(self) -> str:
        return f"{format_size(self.high)} ({self.basis})"


def declared(size: int) -> Need:
    return Need(size, size, "--need")


def with_spill(need: Need | None, spill: int) -> Need | None:
    """Pinned beside what the job itself holds: peaks in the history are without it."""
    if not spill:
        return need
    if need is None:
        return Need(spill, spill, SPILL_ONLY)
    return replace(
        need,
        low=need.low + spill,
        high=need.high + spill,
        basis=f"{need.basis}, and {format_size(spill)} that --spill pins",
    )


def from_history(peaks: Sequence[Peak]) -> Need | None:
    """From the peaks of the same command, newest first. A run that was ended early only raises the lower bound."""
    whole = [peak.use for peak in peaks if peak.whole]
    cut = max((peak.use for peak in peaks if not peak.whole), default=0)
    gpu = max((peak.gpu or 0 for peak in peaks), default=0) or None
    if not whole and not cut:
        return None
    if not whole or cut > max(whole):
        early = sum(
            not peak.whole for peak in peaks
        )  # for memory, by a person, by an error: each held this much
        basis = f"the most it held in {early} runs" if early > 1 else "what it held in a run"
        return Need(cut, cut, f"{AT_LEAST}: {basis} that ended early", gpu)
    basis = f"the most it held in {len(whole)} runs" if len(whole) > 1 else "what it held in its last run"
    return Need(min(whole), max(whole), basis, gpu)


def usual_seconds(peaks: Sequence[Peak]) -> float | None:
    """How long this command takes: the middle of its whole runs."""
    lasted = sorted(peak.seconds for peak in peaks if peak.whole and peak.seconds is not None)
    return lasted[len(lasted) // 2] if lasted else None
