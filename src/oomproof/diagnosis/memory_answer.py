"""What a death for memory calls for: something about another job, about growth, or about the job's size. Pure."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from oomproof.diagnosis.advice import (
    HALF_THE_BATCH,
    IN_CHUNKS,
    LESS_DATA,
    LOAD_LESS,
    ONE_DATA_COPY,
    WEIGHTS_ONCE,
    as_flag,
    command,
    command_line,
    died_loading,
    held_by_others,
    neighbours,
    smaller_job,
    twin,
    what_is_smaller,
    without_batches,
)
from oomproof.diagnosis.stopping_actions import guard_stop
from oomproof.diagnosis.verdict import Change, Command, Culprit, Remedy, Steps, steps
from oomproof.evidence.case_evidence import growth_text, other_text, user_name
from oomproof.evidence.case_file import CaseFile, Growth, OtherJob
from oomproof.records import dataclass, replace
from oomproof.units import MIB, format_duration, format_size

if TYPE_CHECKING:  # it brings ast along
    from oomproof.diagnosis.data_copies import Largest


STEP = 1.25  # one step up: enough for a job that died close to its peak, small enough to leave others alive
_TO_LEARN = 8  # times the limit, at most: a second try of the same kind then covers any job, and neighbours keep theirs
_SOON = 60.0  # seconds: growth that fills a step up within them
_NOBODY_SAW = "how much more it wanted is not known"
_BURST = 0.2  # of the limit, taken after the last sample: a quarter more may be far from enough


def higher_limit(case: CaseFile, limit: int | None) -> int | None:
    """The next limit to try, or None when the machine had no headroom for it."""
    if limit is None or case.samples.host is None:
        return None
    wanted = int(limit * STEP)
    return wanted if _most(case) >= wanted else None


def raise_limit(case: CaseFile, limit: int | None) -> tuple[Remedy, ...]:
    higher = higher_limit(case, limit)
    if higher is None or limit is None:
        return ()
    title = f"a higher limit: {format_size(limit)} to {as_flag(higher)}, for which the machine had memory available"
    if size_is_unknown(case, limit):
        higher = max(higher, min(_TO_LEARN * limit, _most(case)) // MIB * MIB)
        title = (
            f"to learn how much it takes, once with a much larger limit: {format_size(limit)} to {as_flag(higher)}, which the "
            f"machine had available; oomproof runs then shows its peak"
        )
    return (
        Remedy(
            title,
            command=command_line(case, f"--limit {as_flag(higher)}"),
            change=Change("argument", "--limit", before=as_flag(limit), after=as_flag(higher)),
        ),
    )


def size_is_unknown(case: CaseFile, limit: int) -> bool:
    """It burst over its limit, was growing fast when it met it, or a step up was tried before and it died all the same."""
    return bool(burst_text(case, limit)) or any(before < limit for before in case.limits.died_at)


def burst_text(case: CaseFile, limit: int | None) -> tuple[str, ...]:
    """For the verdict's why; empty where it came to its limit slowly."""
    if limit is None:
        return ()
    job, unseen = case.samples.job, _unseen(case, limit)
    if unseen >= _BURST * limit:
        end = case.exit.status.boottime if case.exit.status is not None else None
        within = f" within {format_duration(max(0.1, end - job.t))}" if job and end is not None else ""
        return (f"it took the last {format_size(unseen)} of {format_size(limit)}{within}: {_NOBODY_SAW}",)
    if job is not None and job.rate * _SOON > (STEP - 1) * limit:
        return (f"it was growing to its last moment: {_NOBODY_SAW}",)
    return ()


def _unseen(case: CaseFile, limit: int) -> int:
    """What it took up to its limit after the last sample."""
    return max(0, limit - (case.samples.job.used if case.samples.job is not None else 0))


def _most(case: CaseFile) -> int:
    """What the job could have held on this machine, beside the others and above the margin."""
    assert case.samples.host is not None
    return (
        (case.samples.job.used if case.samples.job is not None else 0)
        + case.samples.host.available
        - (case.limits.settings.margin or 0)
    )


# what `oomproof data inspect` reads
_DATA_FILE = re.compile(
    r"[^=]+\.(?:npz|npy|csv|tsv|jsonl|ndjson|parquet|arrow|feather|pkl|pickle|joblib|safetensors|gguf)", re.I
)


def change_first(case: CaseFile, limit: int | None) -> Steps:
    """``limit``: the job's own, where that was full; None: the machine was."""
    if limit is not None and case.samples.host is None:
        more = as_flag(int(limit * STEP))
        return steps(
            f"see whether the machine has more: oomproof check --need {more}; then ",
            command(case, f"--limit {more}"),
        )
    full = "the machine has no memory for a higher limit: " if limit is not None else ""
    return steps(
        full,
        _after_others(case, limit)
        or steps(f"{_smaller(case, limit)}; unchanged it ends the same way. Then ", command(case)),
    )


def _after_others(case: CaseFile, limit: int | None) -> Steps | None:
    """Others held a good part, and without them it fits: it waits for its turn."""
    host, others = case.samples.host, held_by_others(case)
    need = int(limit * STEP) if limit is not None else case.held
    if host is None or not others or need > host.total - (case.limits.settings.margin or 0):
        return None
    who = f"others held {format_size(others)}"
    if case.samples.twin is not None:
        who = f"the same command ran as pid {case.samples.twin.pid} and held {format_size(case.samples.twin.held)}"
    flags = [f"--need {as_flag(need)}"] + ([f"--limit {as_flag(need)}"] if limit is not None else [])
    return steps(f"{who} (oomproof check); this waits for its turn: ", command(case, *flags))


def _smaller(case: CaseFile, limit: int | None) -> str:
    """By what it was given to read, else by what the machine lacks."""
    if (data := _data_file(case)) is not None:
        return f"see what loading {data} takes and how to read it for less: oomproof data inspect {shlex.quote(data)}"
    host, need = case.samples.host, case.held
    if limit is None and host is not None and case.samples.in_container:
        return f"load less at a time, or raise the limit around it ({format_size(host.total)}: container --memory, Slurm --mem)"
    if limit is None and host is not None and need:
        have = f"{format_size(host.total)} RAM and "
        have += f"{format_size(host.swap_total)} swap" if host.swap_total else "no swap"
        return (
            f"load less at a time, or give the machine swap ({have}): oomproof system --need {as_flag(need)}"
        )
    if died_loading(case):
        return LOAD_LESS
    if without_batches(case):
        return "load less at a time: stream or map the data" + (
            ", fewer processes" if case.program.pool else ""
        )
    return f"load less at a time: stream or map the data, {what_is_smaller(case)}"


def _data_file(case: CaseFile) -> str | None:
    """The first data file of the command line: ``train.npz``, ``--data=train.npz``."""
    words = (
        word.partition("=")[2] if word.startswith("-") and "=" in word else word for word in case.argv[1:]
    )
    return next((word for word in words if _DATA_FILE.fullmatch(word)), None)


_GREW = 32 * MIB  # by which another job must have grown to be what filled the machine
_SHARE = 0.25  # ... and its share of what the machine lost meanwhile
_USABLE = 0.85  # of a limit: a job that fills it to the last page dies of the next breath
_WORTH = 0.2  # of the job: workers that hold less are not what to change first

KEPT = Remedy(
    "find what is kept from step to step: losses and outputs without .item() or .detach(), lists and caches that only grow",
    change=Change("code", "growth"),
)
KEPT_NATIVE = Remedy("find what it allocates and never frees", change=Change("code", "growth"))
KEPT_IN_EVAL = Remedy(
    "keep less of each evaluation: metrics in place of all outputs, .cpu() for what must stay, torch.no_grad()",
    change=Change("code", "growth"),
)

_SMALLER_STATE = Remedy(
    "an optimizer that holds less: 8-bit Adam, Adafactor, or SGD", change=Change("code", "optimizer")
)

_KEPT_WHERE = {"eval": "in each evaluation", "generate": "from one generate() to the next"}
_PAST_LOADING = ("train", "eval", "generate")


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    next: str | Steps
    remedies: tuple[Remedy, ...]
    told: tuple[str, ...] = ()  # what belongs into the verdict's why
    culprit: Culprit | None = None


def answer(case: CaseFile, limit: int | None, machine: bool) -> MemoryAnswer:
    """``limit``: the job's own, where that was full; ``machine``: the machine, or a limit over the job, was."""
    other = culprit_of(case) if machine else None
    if other is not None:
        return _about_the_other(case, other)
    beside = (*twin(case), *neighbours(case)) if machine else ()
    if case.samples.growth is not None:
        memory = _about_growth(case, case.samples.growth, limit, beside)
    else:
        memory = _about_size(case, limit, machine, beside)
    copies = _without_copies(case)
    if copies is None:
        return memory
    remedies = (copies, *(remedy for remedy in memory.remedies if remedy != ONE_DATA_COPY))
    return replace(memory, next=steps(f"{copies.title}; then ", command(case)), remedies=remedies)


def culprit_of(case: CaseFile) -> OtherJob | None:
    """The other job that filled the machine: the guard found the growth not to be this job's, or it grew by more in
    the same time, and by a good part of what the machine lost."""
    grown = [job for job in case.samples.others if job.grew >= _GREW]
    if not grown:
        return None
    most = max(grown, key=lambda job: job.grew)
    stop = guard_stop(case)
    if stop is not None:  # it looked at both, at that very moment
        return most if stop.others_growth else None
    own = most.job_grew
    if case.samples.growth is not None:  # over a longer time: what it took then was missing as well
        own = max(own, case.samples.growth.to_bytes - case.samples.growth.from_bytes)
    return most if most.grew > own and most.grew >= _SHARE * (most.taken or 0) else None


def _about_the_other(case: CaseFile, other: OtherJob) -> MemoryAnswer:
    who = f"{other.called} (pid {other.pid})"
    need = as_flag(case.samples.job_peak) if case.samples.job_peak else None
    again = command(case, *([f"--need {need}"] if need else []))
    reserved = Remedy("reserve what this job needs, so that runs that start later wait for it", command=again)
    if other.managed:
        advice, remedies = f"pause or finish {who} first", (*_about_the_run(other, who), reserved)
    else:
        advice = f"pause or finish {who} first, or start it with oomproof run too"
        remedies = (*_about_the_unmanaged(other, who), reserved)
    return MemoryAnswer(
        steps(f"{advice}; then ", again),
        remedies,
        (other_text(other),),
        Culprit(
            other.pid,
            other.name,
            user_name(other.uid) if other.uid is not None else None,
            other.held,
            other.swap,
            other.grew,
            other.seconds,
            other.rate,
            other.managed,
            other.run,
        ),
    )


def _about_the_unmanaged(other: OtherJob, who: str) -> tuple[Remedy, ...]:
    return (
        Remedy(
            f"pause {who} while this job runs, or let it finish first; it continues with kill -CONT {other.pid}",
            "measured",
            command=f"kill -STOP {other.pid}",
        ),
        Remedy(
            f"start {other.name} with oomproof as well: then it waits its turn, or is the one that is paused",
            "measured",
            other.held,
            command=f"oomproof run --need {as_flag(other.held)} -- {other.name}",
        ),
    )


def _about_the_run(other: OtherJob, who: str) -> tuple[Remedy, ...]:
    need = as_flag(other.held)
    called = other.run or "RUN"
    return (
        Remedy(
            f"pause {who} while this job runs, or let it finish first; it continues with oomproof resume {called}{'' if other.run else '; oomproof runs lists it'}",
            "measured",
            command=f"oomproof pause {other.run}" if other.run else None,
        ),
        Remedy(
            f"start {other.called if other.run else 'that run'} with --need {need} or more, what it grew to: of the two, the one that starts later then waits",
            "measured",
            other.held,
            change=Change("argument", "--need", after=need),
        ),
    )


def _about_growth(
    case: CaseFile, growth: Growth, limit: int | None, beside: tuple[Remedy, ...]
) -> MemoryAnswer:
    kept = (
        KEPT_IN_EVAL if growth.phase in ("eval", "generate") else KEPT_NATIVE if case.program.native else KEPT
    )
    told = f"it {growth_text(growth)}"
    longer = _only_longer(case, growth, limit)
    where = _KEPT_WHERE.get(growth.phase, "from step to step")
    following = steps(f"find what is kept {where}, a smaller batch only delays the end; then ", command(case))
    if growth.workers:
        kept = _about_workers(case, growth)
        following = steps(f"{kept.title}; then ", command(case))
    elif kept_there := growth.kept_in or _kept_in(case, growth):
        kept = Remedy(f"empty it, or keep less in it: {kept_there}", change=Change("code", "growth"))
        following = steps(
            f"it is kept in {kept_there}; a smaller batch only delays the end. Then ", command(case)
        )
    elif growth.made_at:
        kept = Remedy(f"keep less of what this line makes: {growth.made_at}", change=Change("code", "growth"))
        following = steps(f"{growth.made_at}; a smaller batch only delays the end. Then ", command(case))
    elif case.program.native:
        massif = Command(f"valgrind --tool=massif {shlex.join(case.argv)}")
        following = steps("find what it never frees: ", massif, ", with a small input")
    elif growth.not_a_leak:
        kept = Remedy(growth.not_a_leak, "measured", change=Change("env", "MALLOC_ARENA_MAX", after="2"))
        following = steps(f"{growth.not_a_leak}: ", command(case, env="MALLOC_ARENA_MAX=2"))
    elif died_loading(case):
        kept = ONE_DATA_COPY
        following = steps(f"it was still loading: {LOAD_LESS}; then ", command(case))
        if longer:
            following = steps(
                f"it was still loading: {LOAD_LESS}; or give it more: ", _at_limit(case, longer[0])
            )
    elif (
        growth.steps is None and longer and growth.phase not in _PAST_LOADING
    ):  # it told no steps: it may have been loading all the time
        following = steps(
            "find what is kept as it runs; if it was still loading, it needs more: ",
            _at_limit(case, longer[0]),
        )
    return MemoryAnswer(
        following,
        (*beside, kept, *longer),
        (told, *_process_told(case), *_died_before(case, limit)),
    )


def _about_workers(case: CaseFile, growth: Growth) -> Remedy:
    """Most of the growth is theirs: they copy what they inherited, or keep what they read."""
    grew = f"its {growth.workers} workers grew by {format_size(growth.workers_bytes)}: "
    copied = ""
    if case.agent.censuses:
        from oomproof.diagnosis.data_copies import copied_by_workers

        copied = copied_by_workers(case, growth.workers_bytes // growth.workers)
    if copied:
        title = f"{grew}reading {copied} copies it into each of them, because Python counts references in the objects; "
        title += (
            "a NumPy array or an Arrow table (HF datasets) is not copied, and fewer workers make fewer copies"
        )
    else:
        title = f"{grew}their dataset keeps what it reads, or copies Python objects as it reads them (lists, dicts: "
        title += "a NumPy array or an Arrow table is not copied); fewer workers grow less"
    return Remedy(title, change=Change("code", "growth"))


def _without_copies(case: CaseFile) -> Remedy | None:
    """For the same data held in several forms, or all predictions of an evaluation."""
    if not case.agent.censuses:
        return None
    from oomproof.diagnosis.data_copies import kept_predictions, worth_changing  # brings ast along

    return kept_predictions(case) or worth_changing(case)


def _kept_in(case: CaseFile, growth: Growth) -> str:
    """The variable that grew from one census to the next; empty where none is known."""
    if not case.agent.censuses:
        return ""
    from oomproof.diagnosis.data_copies import kept_in

    return kept_in(case, growth)


def _largest(case: CaseFile) -> Largest | None:
    if not case.agent.censuses:
        return None
    from oomproof.diagnosis.data_copies import largest_variable

    return largest_variable(case)


def _only_longer(case: CaseFile, growth: Growth, limit: int | None) -> tuple[Remedy, ...]:
    """A higher limit is no remedy for growth; how far it would carry is worth knowing."""
    higher = higher_limit(case, limit)
    if higher is None or limit is None:
        return ()
    more = higher - limit
    if growth.bytes_per_step:
        carries = f"{int(more / growth.bytes_per_step)} steps"
    else:
        carries = format_duration(more / growth.bytes_per_second)
    return (
        Remedy(
            f"for the time being, a higher limit: {as_flag(limit)} → {as_flag(higher)} lasts {carries} longer",
            "predicted",
            command=command_line(case, f"--limit {as_flag(higher)}"),
            change=Change("argument", "--limit", before=as_flag(limit), after=as_flag(higher)),
        ),
    )


def _about_size(case: CaseFile, limit: int | None, machine: bool, beside: tuple[Remedy, ...]) -> MemoryAnswer:
    raised = raise_limit(case, limit)
    smaller, largest = smaller_job(case, allowed_bytes(case, limit, machine)), _largest(case)
    if largest is not None and not largest.part:  # its data fills it: no batch drives that
        smaller = tuple(remedy for remedy in smaller if remedy != HALF_THE_BATCH)
    change = _first_change(case, smaller)
    if raised and limit is not None:
        or_else = (
            f"or {LOAD_LESS}"
            if died_loading(case)
            else f"or make the job smaller ({_named(case, change, HALF_THE_BATCH in smaller)})"
        )
        learn = "to learn how much it takes: " if size_is_unknown(case, limit) else ""
        following = steps(learn, _at_limit(case, raised[0]), f", {or_else}")
    elif without_batches(case) and smaller and smaller[0] not in (ONE_DATA_COPY, LESS_DATA, IN_CHUNKS):
        following = steps(f"{smaller[0].title}; then ", command(case))
    elif change is not None and change.command is not None:
        full = limit is not None and case.samples.host is not None
        following = steps(
            "the machine has no memory for a higher limit: " if full else "", Command(change.command)
        )
    else:
        following = change_first(case, None if machine else limit)
    told = (*burst_text(case, limit), *_process_told(case), *_died_before(case, limit))
    if largest is None:
        return MemoryAnswer(following, (*beside, *raised, *smaller), told)
    if largest.held:  # whether it grew is not known
        told = (*told, f"{largest.text}, {largest.held}")
    advice, kept = _less_of(case, largest)
    return MemoryAnswer(steps(f"{advice}; or ", following), (*beside, kept, *raised, *smaller), told)


def _less_of(case: CaseFile, largest: Largest) -> tuple[str, Remedy]:
    """Of data a program can keep less; of a model or its optimizer it cannot, but hold them in a smaller form."""
    if largest.part == "model":
        return f"most of it was the model itself, {largest.text}: {WEIGHTS_ONCE.title}", WEIGHTS_ONCE
    if largest.part == "optimizer":
        return f"most of it was the optimizer's state, {largest.text}: {_SMALLER_STATE.title}", _SMALLER_STATE
    if largest.copied:
        title = f"a NumPy array or an Arrow table (HF datasets) in place of {largest.text}: each loader worker that reads "
        title += "Python objects copies them, because Python counts references in them"
        return title, Remedy(title, change=Change("code", "data"))
    kept = Remedy(
        f"keep less in {largest.text}, or stream what goes into it", change=Change("code", "growth")
    )
    return f"most of it was in {largest.text}: keep less in it", kept


def _at_limit(case: CaseFile, raised: Remedy) -> str:
    """In a sentence, also where the command is too long for a line to type."""
    after = raised.change.after if raised.change is not None else None
    return command(case, *([f"--limit {after}"] if after else []))


def allowed_bytes(case: CaseFile, limit: int | None, machine: bool) -> int | None:
    """What the job may hold."""
    if machine and case.samples.host is not None and case.samples.job is not None:
        return max(
            0, case.samples.job.used + case.samples.host.available - (case.limits.settings.margin or 0)
        )
    return int(limit * _USABLE) if limit is not None else None


def _first_change(case: CaseFile, remedies: tuple[Remedy, ...]) -> Remedy | None:
    """The argument to change first: the workers where they hold a good part, else the batch."""
    typed = [remedy for remedy in remedies if remedy.command is not None]
    held = case.samples.job.used if case.samples.job is not None else 0
    large = [remedy for remedy in typed if held and (remedy.saves_bytes or 0) >= _WORTH * held]
    return next(iter(large), typed[-1] if typed else None)


def _named(case: CaseFile, remedy: Remedy | None, batch: bool) -> str:
    change = remedy.change if remedy is not None else None
    if change is not None:
        return f"{change.key} {change.before} → {change.after}"
    return what_is_smaller(case, batch)


def _died_before(case: CaseFile, limit: int | None) -> tuple[str, ...]:
    """A limit that was raised, and it died all the same."""
    lower = [format_size(before) for before in case.limits.died_at if limit is not None and before < limit]
    return (f"the same command also died at {' and '.join(lower[-2:])}",) if lower else ()


def _process_told(case: CaseFile) -> tuple[str, ...]:
    """Which process of the job grew at the end; of a job that is one process, its own figures say it."""
    if not case.samples.grown:
        return ()
    most = case.samples.grown[0]
    if set(case.samples.processes) == {most.pid}:
        return ()
    what = ", worker" if most.role == "worker" else ""
    sizes = f"from {format_size(most.before)} to {format_size(most.after)}"
    return (
        f"{most.name} (pid {most.pid}{what}) grew {sizes} in its last {format_duration(max(1.0, most.seconds))}",
    )
