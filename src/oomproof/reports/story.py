"""What every long report tells: the verdict without secrets, the run's facts, what happened when, what changed."""

from __future__ import annotations

import platform
import shlex
import sys
from functools import lru_cache
from pathlib import Path

from oomproof.diagnosis.verdict import Verdict, from_json
from oomproof.evidence.gpu_oom import GpuOom, last_oom
from oomproof.machine import processes
from oomproof.recording.run_folders import Run, list_runs
from oomproof.recording.run_summary import Summary
from oomproof.records import dataclass
from oomproof.reports.chart_numbers import load_numbers
from oomproof.reports.redaction import Redactor
from oomproof.reports.run_tables import compare_rows, summarize
from oomproof.reports.timeline import Timeline
from oomproof.units import GIB, MIB, format_duration, format_size, format_time, format_zone

_MEASURED = ("peak", "lowest available", "lasted", "end", "per step")

_NOTHING = Timeline(problem="there is no recording")


@dataclass(frozen=True)
class Moment:
    wall: float | None
    text: str
    ours: bool = False  # from the recording; else a piece of evidence


@dataclass(frozen=True)
class Story:
    verdict: Verdict
    run: Run | None = None
    summary: Summary | None = None
    timeline: Timeline = _NOTHING
    command: str = ""
    limit: int | None = None
    earlier: Run | None = None
    measured: tuple[tuple[str, str, str], ...] = ()  # before and after
    changed: tuple[tuple[str, str, str], ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    gpu_oom: GpuOom | None = None  # the allocator's account, where the verdict is about it

    @property
    def title(self) -> str:
        if self.run is None:
            return "a log"
        return self.run.name

    @property
    def tone(self) -> str:
        return self.verdict.kind.tone


def tell(verdict: Verdict, run: Run | None, redactor: Redactor) -> Story:
    """Everything gathered, everything masked."""
    clean = from_json(redactor.value(verdict.to_json(), "verdict"))
    if run is None:
        return Story(clean, versions=tuple(_versions(None)))
    attempt = run.attempt_of(verdict.attempt)
    earlier = earlier_run(run)
    rows = [
        (redactor.text(name, "comparison"), redactor.text(a, "comparison"), redactor.text(b, "comparison"))
        for name, a, b in (compare_rows(earlier, run) if earlier else [])
    ]
    backend = run.started().get("rung") or {}
    settings = run.info.get("settings") or {}
    return Story(
        verdict=clean,
        run=run,
        summary=summarize(run),
        timeline=_masked(load_numbers(attempt), redactor),
        command=shlex.join(redactor.value(run.argv, "command")),
        limit=settings.get("limit") or backend.get("limit"),
        earlier=earlier,
        measured=tuple(row for row in rows if row[0].startswith(_MEASURED)),
        changed=tuple(row for row in rows if not row[0].startswith(_MEASURED)),
        versions=tuple((name, redactor.text(value, "versions")) for name, value in _versions(run)),
        gpu_oom=_clean_oom(last_oom(attempt), redactor) if verdict.cause == "cuda-oom" else None,
    )


def _clean_oom(oom: GpuOom | None, redactor: Redactor) -> GpuOom | None:
    from oomproof.records import replace

    if oom is None:
        return None
    return replace(
        oom,
        owners=tuple(
            replace(
                owner,
                owner=redactor.text(owner.owner, "tensors"),
                example=redactor.text(owner.example, "tensors"),
            )
            for owner in oom.owners
        ),
        neighbours=tuple(
            replace(neighbour, name=redactor.text(neighbour.name, "processes"))
            for neighbour in oom.neighbours
        ),
        stack=tuple(redactor.text(line, "stack") for line in oom.stack),
    )


def earlier_run(run: Run) -> Run | None:
    """The newest one before it of the same script in the same place, or of the same first words."""
    script = (run.info.get("code") or {}).get("script")
    for other in list_runs():
        if other.id == run.id or (other.created, other.id) >= (run.created, run.id):
            continue
        if other.state() in ("running", "paused", "starting", "unguarded", "failed to start"):
            continue
        same = script and (other.info.get("code") or {}).get("script") == script
        if same or (not script and other.argv[:2] == run.argv[:2] and _cwd(other) == _cwd(run)):
            return other
    return None


def chronology(story: Story) -> list[Moment]:
    """Start, phases, events, the peak, evidence with a time, the end: oldest first; what has no clock comes last."""
    moments: list[Moment] = []
    timeline, summary, run = story.timeline, story.summary, story.run
    if run is not None and summary is not None:
        started = float(run.started().get("wall") or run.created)
        limit = f", limit {format_size(story.limit)}" if story.limit else ""
        moments.append(Moment(started, f"started{limit}", True))
        if summary.seconds is not None and summary.state not in ("running", "paused", "unguarded"):
            moments.append(Moment(started + summary.seconds, f"end: {story.verdict.headline}", True))
    for span in timeline.phases[-40:]:
        step = f", step {span.first_step}" if span.first_step is not None else ""
        moments.append(Moment(timeline.wall(span.begin), f"phase {span.name}{step}", True))
    if timeline.host:
        peak = max(timeline.host, key=lambda point: point.use)
        moments.append(
            Moment(timeline.wall(peak.t), f"highest sample of the job: {format_size(peak.use)}", True)
        )
    for mark in timeline.events[-60:]:
        moments.append(Moment(timeline.wall(mark.t), f"{mark.kind}: {mark.text}", True))
    for item in story.verdict.evidence:
        told = item.id.startswith(("action.", "sample.", "counter.")) or item.id == "exit"
        if item.time is not None and not told:
            moments.append(Moment(item.time, f"{item.source}: {item.text}"))
    return sorted(moments, key=lambda moment: (moment.wall is None, moment.wall or 0.0))


def prevention(story: Story) -> list[tuple[str, str | None]]:
    """(what keeps it from happening again, the command) for this cause; ours to offer, not the job's to change."""
    verdict, run = story.verdict, story.run
    advice: list[tuple[str, str | None]] = []
    command = story.command or "python train.py"
    if verdict.kind.good:
        return advice
    if run is None:
        advice.append(
            ("Run it under watch: recorded, warned about and asked to save before memory is full.",
             f"oomproof run -- {command}")
        )  # fmt: skip
    peak = story.summary.peaks.use if story.summary else None
    if verdict.kind.memory and not verdict.kind.gpu and peak:
        need = _round_up(peak)
        advice.append(
            (f"Ask before the start whether it fits: it held {format_size(peak)} and was not done.",
             f"oomproof check --need {need} && oomproof run -- {command}")
        )  # fmt: skip
        advice.append(
            ("Be told in time, at three quarters of that.",
             f"oomproof run --alert-above {_round_up(peak * 3 // 4)} -- {command}")
        )  # fmt: skip
    if verdict.kind.gpu and verdict.gpu and verdict.gpu.total_bytes:
        line = _round_up(verdict.gpu.total_bytes * 9 // 10)
        advice.append(
            ("Be told when the job comes near the card's size.",
             f"oomproof run --alert-gpu-above {line} -- {command}")
        )  # fmt: skip
    if verdict.kind.memory:
        advice.append(
            ("Let the job save when it is asked to: it finds the file named in OOMPROOF_STOP_FILE, or gets a signal.",
             f"oomproof run --stop-signal USR1 --grace 60 -- {command}")
        )  # fmt: skip
    for gap in verdict.missing:
        if gap.how_to_grant:
            advice.append(
                (f"Make {gap.source} readable, so that the next verdict is surer.", gap.how_to_grant)
            )
    return advice


def before_end(t: float) -> str:
    return f"{format_duration(-t)} before the end" if t <= -0.05 else "at the end"


def held_note(story: Story) -> str:
    """The job's own figure beside its processes': theirs may be seconds older, and pages can be shared."""
    note = "Shared pages stand with every process that maps them."
    last = [point for point in story.timeline.host if point.t >= -15]
    if last:
        peak = max(last, key=lambda point: point.use)
        note = f"The job as a whole held {format_size(peak.use)} {before_end(peak.t)}. {note}"
    return note


def when(wall: float | None, *, date: bool = False) -> str:
    return format_time(wall, date=date, zone=False)


def zone(wall: float | None = None) -> str:
    return format_zone(wall)


@lru_cache(maxsize=1)
def version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("oomproof")
    except PackageNotFoundError:
        return "not installed"


def facts(story: Story) -> list[tuple[str, str]]:
    """The run in a few rows."""
    run, summary = story.run, story.summary
    if run is None or summary is None:
        return []
    begin = float(run.started().get("wall") or run.created)
    peaks = summary.peaks
    seen = max((point.use for point in story.timeline.host), default=None)  # the guard's own looks included
    peak = max((size for size in (peaks.use, seen) if size is not None), default=None)
    rows = [
        ("command", story.command),
        ("run", run.id if run.name == run.id else f"{run.name} ({run.id})"),
        ("started", f"{when(begin, date=True)} {zone(begin)}"),
        ("lasted", format_duration(summary.seconds)),
        ("peak", format_size(peak) if peak is not None else "no sample was taken"),
    ]
    if story.limit:
        rows.append(("limit", format_size(story.limit)))
    if peaks.gpu:
        rows.append(("peak on the GPU", format_size(peaks.gpu)))
    if peaks.lowest_available is not None:
        rows.append(("least left on the machine", format_size(peaks.lowest_available)))
    if story.verdict.phase != "unknown":
        step = f", step {story.verdict.step}" if story.verdict.step is not None else ""
        rows.append(("phase", story.verdict.phase + step))
    return rows


def _versions(run: Run | None) -> list[tuple[str, str]]:
    rows = [("oomproof", version())]
    if run is None:
        return rows
    recorded = str(run.info.get("version") or "")
    if recorded and recorded != rows[0][1]:
        rows.append(("oomproof that recorded it", recorded))
    code = run.info.get("code") or {}
    if code.get("git_commit"):
        dirty = ", with changes not committed" if code.get("git_dirty") else ""
        rows.append(("commit", f"{code['git_commit'][:12]}{dirty}"))
    if code.get("script"):
        rows.append(("script", f"{code['script']} (sha256 {str(code.get('script_sha256'))[:12]})"))
    if enforcer := run.limit_enforcer():
        rows.append(("limit enforced by", enforcer))
    rows.append(("host", str(run.info.get("host") or "?")))
    if run.info.get("boot_id") == processes.boot_id():  # the same boot: what runs now ran then
        rows.append(("system", f"{platform.system()} {platform.release()} {platform.machine()}"))
        rows.append(("Python of oomproof", sys.version.split()[0]))
    return rows


def _masked(timeline: Timeline, redactor: Redactor) -> Timeline:
    from oomproof.records import replace

    return replace(
        timeline,
        events=tuple(replace(mark, text=redactor.text(mark.text, "events")) for mark in timeline.events),
        phases=tuple(replace(span, name=redactor.text(span.name, "phases")) for span in timeline.phases),
        holders=tuple(
            replace(holder, name=redactor.text(holder.name, "processes")) for holder in timeline.holders
        ),
    )


def _cwd(run: Run) -> Path:
    return Path(str(run.info.get("cwd") or "."))


def _round_up(size: int) -> str:
    """A size to type: the next whole GiB from 4 GiB on, else the next 64 MiB."""
    if size >= 4 * GIB:
        return f"{-(-size // GIB)}G"
    return f"{-(-size // (64 * MIB)) * 64}M"
