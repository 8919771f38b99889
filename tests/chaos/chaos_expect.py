"""What must hold after a chaos round, and what each fault excuses. Pure: facts in, broken promises out."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass, field

import chaos_plan as plan
from chaos_plan import PlannedJob

# how a job ended, by its own journal and the kernel's log
NEVER, FINISHED, SIGNALLED, FAILED, KILLED, ALIVE = (
    "never",
    "finished",
    "signalled",
    "failed",
    "killed",
    "alive",
)

MEMORY_CAUSES = {
    "oom-kill-memcg", "oom-kill-global", "oom-kill-cpuset", "oom-kill-mempolicy", "systemd-oomd", "python-memory-error",
    "cuda-oom", "shm-exhausted", "bad-alloc",
}  # fmt: skip

# --- what a fault may excuse -----------------------------------------------------------------------------------------

HISTORY_GONE = {plan.STATE_REMOVED, plan.STATE_GONE, plan.RUN_REMOVED}  # nothing is left to be read
DISK = {plan.DISK_FULL, plan.DISK_READONLY, *HISTORY_GONE}  # the recording may have holes, or not be there
NOT_STARTED = {  # before the job runs, the front may say no
    plan.FDS_AT_START, plan.THREADS_AT_START, plan.NO_THREADS, plan.FDS_LOWERED, *DISK, plan.RUNTIME_FULL,
    plan.RUNTIME_REMOVED, plan.FRONT_KILL, plan.KEEPER_KILL, plan.BOTH_KILL, plan.FRONT_INT, plan.FRONT_TERM,
    plan.STOP, plan.HOG, plan.SHORTAGE,
}  # fmt: skip
OWN_FAILURE = {
    plan.NO_THREADS,
    plan.THREADS_AT_START,
    plan.FDS_AT_START,
}  # the job's own fork or open is refused
NO_GUARD = {plan.FRONT_KILL, plan.BOTH_KILL, plan.FRONT_STOP}  # nobody watches: the kernel may have to act
KILLS = {plan.FRONT_KILL, plan.KEEPER_KILL, plan.BOTH_KILL}
ASKED = {plan.STOP: {signal.SIGTERM}, plan.FRONT_INT: {signal.SIGINT}, plan.FRONT_TERM: {signal.SIGTERM}}


STARVED = 0.5  # seconds: a guard that is not let run for so long cannot act in time


@dataclass
class JobFacts:
    planned: PlannedJob
    faults: set[str] = field(default_factory=set)  # that happened, aimed at it or at all
    truth: str = NEVER
    code: int | None = None  # of one that finished
    number: int | None = None  # the signal that ended it
    error: str = ""  # of one that failed
    asked: bool = False  # it stopped because it was asked to
    oom_killed: bool = False  # by the kernel's log
    paused: bool = False  # is paused for good
    ended_unseen: bool = False  # front and keeper were both gone when it ended
    lines: int = 0  # written by the job
    lines_seen: int | None = None  # that came out of the front; None: nobody looked
    lines_logged: int | None = None  # in output.log
    front_left: str = "ended"  # ended, killed (by us), hangs
    status: int | None = None  # the front's
    said: str = ""  # by the front, on its stderr or terminal
    told: int = 0  # datagrams sent by the job
    heard: int | None = None  # ... that stand in the recording
    heard_after: bool | None = None  # one of them from after the odd datagrams
    row: dict[str, object] | None = None  # of `runs --json`
    why: dict[str, object] | None = None  # the verdict of `why --json`
    why_said: str = ""  # what it said instead
    acts: list[str] = field(default_factory=list)  # by the guard: request, term, kill, pause, resume
    user_acts: list[str] = field(default_factory=list)
    recording: str = "ok"  # ok, missing, or what is wrong with it
    reserved: bool | None = None  # while it ran, after the faults; None: not looked at
    peak: int = 0  # MiB, by its journal
    began_after_fault: bool = False  # a fault that may say no came before its first step


@dataclass
class RoundFacts:
    jobs: list[JobFacts]
    faults: set[str] = field(default_factory=set)
    runs_said: str = ""  # empty: `runs --json` went well
    next_run: str = ""  # empty: a run after the round went well
    cgroups: list[str] = field(default_factory=list)  # left behind
    files: list[str] = field(default_factory=list)
    reservations: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    trouble: str = ""  # of the driver itself
    starved: float = 0.0  # seconds in which the machine let nobody run


@dataclass(frozen=True)
class Violation:
    name: str
    text: str
    job: str = ""

    def __str__(self) -> str:
        return f"{self.name}{f' ({self.job})' if self.job else ''}: {self.text}"


# names for the table, by column
LOST = {"job-lost", "job-stuck", "paused-for-good"}
INNOCENT = {"innocent-killed"}
UNREADABLE = {"recording-unreadable", "runs-broken", "why-broken"}
WRONG = {"verdict-wrong", "status-wrong", "runs-wrong"}
LEFT = {"cgroup-left", "file-left", "reservation-left", "process-left"}
BLIND = {
    "shortage-not-acted",
    "reservation-lost",
    "agent-deaf",
    "front-hangs",
    "next-run-blocked",
    "traceback",
}


def judge(facts: RoundFacts) -> list[Violation]:
    found: list[Violation] = []
    for job in facts.jobs:
        found.extend(Violation(name, text, job.planned.name) for name, text in _of_job(job, facts))
    if facts.runs_said:
        found.append(Violation("runs-broken", facts.runs_said))
    if facts.next_run:
        found.append(Violation("next-run-blocked", facts.next_run))
    # whose run a cgroup was is known by its folder: one that is gone tells nobody that a killed run has ended
    all_faults = facts.faults.union(*(job.faults for job in facts.jobs))
    swept = not (all_faults & HISTORY_GONE and all_faults & KILLS)
    for name, left in (
        ("cgroup-left", facts.cgroups if swept else []),
        ("file-left", facts.files if swept else []),
        ("reservation-left", facts.reservations),
        ("process-left", facts.processes),
    ):
        if left:
            found.append(Violation(name, ", ".join(left)))
    if facts.trouble:
        found.append(Violation("driver-failed", facts.trouble))
    return found


def _of_job(job: JobFacts, facts: RoundFacts) -> Iterable[tuple[str, str]]:
    yield from _life(job, facts)
    yield from _status(job)
    yield from _history(job)
    yield from _output(job)
    _, _, traceback = job.said.partition("Traceback (most recent call last)")
    if "/oomproof/" in traceback:  # Python itself may fail to start, before a line of ours
        yield "traceback", _raised(job.said)
    told = "nothing is reserved for this run" in job.said  # no disk took it at the start, and the user knows
    if job.reserved is False and job.truth != NEVER and not told and not job.faults & HISTORY_GONE:
        yield "reservation-lost", f"it ran, and its {job.planned.need} MiB were reserved no more"
    if job.heard_after is False and plan.DATAGRAMS in job.faults and not job.faults & (NO_GUARD | DISK):
        yield "agent-deaf", f"told {job.told} times, nothing was heard after the odd datagrams"


# --- the job itself ---------------------------------------------------------------------------------------------------


def _life(job: JobFacts, facts: RoundFacts) -> Iterable[tuple[str, str]]:
    if job.truth == ALIVE:
        if job.paused:
            yield "paused-for-good", "it stands still, and nobody lets it go on"
        else:
            yield "job-stuck", "it lives and takes no step any more"
    elif job.truth == NEVER and not (job.faults & NOT_STARTED):
        yield "job-lost", f"never started: status {job.status}, said {_last(job.said)}"
    elif job.truth == KILLED:
        yield from _killed(job, facts)
    elif job.truth == SIGNALLED:
        if not _may_signal(job) and not _guard_may_end(job, facts):
            kind = "innocent-killed" if ended_by_guard(job) else "job-lost"
            yield kind, f"ended by signal {job.number}; guard {job.acts}, user {job.user_acts}"
    elif job.truth == FAILED and not _may_fail(job):
        yield "job-lost", f"failed: {job.error}"
    elif job.truth == FINISHED and job.asked and not _was_asked(job, facts):
        yield "innocent-killed", f"asked to stop for no reason; guard {job.acts}"


def _killed(job: JobFacts, facts: RoundFacts) -> Iterable[tuple[str, str]]:
    if job.oom_killed:
        if grows(job) and not job.faults & NO_GUARD and facts.starved < STARVED:
            yield "shortage-not-acted", f"the kernel killed it at {job.peak} MiB; guard {job.acts}"
        elif not grows(job) and not (facts.faults & {plan.HOG, plan.SHORTAGE}):
            yield "job-lost", "the kernel killed it for memory, and it did not grow"
        elif not grows(job) and not facts.faults & NO_GUARD and plan.HOG not in facts.faults:
            yield "innocent-killed", "the kernel killed it while another grew"
    elif "kill" in job.acts:
        if not _guard_may_end(job, facts):
            yield "innocent-killed", f"killed by the guard at {job.peak} MiB"
    elif "kill" not in job.user_acts and plan.STOP not in job.faults and not _guard_may_end(job, facts):
        yield "job-lost", f"killed, and nobody says by whom; status {job.status}, said {_last(job.said)}"


def grows(job: JobFacts) -> bool:
    return job.planned.kind == "growing"


def ended_by_guard(job: JobFacts) -> bool:
    return bool({"request", "term", "kill"} & set(job.acts))


def _guard_may_end(job: JobFacts, facts: RoundFacts) -> bool:
    """What the guard did may stand in a folder that is gone, or that took it no more."""
    return grows(job) and (ended_by_guard(job) or bool(job.faults & DISK))


def _was_asked(job: JobFacts, facts: RoundFacts) -> bool:
    return plan.STOP in job.faults or "request" in job.user_acts or grows(job)


def _may_signal(job: JobFacts) -> bool:
    if any(job.number in ASKED[kind] for kind in job.faults & set(ASKED)):
        return True
    return job.number == signal.SIGHUP and _output_goes(job)


def _output_goes(job: JobFacts) -> bool:
    """Nobody reads: the job meets a closed pipe, or its terminal hangs up. To a file it writes itself."""
    return plan.BOTH_KILL in job.faults and job.planned.output != "file"


def _may_fail(job: JobFacts) -> bool:
    if _output_goes(job) and job.error.startswith(("BrokenPipeError", "OSError")):
        return True
    if "worker is gone" in job.error and (job.oom_killed or job.user_acts or plan.STOP in job.faults):
        return True
    refused = ("BlockingIOError", "OSError", "RuntimeError", "MemoryError")
    return bool(job.faults & OWN_FAILURE) and job.error.startswith(refused)


# --- what is said of it -----------------------------------------------------------------------------------------------


def true_status(job: JobFacts) -> int | None:
    if job.truth == FINISHED:
        return job.code
    if job.truth == SIGNALLED:
        return 128 + (job.number or 0)
    if job.truth == KILLED:
        return 128 + signal.SIGKILL
    return 1 if job.truth == FAILED else None


def _status(job: JobFacts) -> Iterable[tuple[str, str]]:
    if job.front_left == "hangs":
        yield "front-hangs", f"long after the job's end; said {_last(job.said)}"
        return
    if job.front_left != "ended" or job.status is None or job.truth == NEVER:
        return
    if job.truth == ALIVE:
        yield "status-wrong", f"the front left a living job with status {job.status}: {_last(job.said)}"
    elif job.status == 75 and true_status(job) == 0 and "request" in job.acts:
        return  # asked to stop for want of memory, and it did: `&& next` must not go on
    elif job.status != true_status(job):
        yield "status-wrong", f"{job.status} instead of {true_status(job)}: {_last(job.said)}"


def true_causes(job: JobFacts) -> set[str]:
    """What a verdict may call this end."""
    causes: set[str] = set()
    by_user = bool(job.faults & {plan.STOP}) or bool({"request", "term", "kill"} & set(job.user_acts))
    if by_user:
        causes |= {"stopped-by-user"}
    if ended_by_guard(job):
        causes |= {"stopped-by-guard"}
    if job.truth == FINISHED and not job.asked:
        causes |= {"finished"} if job.code == 0 else {"other-error"}
    elif job.truth == FINISHED:
        causes |= {"stopped-by-guard", "stopped-by-user"} if by_user and grows(job) else set()
    elif job.truth == SIGNALLED:
        if job.faults & {plan.FRONT_INT, plan.FRONT_TERM}:
            causes |= {"interrupted", "stopped-by-user"}
        if job.number == signal.SIGHUP:
            causes |= {"interrupted", "stopped-by-user"}
    elif job.truth == KILLED and job.oom_killed:
        causes |= {"oom-kill-memcg", "oom-kill-global"}
    elif job.truth == FAILED:
        causes |= {"other-error", "dataloader-killed"}
    if job.ended_unseen:
        causes |= {"guard-lost"}
    if job.faults & DISK:  # what the guard did could not be written down: then nobody knows, and says so
        unknown = {
            KILLED: {"killed-unknown"},
            SIGNALLED: {"interrupted"},
            FINISHED: {"finished"} if job.code == 0 else set(),
        }
        causes |= unknown.get(job.truth, set())
    return causes


def _history(job: JobFacts) -> Iterable[tuple[str, str]]:
    if job.faults & HISTORY_GONE or job.truth in (NEVER, ALIVE):
        return
    if job.row is None:
        if not (job.faults & DISK):
            yield "runs-wrong", "it ran, and the history does not know it"
        return
    if job.recording not in ("ok", "missing") or (job.recording == "missing" and not _may_miss(job)):
        yield "recording-unreadable", job.recording
    state = job.row.get("state")
    # a disk that took nothing when the job began: that it did is written nowhere, and was said when it began
    if job.faults & DISK and state == "failed to start":
        return
    if state != "ended" and not (job.ended_unseen and state in ("vanished", "failed to start")):
        yield "runs-wrong", f"it has ended ({describe(job)}), runs says {state!r}"
    elif state == "ended" and job.truth == FINISHED and job.row.get("code") != job.code:
        yield "runs-wrong", f"exit code {job.code}, runs says {job.row.get('code')}"
    if job.why is None:
        yield "why-broken", job.why_said
        return
    cause = str(job.why.get("cause"))
    if cause not in true_causes(job):
        yield "verdict-wrong", f"{describe(job)}: called {cause} ({job.why.get('certainty')})"
    elif job.truth == FINISHED and cause in MEMORY_CAUSES:
        yield "verdict-wrong", f"finished, called {cause}"


def _may_miss(job: JobFacts) -> bool:
    """No recording at all: the disk did not take it, or its writer was killed before its first row."""
    return (
        bool(job.faults & (DISK | NO_GUARD | OWN_FAILURE | {plan.FDS_LOWERED})) or job.planned.seconds < 1.5
    )


def _output(job: JobFacts) -> Iterable[tuple[str, str]]:
    if job.truth == FINISHED and job.planned.output == "file" and job.lines_seen not in (None, job.lines):
        yield "output-lost", f"{job.lines_seen} of {job.lines} lines stand in its file"
        return
    if job.truth != FINISHED or job.faults & {plan.BOTH_KILL, plan.KEEPER_KILL}:
        return
    if job.lines_seen is not None and job.front_left == "ended" and job.lines_seen != job.lines:
        yield "output-lost", f"{job.lines_seen} of {job.lines} lines came out"
    if job.lines_logged is not None and not job.faults & DISK and job.lines_logged != job.lines:
        yield "output-lost", f"{job.lines_logged} of {job.lines} lines stand in output.log"


def describe(job: JobFacts) -> str:
    return {
        FINISHED: f"finished with {job.code}" + (" when asked" if job.asked else ""),
        SIGNALLED: f"ended by signal {job.number}",
        KILLED: "killed by the kernel for memory" if job.oom_killed else "killed",
        FAILED: f"failed ({job.error})",
    }.get(job.truth, job.truth)


def _raised(text: str) -> str:
    """The line that ends a traceback: the first behind it that names an error."""
    after = text[text.index("Traceback (most recent call last)") :].splitlines()[1:]
    named = [
        line
        for line in after
        if not line.startswith(" ") and ("Error" in line.split(":")[0] or "." in line.split(":")[0])
    ]
    return (named or ["?"])[0][:200]


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return repr(lines[-1][:160]) if lines else "nothing"
