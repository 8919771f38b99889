"""One run as the history shows it, and the file beside its recording that keeps it once the run has ended."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from collections.abc import Mapping
from typing import Any

from oomproof.leaf.action_kinds import KILL, PAUSE, RESUME, TERM
from oomproof.machine.clock import boottime
from oomproof.machine.processes import boot_id
from oomproof.recording.attempt import Attempt
from oomproof.recording.json_shapes import wrong
from oomproof.recording.reader import Figures, Peaks, number, stamps_of
from oomproof.recording.run_folders import Run
from oomproof.recording.run_peak import figures_of
from oomproof.recording.state_files import read_json
from oomproof.records import asdict, dataclass

_VERSION = 1
_ACTIVE = ("running", "paused", "unguarded")
# what the summary was made of: when one of them is another, or changed, it is made anew
_SOURCES = (
    f"../{Run.info_file.name}", Attempt.info_file.name, Attempt.started_file.name, Attempt.exit_json_file.name, Attempt.verdict_file.name,
    Attempt.recording_file.name, f"{Attempt.recording_file.name}-wal", Attempt.actions_file.name,
    Attempt.keeper_events_file.name,
)  # fmt: skip


_RESUMES = (RESUME, TERM, KILL)  # SIGTERM and the kill wake a paused job too


@dataclass(frozen=True, slots=True)
class Paused:
    begin: float  # boottime
    end: float | None  # None: it still stands
    by: str  # guard or user


def pauses_of(attempt: Attempt) -> list[Paused]:
    actions = [
        (at, str(line.get("action") or line.get("event")), str(line.get("by", "keeper")))
        for line in (*attempt.actions(), *attempt.keeper_events())
        if (at := number(line.get("boottime"))) is not None
    ]
    ended = number(attempt.exit().get("boottime"))
    paused: list[Paused] = []
    begin: tuple[float, str] | None = None
    for at, what, by in sorted(actions):
        if what == PAUSE:
            begin = begin or (at, by)
        elif what in _RESUMES and begin is not None:
            paused.append(Paused(begin[0], at, begin[1]))
            begin = None
    if begin is not None:
        paused.append(Paused(begin[0], ended, begin[1]))
    return paused


def paused_seconds(pauses: list[Paused], now: float) -> float:
    return sum((pause.end if pause.end is not None else now) - pause.begin for pause in pauses)


@dataclass(frozen=True)
class Summary:
    """One run as the history shows it."""

    id: str
    name: str
    command: str
    created: float
    state: str
    seconds: float | None
    peaks: Peaks
    code: int | None
    signal: int | None
    cause: str | None
    headline: str | None
    why: str | None
    script_changed: bool
    problem: str | None
    paused: tuple[Paused, ...] = ()
    elsewhere: str | None = None  # the host, where it is another one
    attempt: int = 1
    started: float = 0.0  # its job, seconds since 1970; 0: it was not (it waits, or it never came to that)

    @property
    def began(self) -> float:
        """The time that people are told: a run may have waited for hours before its job started."""
        return self.started or self.created

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "attempt": self.attempt,
            "command": self.command,
            "created": self.created,
            "started": self.started or None,
            "state": self.state,
            "seconds": self.seconds,
            "peak_bytes": self.peaks.use,
            "peak_source": self.peaks.source,
            "peak_gpu_bytes": self.peaks.gpu,
            "lowest_available_bytes": self.peaks.lowest_available,
            "code": self.code,
            "signal": self.signal,
            "cause": self.cause,
            "headline": self.headline,
            "why": self.why,
            "script_changed_since": self.script_changed,
            "problem": self.problem,
            "pauses": len(self.paused),
            "paused_seconds": paused_seconds(list(self.paused), boottime()),
        }


def make(run: Run, verdict: dict[str, Any] | None, figures: Figures | None = None) -> Summary:
    """From what the run's folder holds. ``verdict`` as verdict.json has it; None while the run is active. ``figures`` where
    the caller has read them already."""
    recording = run.attempt.recording()
    state = run.state()
    started, ended = run.started(), run.exit()
    figures = figures or figures_of(run.attempt, verdict)
    judged = verdict["verdict"] if verdict else {}
    return Summary(
        id=run.id,
        name=run.name,
        command=shlex.join(run.argv),
        created=run.place[0],
        state=state,
        seconds=lasted(started, ended, run.place[0], figures.last, recording.wall_offset, state in _ACTIVE),
        peaks=figures.peaks,
        code=ended.get("code"),
        signal=ended.get("signal"),
        cause=str(judged["cause"]) if judged else None,
        headline=judged.get("headline"),
        why=judged.get("why"),
        script_changed=False,
        problem=run.damage() or recording.problem,
        paused=tuple(pauses_of(run.attempt)),
        elsewhere=run.elsewhere(),
        attempt=run.attempt.number or 1,
        started=float(started.get("wall") or 0.0),
    )


def lasted(
    started: Mapping[str, Any],
    ended: Mapping[str, Any],
    created: float,
    last: float | None,
    offset: float,
    active: bool = False,
) -> float | None:
    """Seconds since boot count, for the wall clock may jump; it serves where only that was written. ``last``: the newest
    sample, where nobody saw the end."""
    begin, end = started.get("boottime"), ended.get("boottime")
    if end is None and not ended:
        end = boottime() if active and started.get("boot_id") == boot_id() else None if active else last
    if begin is None or end is None:
        begin, end = float(started.get("wall") or created), ended.get("wall")
        if end is None:
            end = time.time() if active else last + offset if last is not None else None
    return max(0.0, end - begin) if end is not None else None


_SHAPE = {
    "id": str, "name": str, "command": str, "created": float, "state": str, "seconds": float, "code": int,
    "signal": int, "cause": str, "headline": str, "why": str, "script_changed": bool, "problem": str,
    "peaks": {"source": str, ...: int}, "attempt": int, "started": float,
}  # fmt: skip


def read(run: Run) -> Summary | None:
    """None when there is none, or when it is not of what stands there now."""
    kept = read_json(run.attempt.summary_file)
    value = kept.get("summary")
    if kept.get("version") != _VERSION or not isinstance(value, dict) or kept.get("of") != _stand(run):
        return None
    if wrong(value, _SHAPE):
        return None
    try:
        peaks = Peaks(**value.pop("peaks"))
        paused = tuple(
            Paused(float(a), None if b is None else float(b), str(by)) for a, b, by in value.pop("paused")
        )
        summary = Summary(**value, peaks=peaks, paused=paused)
    except (TypeError, ValueError, KeyError):
        return None
    if run.number is None and run.may_be_retried():
        return None  # its attempt has ended, the run has not
    return summary if summary.id == run.id else None


def keep(run: Run, summary: Summary) -> None:
    """A cache, of a run that has ended and was judged: nothing in it that its sources do not say. Not synced, and one that
    is lost is made again. A folder that may not be written has none."""
    if summary.state != "ended" or summary.problem is not None:
        return
    value = {**asdict(summary), "paused": [(pause.begin, pause.end, pause.by) for pause in summary.paused]}
    path = run.attempt.summary_file
    temporary = f"{path.parent}/.{path.name}.{os.getpid()}"
    with contextlib.suppress(OSError):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "w") as file:
            json.dump({"version": _VERSION, "of": _stand(run), "summary": value}, file)
        os.replace(temporary, path)


def _stand(run: Run) -> list[list[int] | None]:
    """Of each source, as JSON has it."""
    stamps = stamps_of(run.attempt / name for name in _SOURCES)
    return [list(stamp) if stamp is not None else None for stamp in stamps]
