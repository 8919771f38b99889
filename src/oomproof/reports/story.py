"""What every long report tells: the verdict without secrets, the run's facts, what happened when, what changed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from oomproof.diagnosis.advice import run_line
from oomproof.diagnosis.verdict import Verdict, from_json
from oomproof.evidence.case_evidence import LAST_LINE, growth_text
from oomproof.evidence.gpu_oom import GpuOom, last_oom
from oomproof.evidence.json_files import strings
from oomproof.leaf.attempt_names import LISTENS
from oomproof.recording.run_folders import Run
from oomproof.recording.run_summary import Summary
from oomproof.recording.series import told_kind, told_text
from oomproof.records import dataclass, replace
from oomproof.reports import code_shown
from oomproof.reports.code_shown import Stack
from oomproof.reports.document import Document
from oomproof.reports.environment import environment_of
from oomproof.reports.redaction import Redactor
from oomproof.reports.run_comparison import Earlier, compare_rows, earlier_runs
from oomproof.reports.run_tables import peak_text, summarize
from oomproof.reports.timeline import Timeline, load_numbers
from oomproof.runner.run_flags import as_typed
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
    flags: tuple[tuple[str, str], ...] = ()  # (--flag, value) it was started with
    limit: int | None = None
    earlier: Earlier = Earlier()
    measured: tuple[tuple[str, str, str], ...] = ()  # before and after
    changed: tuple[tuple[str, str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    gpu_oom: GpuOom | None = None  # the allocator's account, where the verdict is about it
    stack: Stack | None = None
    log: tuple[str, ...] = ()  # its last lines
    outage: Document = ()  # of the machine, all but its verdict

    @property
    def title(self) -> str:
        if self.run is None:
            return "a log"
        return self.run.name

    @property
    def tone(self) -> str:
        return self.verdict.kind.tone

    @property
    def peak(self) -> int | None:
        """What the job held at most; the same figure wherever a page names it."""
        return self.summary.peaks.use if self.summary else None

    @property
    def limit_was_set(self) -> bool:
        """By the user; else it is what leaves the machine its floor."""
        return self.run is not None and bool((self.run.info.get("settings") or {}).get("limit"))

    @property
    def about_host_memory(self) -> bool:
        return self.verdict.kind.memory and not self.verdict.kind.gpu

    @property
    def may_be_memory(self) -> bool:
        """Whether what it held is worth a look: also where memory is one of several explanations."""
        kind = self.verdict.kind
        return kind.memory or kind.good or kind.unexplained


def tell(
    verdict: Verdict,
    run: Run | None,
    redactor: Redactor,
    *,
    sources: Sequence[str] = (),
    source: bool = True,
    log: bool = True,
    outage: Document = (),
) -> Story:
    """Everything gathered, everything masked. ``outage``: the story of a machine that went down. ``sources``: the files that a verdict without a run was read from. ``source``
    and ``log``: whether to quote the user's code and the end of what it printed."""
    clean = from_json(redactor.value(verdict.to_json(), "verdict"))
    if not log:
        clean = replace(clean, evidence=tuple(item for item in clean.evidence if item.id != LAST_LINE))
    if run is None:
        last = code_shown.log_of_text(sources[0], redactor) if len(sources) == 1 else ()
        stack = (
            None
            if clean.kind.good or clean.kind.unexplained
            else code_shown.stack_of_text(last, source and log)
        )
        return Story(clean, environment=tuple(environment_of(None)), stack=stack, log=last if log else ())
    attempt = run.attempt_of(verdict.attempt)
    earlier = earlier_runs(run, verdict.cause)
    rows = [
        (redactor.text(name, "comparison"), redactor.text(a, "comparison"), redactor.text(b, "comparison"))
        for name, a, b in (compare_rows(earlier.compared, run) if earlier.compared else [])
    ]
    oom = last_oom(attempt) if verdict.cause == "cuda-oom" else None
    printed = code_shown.log_of(attempt, redactor)
    return Story(
        verdict=clean,
        run=run,
        summary=redactor.record(summarize(run), "run"),
        timeline=redactor.record(load_numbers(attempt), "recording"),
        command=shlex.join(redactor.value(run.argv, "command")),
        flags=as_typed(redactor.value(strings(run.info, "flags"), "command")),
        limit=run.limit,
        earlier=earlier,
        measured=tuple(row for row in rows if row[0].startswith(_MEASURED)),
        changed=tuple(row for row in rows if not row[0].startswith(_MEASURED)),
        environment=tuple(
            (name, redactor.text(value, "environment")) for name, value in environment_of(run, oom)
        ),
        gpu_oom=redactor.record(oom, "GPU account"),
        stack=code_shown.stack_of(
            attempt,
            oom,
            printed,
            redactor,
            ended=attempt.exit().get("wall"),
            folder=str(run.info.get("cwd") or ""),
            source=source,
        ),
        log=printed if log else (),
        outage=redactor.record(outage, "outage"),
    )


def chronology(story: Story) -> list[Moment]:
    """Start, phases, events, the peak, evidence with a time, the end: oldest first; what has no clock comes last."""
    moments: list[Moment] = []
    timeline, summary, run = story.timeline, story.summary, story.run
    if run is not None and summary is not None:
        started = float(run.started().get("wall") or run.created)
        limit = f", limit {format_size(story.limit)}" if story.limit and story.limit_was_set else ""
        moments.append(Moment(started, f"started{limit}", True))
        if summary.seconds is not None and summary.state not in ("running", "paused", "unguarded"):
            moments.append(Moment(started + summary.seconds, f"end: {story.verdict.headline}", True))
    for span in timeline.phases[-40:]:
        step = f", step {span.first_step}" if span.first_step is not None else ""
        moments.append(Moment(timeline.wall(span.begin), f"phase {span.name}{step}", True))
    peak = max(timeline.host, key=lambda point: point.use, default=None)
    if peak is not None and summary is not None and peak.use == summary.peaks.use:
        moments.append(Moment(timeline.wall(peak.t), f"peak: the job held {format_size(peak.use)}", True))
    for mark in timeline.events[-60:]:
        moments.append(
            Moment(timeline.wall(mark.t), f"{told_kind(mark.kind)}: {told_text(mark.kind, mark.text)}", True)
        )
    events = {mark.text for mark in timeline.events[-60:]}
    for item in story.verdict.evidence:
        told = (
            item.id.startswith(("action.", "sample.", "counter.")) or item.id == "exit" or item.text in events
        )
        if item.time is not None and not told:
            moments.append(Moment(item.time, f"{item.source}: {item.text}"))
    return sorted(moments, key=lambda moment: (moment.wall is None, moment.wall or 0.0))


_COMMANDS = ("journalctl ", "last -x ")  # tests of a cause that are a line to type

# by (about memory, about a card's)
_UNDER_WATCH = {
    (True, False): "Run it under watch: recorded, warned about and asked to save before memory is full.",
    (True, True): "Run it under watch: what it holds on the card is recorded, phase by phase.",
    (False, False): "Run it under watch: its end, its output and its memory are recorded.",
    (False, True): "Run it under watch: its end, its output and its memory are recorded.",
}


def _script(stack: Stack | None) -> str:
    """That a log's traceback begins in, as its name; else any."""
    frame = stack.frames[-1].frame if stack is not None and stack.frames else None
    if frame is None or frame.name != "<module>" or not frame.file.endswith(".py"):
        return "train.py"
    return shlex.quote(frame.file.rpartition("/")[2])


def prevention(story: Story) -> list[tuple[str, str | None]]:
    """(what keeps it from happening again, the command) for this cause; ours to offer, not the job's to change."""
    verdict, run = story.verdict, story.run
    advice: list[tuple[str, str | None]] = []
    command = story.command or f"python {_script(story.stack)}"
    kept = _flags_next_time(story)
    if verdict.kind.good:
        return advice
    if run is None and verdict.causes and verdict.causes[0].test.startswith(_COMMANDS):
        advice.append(("First see what the machine tells of that time.", verdict.causes[0].test))
    if run is None:
        advice.append((_UNDER_WATCH[verdict.kind.memory, verdict.kind.gpu], f"oomproof run -- {command}"))
    if verdict.cause == "machine-down":  # the others have theirs from their remedies
        for step in verdict.next_steps:
            if step.command is not None:
                told = step.text.strip(" ,;:") or "start it again"
                advice.append((f"{told[:1].upper()}{told[1:]}.", step.command))
    peak = story.peak
    if story.about_host_memory and peak:
        if verdict.growth is None:  # what grows without end fits nowhere
            check = f"oomproof check --need {_round_up(peak)} && {run_line(command, kept=kept)}"
            advice.append(
                (
                    f"Ask before the start whether it fits: it held {format_size(peak)} and was not done.",
                    check,
                )
            )
        advice.append(
            (f"Be told in time, at three quarters of the {format_size(peak)} it held.",
             run_line(command, f"--alert-above {_round_up(peak * 3 // 4)}", kept=kept))
        )  # fmt: skip
    if verdict.kind.gpu and verdict.gpu and verdict.gpu.total_bytes:
        line = _round_up(verdict.gpu.total_bytes * 9 // 10)
        advice.append(
            ("Be told when the job comes near the card's size.",
             run_line(command, f"--alert-gpu-above {line}", kept=kept))
        )  # fmt: skip
    # the guard asks for the sake of host memory only; a Trainer answers already
    if verdict.kind.memory and not verdict.kind.gpu and not _listens(run):
        advice.append(
            ("Let the job save when it is asked to, and give it time: the script looks for the file named in "
             "OOMPROOF_STOP_FILE. --stop-signal USR1 is for a script that handles SIGUSR1.",
             None if "--grace" in dict(kept) else run_line(command, "--grace 60", kept=kept))
        )  # fmt: skip
    for gap in verdict.missing:
        if gap.how_to_grant:
            advice.append(
                (f"Make {gap.source} readable, so that the next verdict is surer.", gap.how_to_grant)
            )
    return advice


def _listens(run: Run | None) -> bool:
    return run is not None and any(run.attempt.agent_folder.glob(f"*-{LISTENS}"))


def _flags_next_time(story: Story) -> tuple[tuple[str, str], ...]:
    """As typed, but the limit it died at is the higher one that the remedies name."""
    changes = [remedy.change for remedy in story.verdict.remedies if remedy.change is not None]
    limit = next((change.after for change in changes if change.key == "--limit" and change.after), None)
    return tuple((name, limit if name == "--limit" and limit else value) for name, value in story.flags)


def before_end(t: float) -> str:
    return f"{format_duration(-t)} before the end" if t <= -0.05 else "at the end"


def held_note(story: Story) -> str:
    """The job's own figure beside its processes': theirs may be seconds older."""
    note = "Pages that several processes share are divided among them."
    if story.timeline.host:
        last = story.timeline.host[-1]
        note = f"The job as a whole held {format_size(last.use)} {before_end(last.t)}. {note}"
    return note


def when(wall: float | None, *, date: bool = False) -> str:
    return format_time(wall, date=date, zone=False)


def zone(wall: float | None = None) -> str:
    return format_zone(wall)


def facts(story: Story) -> list[tuple[str, str]]:
    """The run in a few rows."""
    run, summary = story.run, story.summary
    if run is None or summary is None:
        return []
    begin = float(run.started().get("wall") or run.created)
    peaks = summary.peaks
    rows = [
        ("command", story.command),
        ("run", run.id if run.name == run.id else f"{run.name} ({run.id})"),
        ("started", f"{when(begin, date=True)} {zone(begin)}"),
        ("lasted", format_duration(summary.seconds)),
        ("peak", peak_text(peaks)),
    ]
    if story.limit:
        shown = format_size(story.limit)
        rows.append(("limit", shown if story.limit_was_set else f"none; capped at {shown}"))
    if peaks.gpu:
        rows.append(("peak on the GPU", format_size(peaks.gpu)))
    if peaks.lowest_available is not None:
        rows.append(("least left on the machine", format_size(peaks.lowest_available)))
    if story.verdict.phase != "unknown":
        step = f", step {story.verdict.step}" if story.verdict.step is not None else ""
        rows.append(("phase", story.verdict.phase + step))
    if (seen := seen_before(story)) is not None:
        rows.append(("seen before", seen))
    return rows


def seen_before(story: Story) -> str | None:
    """How often runs of this command ended in this way before."""
    earlier = story.earlier
    if story.verdict.kind.good or not earlier.times:
        return None
    if earlier.times == 1:
        return f"once, {when(earlier.last, date=True)}"
    return (
        f"{earlier.times} times, first {when(earlier.first, date=True)}, last {when(earlier.last, date=True)}"
    )


def sentence(story: Story) -> str:
    """The end in one sentence with its figures."""
    verdict, summary, gpu = story.verdict, story.summary, story.verdict.gpu
    after = f" after {format_duration(summary.seconds)}" if summary and summary.seconds is not None else ""
    if story.run is None or not (verdict.kind.memory or verdict.kind.good):
        told = verdict.headline + after.replace(" after", "; it had run for")
    elif verdict.kind.good:
        held = f"; held at most {format_size(story.peak)}" if story.peak is not None else ""
        told = f"{verdict.headline}{after}{held}"
    elif (
        verdict.kind.gpu
        and gpu is not None
        and gpu.requested_bytes is not None
        and gpu.free_bytes is not None
    ):
        of = f" of {format_size(gpu.total_bytes)}" if gpu.total_bytes else ""
        told = f"out of GPU memory{after}: asked for {format_size(gpu.requested_bytes)} with {format_size(gpu.free_bytes)}{of} free"
    elif story.about_host_memory and story.peak is not None:
        did = (
            "stopped" if verdict.kind.stopped_by else "killed" if verdict.kind.killed_by else "out of memory"
        )
        of = f" of {format_size(story.limit)}" if story.limit and story.limit >= story.peak else ""
        told = f"{did} at {_beside(story.peak, of)}{after}{_growth(story)}"
    else:
        told = f"{verdict.headline}{after}"
    return told[:1].upper() + told[1:]


def _beside(size: int, of: str) -> str:
    """``592 of 600 MiB``: one unit is enough where both have the same."""
    words = format_size(size)
    number, _, unit = words.partition(" ")
    return f"{number}{of}" if of.endswith(f" {unit}") else words + of


def _growth(story: Story) -> str:
    growth, culprit = story.verdict.growth, story.verdict.culprit
    if culprit is not None:
        return f"; {culprit.called} (pid {culprit.pid}) beside it grew by {format_size(culprit.bytes_per_second)}/s"
    return f"; {growth_text(growth)}, probably a leak" if growth is not None else ""


def _round_up(size: int) -> str:
    """A size to type: the next whole GiB from 4 GiB on, else the next 64 MiB."""
    if size >= 4 * GIB:
        return f"{-(-size // GIB)}G"
    return f"{-(-size // (64 * MIB)) * 64}M"
