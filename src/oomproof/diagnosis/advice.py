"""What to do next, as commands to type and changes to make; rules of thumb are marked as such."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from oomproof.causes import RUN, cause_of
from oomproof.diagnosis.smaller_command import (
    WORKERS,
    bare_name,
    find_argument,
    with_value,
    workers_that_fit,
)
from oomproof.diagnosis.verdict import Change, Command, Remedy, Step, Steps, WeightedCause, steps
from oomproof.evidence.case_file import CaseFile
from oomproof.evidence.run_settings import ACCUMULATION, BATCH, EVAL_BATCH
from oomproof.leaf.allocator_memory import NEW_NAME, OLD_NAME
from oomproof.records import replace
from oomproof.units import GIB, MIB, format_size

_LONG = 160  # a longer command line would push the advice off the screen, and half of one cannot be pasted
_TYPED = 300  # characters of a script on the command line, with its newlines escaped
_MUCH = 0.15  # of RAM: less is what a desktop and its services take

BOTH_NAMES = (
    f"{NEW_NAME} from PyTorch 2.11 on; before, CUDA reads only {OLD_NAME} and ignores the new name silently"
)
HALF_THE_BATCH = Remedy(
    "half the batch and twice the gradient accumulation: the same effective batch",
    change=Change("argument", "batch_size"),
)
# What fills a card outside of training: gradient accumulation changes nothing there
IN_PLACE_OF_THE_BATCH = {
    "load": Remedy(
        'it was still loading: weights in a smaller type (bfloat16 takes half of float32, 4 bits an eighth), or part of them in RAM (device_map="auto"); '
        "of a server, a shorter context or fewer tokens at once",
        change=Change("code", "dtype"),
    ),
    "eval": Remedy(
        "it was evaluating: a smaller batch there, nothing kept for backward (torch.no_grad()), and what a step returns off the card (.cpu(); "
        "Trainer: per_device_eval_batch_size, eval_accumulation_steps=1)",
        change=Change("code", "evaluation"),
    ),
    "generate": Remedy(
        "it was generating: fewer at once, shorter texts (max_new_tokens, a shorter context), smaller or fewer pictures",
        change=Change("code", "generation"),
    ),
    "save": Remedy(
        "it was saving: bring the state to RAM before it is gathered or copied (state.cpu(); FSDP: offload_to_cpu=True)",
        change=Change("code", "save"),
    ),
}
NO_WORKERS = Remedy(
    "num_workers=0: batches then need no shared memory; fewer workers help only where it is nearly large enough",
    change=Change("code", "num_workers", after="0"),
)
ONE_DATA_COPY = Remedy(
    "one copy of the data: stream it or map it (.npy, Arrow), delete what was converted",
    change=Change("code", "data"),
)
LESS_DATA = Remedy(
    "less data at a time: read it in pieces or map it, free what is done with", change=Change("code", "data")
)

LOAD_LESS = "load less at a time: stream or map the data, weights once and in a smaller type"
WEIGHTS_ONCE = Remedy(
    'weights once and in their own type: from_pretrained(..., dtype="auto"), torch.load(..., mmap=True), load_state_dict(..., assign=True)',
    change=Change("code", "load"),
)
SMALLER_WEIGHTS = Remedy(
    'it was still loading, so no batch was on the card: weights in a smaller type (bfloat16 takes half of float32, 4 bits an eighth), or part of them in RAM: device_map="auto"',
    change=Change("code", "dtype"),
)


IN_CHUNKS = Remedy(
    "hand each process a smaller part at a time, and return less from it", change=Change("code", "chunks")
)


def without_batches(case: CaseFile) -> bool:
    """No batch is seen anywhere: advice about one would be about another job."""
    text = case.output.text
    trains = text is not None and text.progress.training_step is not None
    return (
        case.program.no_batches
        and case.agent.phase in ("load", "unknown")
        and case.agent.step is None
        and not trains
    )


def died_loading(case: CaseFile) -> bool:
    """Before the first batch was asked for and the first pass through a model, as the agent saw it: no smaller batch takes anything off that.
    One that printed steps trains with something else than PyTorch, which it only imports; of one that makes its batches itself nobody sees
    the first, unless it died inside a call that loads."""
    if (
        case.agent.phase != "load"
        or case.agent.step is not None
        or (case.program.own_batches and not case.agent.loading_call)
    ):
        return False
    text = case.output.text
    return text is None or text.progress.training_step is None


def as_flag(size: int) -> str:
    """Bytes the way ``--limit`` reads them, rounded up."""
    return f"{math.ceil(size / GIB)}G" if size >= 4 * GIB else f"{math.ceil(size / MIB)}M"


def command(
    case: CaseFile, *flags: str, argv: Sequence[str] | None = None, env: str = "", output: str = ""
) -> str:
    """The run again with the settings it was given, unless the flags give others; ``argv``: changed arguments."""
    before, after = f"{env} " if env else "", f" > {output}" if output else ""
    if line := command_line(case, *flags, argv=argv):
        return Command(f"{before}{line}{after}")
    return f"{before}the same command again{' with ' if flags else ''}{' '.join(flags)}{after}"


def command_line(case: CaseFile, *flags: str, argv: Sequence[str] | None = None) -> str | None:
    """The same as a line to type or to copy; None where it would be too long for that."""
    words = shlex.join(argv if argv is not None else case.argv) if case.argv else "CMD"
    changed = argv is not None
    if "\n" in words and len(escaped := _escaped(argv if argv is not None else case.argv)) < _TYPED:
        words = escaped
    elif "\n" in words or (len(words) > _LONG and not changed):
        return None
    return run_line(words, *flags, kept=case.limits.flags)


def _escaped(argv: Sequence[str]) -> str:
    """On one line, as bash and zsh read it: a word with a newline as $'...'."""
    words = []
    for word in argv:
        if "\n" in word:
            text = word.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
            words.append(f"$'{text}'")
        else:
            words.append(shlex.quote(word))
    return " ".join(words)


def run_line(words: str, *flags: str, kept: Sequence[tuple[str, str]]) -> str:
    """`oomproof run` of a command with the flags it had, unless new ones say otherwise."""
    given = {flag.split()[0] for flag in flags}
    had = [f"{name} {value}".rstrip() for name, value in kept if name not in given]
    return " ".join(("oomproof run", *had, *flags, "--", words))


READ_ON = "read its last lines"
HALVE_THE_BATCH = Remedy(
    "halve the batch and double gradient accumulation: the same effective batch", change=HALF_THE_BATCH.change
)


def again(case: CaseFile, told: WeightedCause) -> Steps:
    """Advice on a text as advice on this run: its own command, and where its output is."""
    following = steps(told.next)
    change = following[0].change if len(following) == 1 else None
    cause = cause_of(told.cause)
    if cause.generic:
        return steps(following, ": ", read_output(case))
    if cause.killer_in_kernel_log and change is None and kernel_ruled_out(case):
        if told.cause == "killed-unknown" and not has_loader(case):
            someone = "ask who or what sent it (a person, a scheduler), then "
            return steps(f"the kernel killed nothing while it ran: {someone}", command(case))
        return steps(
            "the kernel killed nothing while it ran; to see the error itself: ", with_workers(case, 0)
        )
    elsewhere = any(change == remedy.change for remedy in IN_PLACE_OF_THE_BATCH.values())
    halved = change == HALVE_THE_BATCH.change
    if (halved or elsewhere) and died_loading(case):
        return steps(f"{SMALLER_WEIGHTS.title}. Then ", command(case))
    evaluated = change == IN_PLACE_OF_THE_BATCH["eval"].change
    half = half_the_eval_batch(case) if evaluated else half_the_batch(case)
    if (halved or evaluated) and half.command is not None:
        return (Step(f"{half.title}: ", half.command, half.change),)
    if elsewhere:
        return steps(following, ". Then ", command(case))
    return steps(*(steps(step.text, command(case)) if step.command == RUN else (step,) for step in following))


def with_workers(case: CaseFile, count: int | None = None) -> str | Steps:
    """The run again with so many loader workers, None: half of them; where its command line does not say how many, what
    to change in its code first."""
    argument = find_argument(case.argv)
    if argument is None:
        change = "half of num_workers" if count is None else f"num_workers={count}"
        if count is None and not has_loader(case):
            processes = (
                f"fewer processes in {case.program.pool}()"
                if case.program.pool
                else "fewer processes at once"
            )
            change = f"{processes}, or smaller ones,"
        return steps(f"{change} in its code, then ", command(case))
    return command(
        case, argv=with_value(case.argv, argument, argument.value // 2 if count is None else count)
    )


def kernel_ruled_out(case: CaseFile) -> bool:
    """The machine's own count of OOM kills did not move: its log has nothing to tell."""
    return case.moved.vmstat_oom_kill == 0 and not case.kernel_killed


def merged(first: tuple[Remedy, ...], more: tuple[Remedy, ...]) -> tuple[Remedy, ...]:
    """One remedy for each thing to change, in the first list's order: the one that says from what to what."""
    known = {_subject(remedy): remedy for remedy in more if remedy.change is not None and remedy.change.after}
    remedies = [known.pop(_subject(remedy), remedy) for remedy in first]
    have = {_subject(remedy) for remedy in remedies}
    rest = [remedy for remedy in more if remedy.change is None or _subject(remedy) not in have]
    # the batch is tried last
    return tuple(sorted([*remedies, *rest], key=lambda remedy: _subject(remedy) == "batch_size"))


def _subject(remedy: Remedy) -> str:
    """What it changes, whatever that is called on this command line."""
    if remedy.change is None:
        return remedy.title
    name = bare_name(remedy.change.key)
    return "num_workers" if WORKERS.match(name) else "batch_size" if BATCH.match(name) else name


def typed(case: CaseFile, remedies: tuple[Remedy, ...]) -> tuple[Remedy, ...]:
    """Each change of the environment as the command that makes it, and the batch by its name on the command line."""
    if died_loading(case):
        rules = [remedy for remedy in remedies if remedy.basis == "rule"]
        of_training = [remedy for remedy in rules if _subject(remedy) in ("batch_size", "num_workers")]
        remedies = tuple(remedy for remedy in remedies if remedy not in of_training)
    halves = {
        id(HALF_THE_BATCH): half_the_batch(case),
        id(IN_PLACE_OF_THE_BATCH["eval"]): half_the_eval_batch(case),
    }
    remedies = tuple(halves.get(id(remedy), remedy) for remedy in remedies)
    return tuple(
        replace(remedy, command=command(case, env=f"{remedy.change.key}={remedy.change.after}"))
        if remedy.command is None
        and remedy.change is not None
        and remedy.change.kind == "env"
        and remedy.change.after
        else remedy
        for remedy in remedies
    )


def read_output(case: CaseFile) -> str:
    """The command that shows the last lines the job printed."""
    return Command(f"oomproof logs {case.called} | tail -n 40" if case.run else "tail -n 40 output.log")


def smaller_job(case: CaseFile, allowed: int | None = None) -> tuple[Remedy, ...]:
    """What makes a training job smaller, in the order a good engineer tries it: workers, data copies, the batch last.
    ``allowed``: what it may hold, where that is known."""
    if died_loading(case):
        measured = [remedy for remedy in _fewer_workers(case, allowed) if remedy.basis == "measured"]
        return (*_less_pinned(case), *measured, ONE_DATA_COPY, WEIGHTS_ONCE)
    fewer = _fewer_workers(case, allowed)
    if without_batches(case):
        data = LESS_DATA if case.program.native else ONE_DATA_COPY
        return (*_less_pinned(case), *fewer, *((IN_CHUNKS,) if case.program.pool or fewer else ()), data)
    return (*_less_pinned(case), *fewer, ONE_DATA_COPY, half_the_batch(case))


def _less_pinned(case: CaseFile) -> tuple[Remedy, ...]:
    """What was lent to the card is the first thing to take back from it."""
    if not case.samples.spill:
        return ()
    half = as_flag(case.samples.spill // 2)
    title = (
        f"a smaller --spill: {format_size(case.samples.spill)} of what the job held were pinned for the card"
    )
    change = Change("argument", "--spill", before=as_flag(case.samples.spill), after=half)
    return (Remedy(title, "measured", case.samples.spill // 2, command(case, f"--spill {half}"), change),)


def _fewer_workers(case: CaseFile, allowed: int | None) -> tuple[Remedy, ...]:
    from oomproof.diagnosis.smaller_command import worker_figures  # not for a run that ended well

    workers = worker_figures(case, case.samples.job_peak)
    argument = find_argument(case.argv)
    loader = has_loader(case)
    # the number asked for is the one to change, whatever was still alive at the last sample
    now = (
        argument.value
        if argument is not None
        else workers.count
        if loader
        else case.program.pool_size or workers.count
    )
    if now < 1 or (argument is None and now < 2):
        return ()
    # what is shared with the main process stays whatever the workers are; only their own pages go
    each, fewer = workers.each, now // 2
    if allowed is not None and workers.held is not None:
        fits = workers_that_fit(now, each, max(0, workers.held - workers.count * each), allowed)
        fewer = fits if fits is not None else fewer
    if not loader:
        fewer = max(1, fewer)  # a pool has one process at least
    name = (
        argument.name
        if argument is not None
        else "num_workers"
        if loader
        else case.program.pool or "processes"
    )
    change = f"{name} {now} → {fewer}"
    if argument is None and case.program.pool:
        written = str(case.program.pool_size or "")
        change = f"{name}({written}) → {name}({fewer})"
    what = "DataLoader workers" if loader else "processes at once"
    return (
        Remedy(
            f"fewer {what}: {change}" + (f"; each held {format_size(each)} of its own" if each else ""),
            "measured" if each else "rule",
            each * (now - fewer) or None,
            command=command(case, argv=with_value(case.argv, argument, fewer)) if argument else None,
            change=Change("argument" if argument else "code", name, before=str(now), after=str(fewer)),
        ),
    )


def has_loader(case: CaseFile) -> bool:
    """Or it may have one: nothing speaks against it."""
    return case.program.loader is not False and not case.program.pool and not without_batches(case)


def what_is_smaller(case: CaseFile, batch: bool = True) -> str:
    """What makes this job smaller, in words, by what is seen of it. ``batch``: whether one drives what it holds, if it has any."""
    parts = ["a smaller batch"] if batch and not without_batches(case) else []
    if case.program.pool:
        parts += [f"fewer processes in {case.program.pool}()", "smaller chunks"]
    elif has_loader(case):
        parts.append("fewer workers")
    return ", ".join(parts) or "stream the data, keep less of it"


def half_the_batch(case: CaseFile) -> Remedy:
    batch = find_argument(case.argv, BATCH)
    if batch is None or batch.value < 2:
        return HALF_THE_BATCH
    argv, half = case.argv, batch.value // 2
    argv, title = with_value(argv, batch, half), f"half the batch: {batch.name} {batch.value} → {half}"
    accumulation = find_argument(argv, ACCUMULATION)
    if accumulation is not None:
        argv = with_value(argv, accumulation, accumulation.value * 2)
        title += f", and {accumulation.name} {accumulation.value} → {accumulation.value * 2}"
    else:
        title += " and twice the gradient accumulation"
    return Remedy(
        f"{title}: the same effective batch",
        command=command(case, argv=argv),
        change=Change("argument", batch.name, before=str(batch.value), after=str(half)),
    )


def half_the_eval_batch(case: CaseFile) -> Remedy:
    batch = find_argument(case.argv, EVAL_BATCH)
    if batch is None or batch.value < 2:
        return IN_PLACE_OF_THE_BATCH["eval"]
    half = batch.value // 2
    return Remedy(
        f"half the evaluation's batch: {batch.name} {batch.value} → {half}",
        command=command(case, argv=with_value(case.argv, batch, half)),
        change=Change("argument", batch.name, before=str(batch.value), after=str(half)),
    )


def twin(case: CaseFile) -> tuple[Remedy, ...]:
    """The same command twice at once is the commonest reason, and the cheapest to mend."""
    if case.samples.twin is None:
        return ()
    title = f"one at a time: the same command ran as pid {case.samples.twin.pid} and held {format_size(case.samples.twin.held)}"
    return (Remedy(title, "measured", case.samples.twin.held, command=f"kill {case.samples.twin.pid}"),)


def neighbours(case: CaseFile) -> tuple[Remedy, ...]:
    """What else was held on the machine at the end."""
    others = held_by_others(case) - (case.samples.twin.held if case.samples.twin else 0)
    if case.samples.host is None or others < case.samples.host.total * _MUCH:
        return ()
    title = f"free what others held on this machine: {format_size(others)}"
    return (Remedy(title, "measured", others, command="oomproof check"),)


def held_by_others(case: CaseFile) -> int:
    """Bytes beside the job at the last sample; 0 where that is no more than a desktop and its services take."""
    host, job = case.samples.host, case.samples.job
    others = host.total - host.available - job.used if host is not None and job is not None else 0
    return others if host is not None and others >= host.total * _MUCH else 0
