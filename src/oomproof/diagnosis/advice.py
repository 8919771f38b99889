"""What to do next, as commands to type and changes to make; rules of thumb are marked as such."""

from __future__ import annotations

import math
import shlex

from oomproof.diagnosis.verdict import Change, Remedy
from oomproof.evidence.case_file import CaseFile
from oomproof.leaf.allocator_memory import NEW_NAME, OLD_NAME
from oomproof.records import replace
from oomproof.units import GIB, MIB, format_size

_LONG = 160  # a longer command line would push the advice off the screen, and half of one cannot be pasted
_SAME_SAMPLE = 2.0  # seconds; loaders start new workers every epoch, only those of the end count
_MUCH = 0.15  # of RAM: less is what a desktop and its services take
_MORE = 1.25  # one step up: enough for a job that died close to its peak, small enough to leave others alive

BOTH_NAMES = (
    f"{NEW_NAME} from PyTorch 2.11 on; before, CUDA reads only {OLD_NAME} and ignores the new name silently"
)
HALF_THE_BATCH = Remedy(
    "half the batch and twice the gradient accumulation: the same effective batch",
    change=Change("argument", "batch_size"),
)
ONE_DATA_COPY = Remedy(
    "one copy of the data: stream it or map it (.npy, Arrow), delete what was converted",
    change=Change("code", "data"),
)


def as_flag(size: int) -> str:
    """Bytes the way ``--limit`` reads them, rounded up."""
    return f"{math.ceil(size / GIB)}G" if size >= 4 * GIB else f"{math.ceil(size / MIB)}M"


def command(case: CaseFile, *flags: str) -> str:
    """The run again, with the limit it had unless the flags give another."""
    words = shlex.join(case.argv) if case.argv else "CMD"
    if len(words) > _LONG or "\n" in words:
        words = "the same command"
    limit = case.settings.limit
    if limit is not None and not any(flag.startswith("--limit") for flag in flags):
        flags = (f"--limit {as_flag(limit)}", *flags)
    return " ".join(("oomproof run", *flags, "--", words))


def again(case: CaseFile, advice: str) -> str:
    """Advice on a text as advice on this run: its own command, and where its output is."""
    if advice == "read the traceback":
        return f"{advice}: {read_output(case)}"
    return advice.replace("oomproof run -- CMD", command(case))


def merged(first: tuple[Remedy, ...], more: tuple[Remedy, ...]) -> tuple[Remedy, ...]:
    """One remedy for each thing to change, in the first list's order: the one that says from what to what."""
    keys = {remedy.change.key: remedy for remedy in more if remedy.change is not None and remedy.change.after}
    remedies = [
        keys.pop(remedy.change.key, remedy) if remedy.change is not None else remedy for remedy in first
    ]
    have = {remedy.change.key for remedy in remedies if remedy.change is not None}
    rest = [remedy for remedy in more if remedy.change is None or remedy.change.key not in have]
    # the batch is tried last
    return tuple(
        sorted(
            [*remedies, *rest],
            key=lambda remedy: remedy.change is not None and remedy.change.key == "batch_size",
        )
    )


def typed(case: CaseFile, remedies: tuple[Remedy, ...]) -> tuple[Remedy, ...]:
    """Each change of the environment as the command that makes it."""
    return tuple(
        replace(remedy, command=f"{remedy.change.key}={remedy.change.after} {command(case)}")
        if remedy.command is None
        and remedy.change is not None
        and remedy.change.kind == "env"
        and remedy.change.after
        else remedy
        for remedy in remedies
    )


def read_output(case: CaseFile) -> str:
    """The command that shows the last lines the job printed."""
    return f"oomproof logs {case.run} | tail -n 40" if case.run else "tail -n 40 output.log"


def higher_limit(case: CaseFile, limit: int | None) -> int | None:
    """The next limit to try, or None when the machine had no headroom for it."""
    if limit is None or case.host is None:
        return None
    wanted = int(limit * _MORE)
    spare = case.host.available - (case.settings.margin or 0)
    return wanted if spare >= wanted - limit else None


def smaller_job(case: CaseFile) -> tuple[Remedy, ...]:
    """What makes a training job smaller, in the order a good engineer tries it: workers, data copies, the batch last."""
    newest = max((process.last for process in case.processes.values()), default=0.0)
    alive = [process for process in case.processes.values() if process.last >= newest - _SAME_SAMPLE]
    workers = [process for process in alive if process.role == "worker"]
    remedies = []
    if len(workers) > 1:
        fewer = len(workers) // 2
        shares = [worker.share for worker in workers]
        # what is shared with the main process stays whatever the workers are; only their own pages go
        own = sum(share for share in shares if share is not None) if None not in shares else None
        saves = own * (len(workers) - fewer) // len(workers) if own is not None else None
        title = f"fewer DataLoader workers: {len(workers)} now, try {fewer}"
        change = Change("code", "num_workers", before=str(len(workers)), after=str(fewer))
        remedies.append(Remedy(title, "measured" if saves else "rule", saves or None, change=change))
    return (*remedies, ONE_DATA_COPY, HALF_THE_BATCH)


def twin(case: CaseFile) -> tuple[Remedy, ...]:
    """The same command twice at once is the commonest reason, and the cheapest to mend."""
    if case.twin is None:
        return ()
    title = (
        f"one at a time: the same command runs as pid {case.twin.pid} and holds {format_size(case.twin.held)}"
    )
    return (Remedy(title, "measured", case.twin.held, command=f"kill {case.twin.pid}"),)


def neighbours(case: CaseFile) -> tuple[Remedy, ...]:
    """What else was held on the machine at the end."""
    host, job = case.host, case.job
    if host is None or job is None:
        return ()
    others = host.total - host.available - job.used - (case.twin.held if case.twin else 0)
    if others < host.total * _MUCH:
        return ()
    title = f"free what others held on this machine: {format_size(others)}"
    return (Remedy(title, "measured", others, command="oomproof check"),)


def raise_limit(case: CaseFile, limit: int | None) -> tuple[Remedy, ...]:
    higher = higher_limit(case, limit)
    if higher is None or limit is None:
        return ()
    return (
        Remedy(
            f"a higher limit: {format_size(limit)} to {as_flag(higher)}, for which the machine had memory available",
            command=command(case, f"--limit {as_flag(higher)}"),
            change=Change("argument", "--limit", before=as_flag(limit), after=as_flag(higher)),
        ),
    )
